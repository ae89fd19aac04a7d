//! Errors of files, named to the tensor.

use std::path::PathBuf;

use thiserror::Error;
use tilewright_files::Quote;
use tilewright_mapped::Fault;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why a file can't be used. Each is one line: fault, place, remedy.
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
    /// The file was cut short or written over while it was read.
    #[error(transparent)]
    Changed(Fault),
    /// The file exists but is of no kind that holds weights, or is damaged.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The fault and its remedy.
        reason: String,
    },
    /// The file is a text.
    #[error("{path}: {reason}")]
    Text {
        /// The file.
        path: PathBuf,
        /// The fault and its remedy.
        reason: String,
        /// The text's beginning.
        source: Quote,
    },
    /// A tensor that is needed is not there.
    #[error("{path}: tensor {name} is missing ({expected} expected)")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name in the file's own layout.
        name: String,
        /// The shape that is needed.
        expected: Shape,
    },
    /// A tensor has another shape than is needed.
    #[error("{path}: tensor {name} has shape {found}, {expected} expected")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The name in the file's own layout.
        name: String,
        /// The shape in the file.
        found: Shape,
        /// The shape that is needed.
        expected: Shape,
    },
    /// A tensor has a type that can't be used here.
    #[error(
        "{path}: tensor {name} is stored as {found}: f64, f32, f16, bf16 and FP8 can be read: give a file of one of these"
    )]
    Stored {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type in the file.
        found: String,
    },
    /// A tensor is quantized in a way that can't be expanded, or its scales are unsound.
    #[error("{path}: tensor {name} {reason}")]
    Quantized {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The fault and its remedy.
        reason: String,
    },
    /// libtorch failed, out of memory included.
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Torch(#[from] tilewright_torch::Error),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Changed(_) => Self::Changed(fault),
            Fault::Unreadable { path, source } => Self::Read { path, source },
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
