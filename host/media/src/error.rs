//! What can go wrong with a picture or clip, named to the file.

use std::{error::Error as StdError, io, path::PathBuf};

use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A cause of any type.
pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

/// Why a file can't be read or written. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// The path asked for can't be an output.
    #[error("{path}: {reason}")]
    Output {
        /// The path.
        path: PathBuf,
        /// What is wrong with it, and what to do.
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
    /// A program that the format needs is not there.
    #[error("{reason}")]
    Tool {
        /// What is needed for what, and what to do.
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
    /// ffmpeg failed or ended before its time.
    #[error("{path}: ffmpeg failed: {reason}")]
    Ffmpeg {
        /// The file that it was to write or read.
        path: PathBuf,
        /// The last line that it said, or how it ended.
        reason: String,
        /// Whether it was to read.
        reading: bool,
    },
    /// A frame has another shape than its clip, or comes out of turn.
    #[error("{path}: frame {index} of sample {sample}: {reason}")]
    Frame {
        /// The file or journal.
        path: PathBuf,
        /// From 0.
        sample: usize,
        /// From 0.
        index: usize,
        /// What it is, and what was expected.
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
    /// A file can be read, but is not what is wanted.
    #[error("{path}: {reason}")]
    Input {
        /// The file.
        path: PathBuf,
        /// What it is instead, and what to do.
        reason: String,
    },
    /// A journal is of another job.
    #[error(
        "{path}: was begun with another {what}: delete this folder to start anew, or use what the decode was begun with"
    )]
    Job {
        /// The journal's folder.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// Another process uses the journal.
    #[error("{path}: another process is decoding into it: wait for it, or write elsewhere")]
    Busy {
        /// The journal's folder.
        path: PathBuf,
    },
    /// A text is no frame rate.
    #[error("{text}: a frame rate such as 24, 23.976 or 30000/1001 is expected, of at most 1000")]
    Rate {
        /// The text.
        text: String,
    },
}

impl Error {
    /// Whether the arguments or inputs are wrong, rather than the work.
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

impl From<tilewright_outputs::Refused> for Error {
    fn from(refused: tilewright_outputs::Refused) -> Self {
        Error::Output { path: refused.path, reason: refused.reason }
    }
}
