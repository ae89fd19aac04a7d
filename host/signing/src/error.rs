//! Errors.

use std::{io, path::PathBuf};

/// Errors of keys and signatures. A signature that doesn't hold is a [`crate::Refusal`] instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("{}: can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("{}: can't be written", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A key exists already at the path.
    #[error("{}: a key stands there already, and what it signed can't be signed again without it: choose another name", path.display())]
    Stands {
        /// The file.
        path: PathBuf,
    },
    /// A text that is not a public key.
    #[error(
        "{}is not a minisign public key: one is 56 characters that begin with RW, or the .pub file that holds them",
        path_prefix(origin.as_ref())
    )]
    NotPublic {
        /// The file, if it is one.
        origin: Option<String>,
    },
    /// A secret key in the place of a public one.
    #[error("{}holds a secret key: give the public one that was made with it, and keep this one to yourself", path_prefix(origin.as_ref()))]
    Secret {
        /// The file, if it is one.
        origin: Option<String>,
    },
    /// A file that is not a secret key.
    #[error("{}: not a minisign secret key: 'tilewright policy keygen' makes one", path.display())]
    NotSecret {
        /// The file.
        path: PathBuf,
    },
    /// The password doesn't open the key.
    #[error("{}: this password doesn't open the key", path.display())]
    Password {
        /// The file.
        path: PathBuf,
    },
    /// A comment that a signature can't hold.
    #[error("the comment {what}: give one of at most {most} characters in one line")]
    Comment {
        /// The fault.
        what: &'static str,
        /// Characters allowed.
        most: usize,
    },
    /// The system gives no randomness, or no memory to open a key.
    #[error("keys and signatures can't be made here: {detail}")]
    Unable {
        /// The library's message.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn path_prefix(origin: Option<&String>) -> String {
    origin.map_or_else(|| "this ".into(), |origin| format!("{origin}: this "))
}

impl From<minisign::PError> for Error {
    fn from(error: minisign::PError) -> Self {
        Error::Unable { detail: error.to_string() }
    }
}
