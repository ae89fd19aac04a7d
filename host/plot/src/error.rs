//! Errors of drawing and writing.

use std::path::PathBuf;

use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error, in one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A report's ending is unknown.
    #[error("{path}: unknown report ending: expected .svg or .html")]
    Ending {
        /// The path as given.
        path: PathBuf,
    },
    /// A file can't be written.
    #[error("{path}: can't be written: {source}: choose another place")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}
