//! Errors of files and of running networks, named to the tensor.

use std::path::PathBuf;

use thiserror::Error;
use tilewright_checkpoint::{Checkpoint, Error as FileError};

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why a file can't be used, or a network not run. Each is one line: fault, place, remedy.
#[derive(Debug, Error)]
pub enum Error {
    /// A file can't be read, or does not hold a tensor as the network needs it.
    #[error(transparent)]
    File(FileError),
    /// The file is sound but holds no model that is known.
    #[error("{path}: {reason}")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The file's actual contents, and the remedy.
        reason: String,
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
    /// The network's operations can't take what they were given.
    #[error("{0}")]
    Network(String),
    /// libtorch failed, out of memory included.
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Torch(tilewright_torch::Error),
}

impl Error {
    /// True if a file was cut short or written over while it was read: what it was a fault of is no
    /// longer there.
    pub fn is_of_changed_file(&self) -> bool {
        matches!(self, Error::File(FileError::Changed(_)))
    }

    /// The error of a tensor that is stored in a type that can't be loaded.
    pub(crate) fn stored(file: &Checkpoint, name: &str) -> Self {
        let found = file.find_stored(name).map_or_else(String::new, |stored| stored.to_string());
        FileError::Stored { path: file.path().to_owned(), name: name.to_owned(), found }.into()
    }

    /// [`Error::LeftOver`] if there are such tensors.
    pub(crate) fn refuse_left_over(path: &std::path::Path, network: &'static str, names: &[String]) -> Result<()> {
        let Some(name) = names.first() else { return Ok(()) };
        let more = if names.len() > 1 { format!(" (and {} more)", names.len() - 1) } else { String::new() };
        Err(Error::LeftOver { path: path.to_owned(), name: name.clone(), more, network })
    }
}

#[cfg(feature = "torch")]
impl From<tilewright_torch::Error> for Error {
    fn from(error: tilewright_torch::Error) -> Self {
        match error {
            tilewright_torch::Error::Cancelled => Error::Cancelled,
            error => Error::Torch(error),
        }
    }
}

#[cfg(feature = "torch")]
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        tilewright_torch::Error::from(error).into()
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            #[cfg(feature = "torch")]
            FileError::Torch(error) => error.into(),
            error => Error::File(error),
        }
    }
}

impl From<tilewright_nn::Error> for Error {
    fn from(error: tilewright_nn::Error) -> Self {
        match error {
            #[cfg(feature = "torch")]
            tilewright_nn::Error::Torch(error) => error.into(),
            tilewright_nn::Error::Source(error) => match error.downcast::<Error>() {
                Ok(error) => *error,
                Err(error) => Error::Network(error.to_string()),
            },
            error => Error::Network(error.to_string()),
        }
    }
}

impl From<Error> for tilewright_nn::Error {
    fn from(error: Error) -> Self {
        match error {
            #[cfg(feature = "torch")]
            Error::Torch(error) => tilewright_nn::Error::Torch(error),
            error => tilewright_nn::Error::Source(Box::new(error)),
        }
    }
}
