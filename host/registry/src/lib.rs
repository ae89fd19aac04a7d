//! Policies in OCI registries, as other WebAssembly tools lay them out: one manifest, one layer of `application/wasm`, and the
//! signature among the manifest's annotations, where every tool carries it along and none trips over it.
//!
//! A registry is not trusted: what it sends is read up to a limit and within a time, is what its digest says or nothing, and is never
//! followed from https to http. That is why the crate `oci-client` does not serve here: as of 0.18 it reads manifests, tokens and
//! errors without any limit, follows redirects wherever they lead, and panics on a token that is no header. The formats are
//! `oci-spec`'s, the transport is `ureq`'s.
//!
//! ```no_run
//! use tilewright_registry::{Client, Credentials, Limits, Reference};
//!
//! let reference: Reference = "registry.example/policies/wide:1.0.0".parse()?;
//! let client = Client::new(&reference, Credentials::of_user(reference.registry())?, false, Limits::default())?;
//! let pulled = client.pull(&reference)?;
//! println!("{} bytes, {}", pulled.wasm.len(), pulled.digest);
//! # Ok::<(), tilewright_registry::Error>(())
//! ```

#![forbid(unsafe_code)]

mod artifact;
mod binding;
mod client;
mod credentials;
mod digest;
mod error;
mod reference;
mod session;
mod transport;

pub use artifact::{About, SIGNATURE};
pub use binding::{Binding, Statement};
pub use client::{Client, Pulled, Pushed};
pub use credentials::{Credentials, PASSWORD, REGISTRY, USER};
pub use error::{Error, Result};
pub use reference::{Reference, without_user};
pub use transport::Limits;
