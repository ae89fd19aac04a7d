//! Errors of analysis and writing.

use std::path::PathBuf;

use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error, in one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A recording has no stage, or several.
    #[error("recording of {stage}: {found} events are the stage, 1 was expected: record one stage at a time")]
    Stages {
        /// The stage as the facts name it.
        stage: String,
        /// Events that are a stage.
        found: usize,
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

/// The error of a file, for `map_err`.
pub(crate) fn write_error(path: &std::path::Path) -> impl Fn(std::io::Error) -> Error {
    |source| Error::Write { path: path.to_owned(), source }
}
