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
    /// The file is empty, but for comments.
    #[error("{}: is empty: write the configuration into it, or delete it to have the defaults", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file's text can't be read as a configuration.
    #[error("{}{detail}", before(path, *line))]
    Unparsed {
        /// The file.
        path: PathBuf,
        /// The line, from 1, if it is known.
        line: Option<usize>,
        /// The fault, and the allowed values. It may quote the file.
        detail: String,
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

impl Error {
    /// The error in a line that quotes nothing of a file that could not be read as a configuration:
    /// another file may lie in its place.
    pub fn without_quotes(&self) -> String {
        match self {
            Error::Unparsed { path, line, .. } => {
                format!("{}is not what a configuration has there: the log says what is wrong", before(path, *line))
            }
            Error::Unreadable { path, .. } => format!("{}: the configuration can't be read", path.display()),
            Error::Empty { .. } | Error::Wrong { .. } => self.to_string(),
        }
    }
}

/// The beginning of a message: path and line; empty for defaults, which are in no file.
fn before(path: &Path, line: Option<usize>) -> String {
    match (path.as_os_str().is_empty(), line) {
        (true, _) => String::new(),
        (false, None) => format!("{}: ", path.display()),
        (false, Some(line)) => format!("{}:{line}: ", path.display()),
    }
}
