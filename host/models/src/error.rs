//! Errors of files and of running networks, named to the tensor.

use std::path::PathBuf;

use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why a file can't be used, or a network not run. Each is one line: fault, place, remedy.
#[derive(Debug, Error)]
pub enum Error {
    /// The file can't be opened or read.
    #[error("{path}: can't be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is there but is no safetensors file.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The fault and its remedy.
        reason: String,
    },
    /// The file is sound but holds no model that is known.
    #[error("{path}: {reason}")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The file's actual contents, and the remedy.
        reason: String,
    },
    /// A tensor that the network needs is not there.
    #[error("{path}: tensor {name} is missing ({expected} expected)")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name in the file's own layout.
        name: String,
        /// The shape that the network needs.
        expected: Shape,
    },
    /// A tensor has another shape than the network needs.
    #[error("{path}: tensor {name} has shape {found}, {expected} expected")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The name in the file's own layout.
        name: String,
        /// The shape in the file.
        found: Shape,
        /// The shape that the network needs.
        expected: Shape,
    },
    /// A tensor has a type that can't be used here.
    #[error("{path}: tensor {name} is stored as {found}: f32, f16 and bf16 can be read: give a file of one of these")]
    Stored {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type in the file.
        found: String,
    },
    /// The network's part of the file holds tensors that it has no place for.
    #[error(
        "{path}: tensor {name} has no place in the {network}{more}: the file is of a network that is not supported"
    )]
    LeftOver {
        /// The file.
        path: PathBuf,
        /// The first such tensor.
        name: String,
        /// " (and 3 more)", or nothing.
        more: String,
        /// `decoder` or `encoder`.
        network: &'static str,
    },
    /// A picture can't be encoded.
    #[error("{reason}")]
    Picture {
        /// The fault and its remedy.
        reason: String,
    },
    /// A latent can't be decoded.
    #[error("{path}: {reason}")]
    Latent {
        /// The file.
        path: PathBuf,
        /// The fault and its remedy.
        reason: String,
    },
    /// Frames can't be encoded.
    #[error("the clip can't be encoded: {reason}")]
    Clip {
        /// The fault.
        reason: String,
    },
    /// A callback ended the network's run: the caller knows why.
    #[error("interrupted")]
    Cancelled,
    /// libtorch failed, out of memory included.
    #[error(transparent)]
    Torch(#[from] tilewright_torch::Error),
}

impl Error {
    /// [`Error::LeftOver`] if there are such tensors.
    pub(crate) fn refuse_left_over(path: &std::path::Path, network: &'static str, names: &[String]) -> Result<()> {
        let Some(name) = names.first() else { return Ok(()) };
        let more = if names.len() > 1 { format!(" (and {} more)", names.len() - 1) } else { String::new() };
        Err(Error::LeftOver { path: path.to_owned(), name: name.clone(), more, network })
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Error::Torch(error.into())
    }
}

impl From<tilewright_nn::Error> for Error {
    fn from(error: tilewright_nn::Error) -> Self {
        let other = |error: String| Error::Torch(tilewright_torch::Error::Torch(error));
        match error {
            tilewright_nn::Error::Torch(error) => Error::Torch(error),
            tilewright_nn::Error::Source(error) => match error.downcast::<Error>() {
                Ok(error) => *error,
                Err(error) => other(error.to_string()),
            },
            error => other(error.to_string()),
        }
    }
}

impl From<Error> for tilewright_nn::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Torch(error) => tilewright_nn::Error::Torch(error),
            error => tilewright_nn::Error::Source(Box::new(error)),
        }
    }
}

/// A tensor's extents, written as `[512, 16, 3, 3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(pub Vec<usize>);

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
