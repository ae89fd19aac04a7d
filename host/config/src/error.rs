//! Errors.

use std::{
    io,
    path::{Path, PathBuf},
};

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
    #[error("{}{detail}", before(path, *line))]
    Wrong {
        /// The file; empty for the defaults.
        path: PathBuf,
        /// The line, from 1, where it can be told.
        line: Option<usize>,
        /// What is wrong, and what is allowed.
        detail: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The place that a message begins with; nothing for defaults, which are in no file.
fn before(path: &Path, line: Option<usize>) -> String {
    match (path.as_os_str().is_empty(), line) {
        (true, _) => String::new(),
        (false, None) => format!("{}: ", path.display()),
        (false, Some(line)) => format!("{}:{line}: ", path.display()),
    }
}
