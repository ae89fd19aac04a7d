//! Compiled code becomes something that can be run: the one place where that happens.

use wasmtime::{Engine, Result, component::Component};

/// A component from its compiled code.
///
/// # Errors
/// wasmtime's own if the code is another version's, configuration's or processor's.
#[allow(unsafe_code, reason = "the one place that reads compiled code back")]
pub(crate) fn read(engine: &Engine, code: &[u8]) -> Result<Component> {
    // SAFETY: the bytes are what wasmtime's compiler wrote, either in this process or its child a moment ago, over a pipe that nobody
    // else has (`compile`), or before, in a file of the cache: that file and its directory belong to the user and nobody else can write
    // them, and the file is sealed under its own name, which carries the module's digest, wasmtime's version and the configuration
    // (`cache`). Whoever can change it regardless is the user, who can run code of their own anyway.
    unsafe { Component::deserialize(engine, code) }
}
