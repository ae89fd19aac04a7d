//! Why a job can't be started or did not end in a picture.

use thiserror::Error;
use tilewright_plan::{Failure, bytes};

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A file is unsound or of the wrong kind.
    #[error(transparent)]
    Model(#[from] tilewright_models::Error),
    /// libtorch or the device failed.
    #[error(transparent)]
    Torch(#[from] tilewright_torch::Error),
    /// No plan fits in the memory limit.
    #[error(
        "a memory limit of {} is too little for this {what}: the least is about {} (tiles of {tile} pixels)",
        bytes::display(*limit), bytes::display(*least)
    )]
    DoesNotFit {
        /// "picture" or "clip".
        what: &'static str,
        /// The limit in bytes.
        limit: u64,
        /// What the leanest plan would need, in bytes.
        least: u64,
        /// The side of its tiles.
        tile: u32,
    },
    /// Every attempt failed.
    #[error("gave up after {attempts} attempts, the last: {last}; {advice}")]
    Exhausted {
        /// How many were made.
        attempts: usize,
        /// Why the last one failed.
        last: Failure,
        /// What to do.
        advice: String,
    },
    /// Frames that were decoded could not be kept.
    #[error(transparent)]
    Sink(Box<dyn std::error::Error + Send + Sync>),
    /// Frames that were to be encoded could not be had.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// The user or the caller ended it.
    #[error("interrupted")]
    Interrupted,
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Error::Torch(error.into())
    }
}

impl Error {
    /// Whether the arguments or files are wrong, rather than the work having failed.
    pub fn is_input(&self) -> bool {
        match self {
            // A device that is not there was asked for.
            Error::Torch(tilewright_torch::Error::Device { .. }) => true,
            Error::Model(tilewright_models::Error::Torch(_)) | Error::Torch(_) => false,
            Error::Model(_) | Error::DoesNotFit { .. } | Error::Source(_) => true,
            Error::Exhausted { .. } | Error::Sink(_) | Error::Interrupted => false,
        }
    }
}
