//! Errors.

use std::{io, path::PathBuf};

/// What goes wrong with keys and signatures, apart from a signature that doesn't hold: that is a [`crate::Refusal`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("{}: can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("{}: can't be written", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A key stands where one would be written.
    #[error("{}: a key stands there already, and what it signed can't be signed again without it: choose another name, or give --force", path.display())]
    Stands {
        /// The file.
        path: PathBuf,
    },
    /// A text that is no public key.
    #[error(
        "{}is not a minisign public key: one is 56 characters that begin with RW, or the .pub file that holds them",
        named(origin.as_ref())
    )]
    NotPublic {
        /// The file, where it is one.
        origin: Option<String>,
    },
    /// A public key was wanted, and this is a secret one.
    #[error("{}holds a secret key: give the public one that was made with it, and keep this one to yourself", named(origin.as_ref()))]
    Secret {
        /// The file, where it is one.
        origin: Option<String>,
    },
    /// A file that is no secret key.
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
    /// A comment that can't stand in a signature.
    #[error("the comment {what}: give one of at most {most} characters in one line")]
    Comment {
        /// What is wrong with it.
        what: &'static str,
        /// Characters allowed.
        most: usize,
    },
    /// The system gives no randomness, or no memory to open a key.
    #[error("keys and signatures can't be made here: {detail}")]
    Unable {
        /// The library's words.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn named(origin: Option<&String>) -> String {
    origin.map_or_else(|| "this ".into(), |origin| format!("{origin}: this "))
}

impl From<minisign::PError> for Error {
    fn from(error: minisign::PError) -> Self {
        Error::Unable { detail: error.to_string() }
    }
}
