//! Errors of running and of building a network.

use tilewright_plan::Dtype;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A failure in libtorch, out of memory included.
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Torch(#[from] tilewright_torch::Error),
    /// A type that no tensor is computed in.
    #[error("nothing is computed in {0}")]
    Dtype(Dtype),
    /// A weight can't be had, or has another shape than its layer needs.
    #[error("{name}: {detail}")]
    Weight {
        /// The weight.
        name: String,
        /// The reason.
        detail: String,
    },
    /// A failure of a source of weights, in its own words.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// Shapes that an operation can't take.
    #[error("{operation} can't take the shapes {shapes}")]
    Shapes {
        /// The operation.
        operation: &'static str,
        /// The shapes of its operands.
        shapes: String,
    },
}

#[cfg(feature = "torch")]
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Error::Torch(error.into())
    }
}
