//! Errors.

use std::time::Duration;

use crate::{PASSWORD, REGISTRY, USER};

/// Why a policy was not pushed or pulled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A reference that can't be read.
    #[error("'{text}': {detail}: give REGISTRY/NAME:TAG, as in ghcr.io/ada/wide:1.0.0, or REGISTRY/NAME@sha256:…")]
    Reference {
        /// As given.
        text: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The user's credentials can't be read.
    #[error("{detail}: correct it, or set {REGISTRY}, {USER} and {PASSWORD}")]
    Credentials {
        /// What is wrong.
        detail: String,
    },
    /// Nobody answers, or not in HTTP, or not in time.
    #[error("{registry}: {detail}")]
    Transport {
        /// Where.
        registry: String,
        /// What happened, and what to do.
        detail: String,
    },
    /// No answer within the time.
    #[error("{registry}: no answer to '{what}' within {} s: try again later", within.as_secs_f64())]
    Late {
        /// Where.
        registry: String,
        /// What was asked.
        what: String,
        /// The time.
        within: Duration,
    },
    /// The registry wants credentials, or better ones.
    #[error(
        "{registry}: {what} is not allowed{}: log in with docker login, or set {REGISTRY}, {USER} and {PASSWORD}",
        said(detail)
    )]
    Denied {
        /// Where.
        registry: String,
        /// What was asked.
        what: String,
        /// The registry's words.
        detail: String,
    },
    /// There is no such policy.
    #[error("{reference}: there is nothing of this name{}", said(detail))]
    NotFound {
        /// The reference.
        reference: String,
        /// The registry's words.
        detail: String,
    },
    /// Any other answer than the one wanted.
    #[error("{registry}: {what}: it answers {status}{}", said(detail))]
    Answer {
        /// Where.
        registry: String,
        /// What was asked.
        what: String,
        /// The status.
        status: u16,
        /// The registry's words.
        detail: String,
    },
    /// The registry sends us where we don't follow.
    #[error("{registry}: {what}: it points to {to}, which is not followed: {why}")]
    Redirect {
        /// Where.
        registry: String,
        /// What was asked.
        what: String,
        /// Where it points.
        to: String,
        /// Why not.
        why: &'static str,
    },
    /// More than there may be.
    #[error("{reference}: its {what} is larger than the {most} bytes that are allowed")]
    TooLarge {
        /// The reference.
        reference: String,
        /// Which part.
        what: &'static str,
        /// Bytes allowed.
        most: u64,
    },
    /// Not what the digest says.
    #[error("{reference}: its {what} is {found}, and not {expected}: don't use it, and ask whoever runs the registry")]
    Digest {
        /// The reference.
        reference: String,
        /// Which part.
        what: &'static str,
        /// The digest that was promised.
        expected: String,
        /// The digest of what came.
        found: String,
    },
    /// Something else than a policy.
    #[error("{reference}: is no policy: {detail}")]
    NotAPolicy {
        /// The reference.
        reference: String,
        /// What it is instead.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether what was asked for is wrong, rather than the work failed.
    pub fn is_input(&self) -> bool {
        use Error::{Credentials, NotAPolicy, NotFound, Reference, TooLarge};
        matches!(self, Reference { .. } | Credentials { .. } | NotFound { .. } | NotAPolicy { .. } | TooLarge { .. })
    }
}

/// The registry's own words, where it has any.
fn said(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}
