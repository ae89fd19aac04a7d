//! Errors.

use std::{net::IpAddr, time::Duration};

use crate::{PASSWORD, REGISTRY, USER};

/// The reason why a policy was not pushed or pulled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A reference that can't be read.
    #[error("'{text}': {detail}: give REGISTRY/NAME:TAG, as in ghcr.io/ada/wide:1.0.0, or REGISTRY/NAME@sha256:…")]
    Reference {
        /// As given.
        text: String,
        /// The fault.
        detail: String,
    },
    /// The user's credentials can't be read.
    #[error("{detail}: correct it, or set {REGISTRY}, {USER} and {PASSWORD}")]
    Credentials {
        /// The fault.
        detail: String,
    },
    /// The registry does not answer, not in HTTP, or not in time.
    #[error("{registry}: {detail}")]
    Transport {
        /// The registry.
        registry: String,
        /// The failure, and the remedy.
        detail: String,
    },
    /// No answer within the time.
    #[error("{registry}: no answer to '{what}' within {} s: try again later", within.as_secs_f64())]
    Late {
        /// The registry.
        registry: String,
        /// The subject of the request.
        what: String,
        /// The time limit.
        within: Duration,
    },
    /// The registry wants credentials, or better ones.
    #[error(
        "{registry}: {what} is not allowed{}: log in with docker login, or set {REGISTRY}, {USER} and {PASSWORD}",
        registry_message(detail)
    )]
    Denied {
        /// The registry.
        registry: String,
        /// The subject of the request.
        what: String,
        /// The registry's words.
        detail: String,
    },
    /// There is no such policy.
    #[error("{reference}: there is nothing of this name{}", registry_message(detail))]
    NotFound {
        /// The reference.
        reference: String,
        /// The registry's words.
        detail: String,
    },
    /// Any other unexpected answer.
    #[error("{registry}: {what}: it answers {status}{}", registry_message(detail))]
    Answer {
        /// The registry.
        registry: String,
        /// The subject of the request.
        what: String,
        /// The status.
        status: u16,
        /// The registry's words.
        detail: String,
    },
    /// A redirect that is not followed.
    #[error("{registry}: {what}: it points to {to}, which is not followed: {why}")]
    Redirect {
        /// The registry.
        registry: String,
        /// The subject of the request.
        what: String,
        /// The redirect's target.
        to: String,
        /// The reason.
        why: &'static str,
    },
    /// A name has an address of the network around this machine, which is not connected to.
    #[error(
        "{registry}: {what}: {host} has the internal address {address}, which is not connected to: a registry of \
         one's own network is named in [server] internal-registries"
    )]
    Internal {
        /// The registry.
        registry: String,
        /// The subject of the request.
        what: String,
        /// The name.
        host: String,
        /// The address of that name.
        address: IpAddr,
    },
    /// A part is too large.
    #[error("{reference}: its {what} is larger than the {most} bytes that are allowed")]
    TooLarge {
        /// The reference.
        reference: String,
        /// The part.
        what: &'static str,
        /// Bytes allowed.
        most: u64,
    },
    /// A part has another digest.
    #[error(
        "{reference}: its {what} is {found}, and not {expected}: don't use it, and ask the operator of the registry"
    )]
    Digest {
        /// The reference.
        reference: String,
        /// The part.
        what: &'static str,
        /// The expected digest.
        expected: String,
        /// The digest of the received bytes.
        found: String,
    },
    /// The artifact is not a policy.
    #[error("{reference}: is no policy: {detail}")]
    NotAPolicy {
        /// The reference.
        reference: String,
        /// The kind of artifact that it is.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// True if the request is wrong, false if the work failed.
    pub fn is_input(&self) -> bool {
        use Error::{Credentials, NotAPolicy, NotFound, Reference, TooLarge};
        matches!(self, Reference { .. } | Credentials { .. } | NotFound { .. } | NotAPolicy { .. } | TooLarge { .. })
    }
}

/// The registry's own words, where it has any.
fn registry_message(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}
