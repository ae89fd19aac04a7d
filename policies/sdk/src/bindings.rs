//! Generated from the contract.
#![allow(missing_docs, reason = "the documentation stands in the contract")]
#![allow(unsafe_op_in_unsafe_fn, reason = "generated")]
#![allow(clippy::all, reason = "generated")]

wit_bindgen::generate!({
    path: "../../wit",
    world: "policy",
    pub_export_macro: true,
    default_bindings_module: "tilewright_sdk::bindings",
    runtime_path: "::tilewright_sdk::bindings::rt",
    additional_derives: [PartialEq],
});

pub use wit_bindgen::rt;
