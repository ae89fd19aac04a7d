//! Features of WebAssembly that are off in the sandbox, found by validating a module without each.
//! Validation has no bound of its own, so this only runs in the process that compiles.

use wasmparser::{Validator, WasmFeatures};

use crate::error::Fault;

/// Features that are off in the sandbox, by the names that a policy's author knows.
const OFF: [(WasmFeatures, &str); 12] = [
    (WasmFeatures::THREADS, "threads"),
    (WasmFeatures::SHARED_EVERYTHING_THREADS, "shared-everything threads"),
    (WasmFeatures::GC, "garbage collection"),
    (WasmFeatures::EXCEPTIONS, "exceptions"),
    (WasmFeatures::LEGACY_EXCEPTIONS, "exceptions of the older kind"),
    (WasmFeatures::MEMORY64, "64-bit memory"),
    (WasmFeatures::MULTI_MEMORY, "several memories in one module"),
    (WasmFeatures::RELAXED_SIMD, "relaxed SIMD"),
    (WasmFeatures::CUSTOM_PAGE_SIZES, "pages of other sizes"),
    (WasmFeatures::WIDE_ARITHMETIC, "wide arithmetic"),
    (WasmFeatures::STACK_SWITCHING, "stack switching"),
    (WasmFeatures::CM_ASYNC, "asynchronous components"),
];

/// The reason why the sandbox refuses a module.
pub(crate) fn fault(bytes: &[u8]) -> Fault {
    let valid = |features: WasmFeatures| Validator::new_with_features(features).validate_all(bytes).is_ok();
    if !valid(WasmFeatures::all()) {
        return Fault::Broken;
    }
    let off = OFF.iter().filter(|(feature, _)| !valid(WasmFeatures::all() - *feature));
    let used: Vec<String> = off.map(|(_, name)| name.to_string()).collect();
    if used.is_empty() { Fault::Other } else { Fault::Features(used) }
}
