//! Why something can't be measured, generated or written.

use std::path::PathBuf;

use thiserror::Error;
use tilewright_plan::words::did_you_mean;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A policy's spelling is none.
    #[error("policy '{given}': {reason}: write NAME, FILE.wasm or NAME:key=value,key=value")]
    Spelling {
        /// As given.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] tilewright_engine::Error),
    /// A file can't be written.
    #[error("{path}: can't be written: {source}: choose another place")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is nowhere to keep generated weights.
    #[error("no cache folder: set HOME or XDG_CACHE_HOME, or give --vae FILE")]
    NoCache,
    /// Two pictures can't be compared.
    #[error("pictures of {found:?} and {reference:?} can't be compared")]
    Shapes {
        /// The one, as [N, C, H, W].
        found: Vec<i64>,
        /// The other.
        reference: Vec<i64>,
    },
    /// Nothing is of that name.
    #[error("unknown {what} '{given}'{}: expected one of {known}", did_you_mean(given, known.split(", ")))]
    Unknown {
        /// What was wanted.
        what: &'static str,
        /// As given.
        given: String,
        /// What there is.
        known: String,
    },
    /// The suite was given no weights for a case.
    #[error("a case has no weights: give --vae and --video-vae")]
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

impl Error {
    /// Whether the arguments or files are wrong, rather than the work having failed.
    pub fn is_input(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_input(),
            Error::Spelling { .. } | Error::Unknown { .. } | Error::NoCache => true,
            Error::NoWeights | Error::Write { .. } => true,
            Error::Shapes { .. } | Error::Weights(_) => false,
        }
    }
}
