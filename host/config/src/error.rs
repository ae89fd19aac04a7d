//! Errors.

use std::{
    io,
    path::{Path, PathBuf},
};

/// An error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{}: the configuration can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file has a value that is not allowed.
    #[error("{}{detail}", before(path, *line))]
    Wrong {
        /// The file; empty for the defaults.
        path: PathBuf,
        /// The line, from 1, if it is known.
        line: Option<usize>,
        /// The fault, and the allowed values.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The beginning of a message: path and line; empty for defaults, which are in no file.
fn before(path: &Path, line: Option<usize>) -> String {
    match (path.as_os_str().is_empty(), line) {
        (true, _) => String::new(),
        (false, None) => format!("{}: ", path.display()),
        (false, Some(line)) => format!("{}:{line}: ", path.display()),
    }
}
