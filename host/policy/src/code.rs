//! The single function that makes compiled code runnable.

use wasmtime::{Engine, Result, component::Component};

/// A component from its compiled code.
///
/// # Errors
/// wasmtime's own if the code is for another version, configuration or processor.
#[allow(unsafe_code, reason = "the one place that reads compiled code back")]
pub(crate) fn read(engine: &Engine, code: &[u8]) -> Result<Component> {
    // SAFETY: the bytes are the output of wasmtime's compiler, either from this process or its
    // child a moment ago, over a pipe that nobody else has (`compile`), or from before, in a file
    // of the cache: that file and its directory belong to the user and nobody else can write them,
    // and the file is sealed under its own name, which carries the module's digest, wasmtime's
    // version and the configuration (`cache`). Only the user can change it regardless, who can run
    // code of their own anyway.
    unsafe { Component::deserialize(engine, code) }
}
