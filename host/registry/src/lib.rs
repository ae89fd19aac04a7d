//! Policies in OCI registries, in the layout of other WebAssembly tools: one manifest, one layer of
//! `application/wasm`, and the signature among the manifest's annotations, which every tool copies.
//!
//! A registry is not trusted: answers are read up to a size and a time limit and have to match
//! their digest, a redirect from https to http is never followed, and none into the network around
//! this machine, unless that is where the registry is ([`Reach`]). The crate `oci-client` does
//! not serve here: as of 0.18 it reads manifests, tokens and errors without any limit, follows
//! every redirect, and panics on a token that is not a valid header. The formats are `oci-spec`'s,
//! the transport is `ureq`'s.
//!
//! ```no_run
//! use tilewright_registry::{Client, Credentials, Limits, Reach, Reference};
//!
//! let reference: Reference = "registry.example/policies/wide:1.0.0".parse()?;
//! let credentials = Credentials::of_user(reference.registry())?;
//! let client = Client::new(&reference, credentials, false, Reach::User, Limits::default())?;
//! let pulled = client.pull(&reference)?;
//! println!("{} bytes, {}", pulled.wasm.len(), pulled.digest);
//! # Ok::<(), tilewright_registry::Error>(())
//! ```

#![forbid(unsafe_code)]

mod artifact;
mod binding;
mod client;
mod credentials;
mod error;
mod reach;
mod reference;
mod session;
mod transport;

pub use artifact::{ArtifactInfo, SIGNATURE};
pub use binding::{Binding, Statement};
pub use client::{Client, Pulled, Pushed};
pub use credentials::{Credentials, PASSWORD, REGISTRY, USER};
pub use error::{Error, Result};
pub use reach::Reach;
pub use reference::{Reference, without_user};
pub use transport::Limits;
