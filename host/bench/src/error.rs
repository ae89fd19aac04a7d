//! Errors of measuring, generating and writing.

use std::path::PathBuf;

use thiserror::Error;
use tilewright_plan::words::did_you_mean;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a benchmark. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A malformed spelling of a policy.
    #[error("policy '{given}': {reason}: write NAME, FILE.wasm or NAME:key=value,key=value")]
    Spelling {
        /// As given.
        given: String,
        /// The fault.
        reason: &'static str,
    },
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] tilewright_engine::Error),
    /// A file can't be written.
    #[error("{path}: can't be written: {source}: choose another place")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The folder for generated weights can't be written.
    #[error("{path}: generated weights can't be written: {source}: set XDG_CACHE_HOME to a folder with 2 GB")]
    Cache {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// There is no folder for generated weights.
    #[error("no cache folder: set HOME or XDG_CACHE_HOME")]
    NoCache,
    /// Two pictures can't be compared.
    #[error("pictures of {found:?} and {reference:?} can't be compared")]
    Shapes {
        /// The first shape, as [N, C, H, W].
        found: Vec<i64>,
        /// The second shape.
        reference: Vec<i64>,
    },
    /// An unknown name.
    #[error("unknown {what} '{given}'{}: expected one of {known}", did_you_mean(given, known.split(", ")))]
    Unknown {
        /// The kind of name.
        what: &'static str,
        /// As given.
        given: String,
        /// The known names.
        known: String,
    },
    /// The suite has no weights for a case.
    #[error("a case has no weights")]
    NoWeights,
    /// Generated tensors don't make a file.
    #[error("weights can't be generated: {0}")]
    Weights(#[from] safetensors::SafeTensorError),
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Error::Engine(error.into())
    }
}

impl From<tilewright_torch::Error> for Error {
    fn from(error: tilewright_torch::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl Error {
    /// True if the arguments or files are wrong, false if the work failed.
    pub fn is_input(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_input(),
            Error::Spelling { .. } | Error::Unknown { .. } | Error::NoCache => true,
            Error::NoWeights | Error::Write { .. } | Error::Cache { .. } => true,
            Error::Shapes { .. } | Error::Weights(_) => false,
        }
    }
}
