//! Errors.

use std::{io, path::PathBuf};

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{}: the configuration can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file says something that can't be meant.
    #[error("{}{}: {detail}", path.display(), line.map_or_else(String::new, |line| format!(":{line}")))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1, where it can be told.
        line: Option<usize>,
        /// What is wrong, and what is allowed.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
