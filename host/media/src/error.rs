//! Errors of reading and writing pictures and clips, each with its file.

use std::{error::Error as StdError, io, path::PathBuf};

use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A cause of any type.
pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

/// The reason why a file can't be read or written. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// The path can't be an output.
    #[error("{path}: {reason}")]
    Output {
        /// The path.
        path: PathBuf,
        /// The fault, and the remedy.
        reason: String,
    },
    /// The output's folder can't be written.
    #[error("{path}: can't be written: {cause}: choose another folder with -o")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A program that the format needs is missing.
    #[error("{reason}")]
    Tool {
        /// The program, its purpose, and the remedy.
        reason: String,
    },
    /// Writing failed.
    #[error("{path}: can't be written")]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Cause,
    },
    /// ffmpeg failed or ended too early.
    #[error("{path}: ffmpeg failed: {reason}")]
    Ffmpeg {
        /// The file that ffmpeg was to write or read.
        path: PathBuf,
        /// The last line of ffmpeg's messages, or its exit status.
        reason: String,
        /// True if it was to read.
        reading: bool,
    },
    /// A frame has another shape than its clip, or comes out of order.
    #[error("{path}: frame {index} of sample {sample}: {reason}")]
    Frame {
        /// The file or journal.
        path: PathBuf,
        /// From 0.
        sample: usize,
        /// From 0.
        index: usize,
        /// The frame's properties, and the expected ones.
        reason: String,
    },
    /// A file can't be opened or read.
    #[error("{path}: can't be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Cause,
    },
    /// A file can be read, but is not of the expected kind.
    #[error("{path}: {reason}")]
    Input {
        /// The file.
        path: PathBuf,
        /// The kind of file that it is, and the remedy.
        reason: String,
    },
    /// The journal belongs to another job.
    #[error("{path}: was begun with another {what}: delete this folder to start over, or repeat the first run")]
    Job {
        /// The journal's folder.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// Another process uses the journal.
    #[error("{path}: another process is decoding into it: wait for it, or write elsewhere")]
    Busy {
        /// The journal's folder.
        path: PathBuf,
    },
    /// A text that is not a frame rate.
    #[error("{text}: a frame rate such as 24, 23.976 or 30000/1001 is expected, of at most 1000")]
    Rate {
        /// The text.
        text: String,
    },
}

impl Error {
    /// True if the arguments or inputs are wrong, false if the work failed.
    pub fn is_input(&self) -> bool {
        match self {
            Error::Write { .. } | Error::Frame { .. } => false,
            Error::Ffmpeg { reading, .. } => *reading,
            _ => true,
        }
    }

    pub(crate) fn write(path: impl Into<PathBuf>, cause: impl Into<Cause>) -> Self {
        Error::Write { path: path.into(), source: cause.into() }
    }

    pub(crate) fn read(path: impl Into<PathBuf>, cause: impl Into<Cause>) -> Self {
        Error::Read { path: path.into(), source: cause.into() }
    }

    pub(crate) fn input(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Error::Input { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn output(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Error::Output { path: path.into(), reason: reason.into() }
    }
}

impl From<tilewright_outputs::OutputRefused> for Error {
    fn from(refused: tilewright_outputs::OutputRefused) -> Self {
        Error::Output { path: refused.path, reason: refused.reason }
    }
}
