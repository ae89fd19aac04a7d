//! Errors of the history. None of them keeps a picture from being decoded.

use std::{io, path::PathBuf};

use rusqlite::ErrorCode;
use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why the history can't be read or written. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// The user has no folder for it.
    #[error("no place for the history: neither XDG_STATE_HOME nor HOME is set to an absolute path")]
    NoPlace,
    /// The history's folder or the empty file can't be made.
    #[error("{}: the history can't be made here", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The file, or one that SQLite makes beside it, is not a plain file.
    #[error("{}: the history can't be used", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// The type of the file.
        #[source]
        cause: io::Error,
    },
    /// The file is no database, or a damaged one.
    #[error("{}: the history is damaged: the next decode, or 'history clear', quarantines it and starts a new one", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// A damaged file can't be renamed.
    #[error("{}: the history is damaged and can't be quarantined", path.display())]
    Stuck {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A later version of the program wrote it.
    #[error("{}: a newer tilewright wrote this history (format {found}; this one knows {known}): use that one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's format.
        found: i64,
        /// The last format that this program knows.
        known: i64,
    },
    /// The file is another program's database.
    #[error("{}: a database, but not a history of tilewright's: give another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a database, and its name is not the history's: it is another's file and left
    /// alone.
    #[error("{}: no history of tilewright's, nor any database: give another file", path.display())]
    NoHistory {
        /// The file.
        path: PathBuf,
    },
    /// Another process held the lock for longer than the timeout.
    #[error("{}: another process keeps the history locked: try again", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A record is larger than those of any decode.
    #[error("a record of {bytes} bytes is too large to be kept: at most {most}")]
    TooLarge {
        /// The record's length as JSON, in bytes.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// A record can't be written as JSON.
    #[error("a record can't be written as JSON")]
    Record(#[source] serde_json::Error),
    /// SQLite failed for another reason, such as a disk that is full or read-only.
    #[error("{}: the history can't be used", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        cause: rusqlite::Error,
    },
    /// The output can't be written.
    #[error("the export can't be written")]
    Write(#[source] io::Error),
}

impl Error {
    /// Classifies SQLite's error by what callers act on.
    pub(crate) fn sqlite(path: &std::path::Path, cause: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match cause.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Error::Corrupt { path },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy { path },
            // Given up during opening: no history takes that long.
            Some(ErrorCode::OperationInterrupted) => Error::Foreign { path },
            _ => Error::Sqlite { path, cause },
        }
    }

    /// True if the file or its path is wrong, false if the work failed.
    pub fn is_input(&self) -> bool {
        match self {
            Error::NoPlace
            | Error::Make { .. }
            | Error::NoFile { .. }
            | Error::Corrupt { .. }
            | Error::Stuck { .. }
            | Error::Newer { .. }
            | Error::Foreign { .. }
            | Error::NoHistory { .. } => true,
            Error::Busy { .. } | Error::TooLarge { .. } | Error::Record(_) | Error::Sqlite { .. } | Error::Write(_) => {
                false
            }
        }
    }
}
