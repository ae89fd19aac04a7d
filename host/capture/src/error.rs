//! Errors of captures and reports. Each is one line; the system's own words are its source.

use std::{io, path::PathBuf};

use thiserror::Error;

/// A result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of captures and reports.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// A file or folder can't be read, written or made.
    #[error("{path}: can't be {action}", path = .path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// The path can't be a capture's folder.
    #[error("{folder}: {reason}", folder = .folder.display())]
    Folder { folder: PathBuf, reason: &'static str },

    /// A part that a capture can't do without would pass the limit.
    #[error(
        "{file}: the capture would take {needed} bytes, more than the limit of {limit}: give --capture-limit {needed} \
         or more"
    )]
    Limit { file: String, needed: u64, limit: u64 },

    /// The disk would fill.
    #[error(
        "{folder}: {needed} bytes more would leave less than {reserve} of the {free} bytes that are free: free some, \
         or capture to another disk",
        folder = .folder.display()
    )]
    NoRoom { folder: PathBuf, needed: u64, free: u64, reserve: u64 },

    /// The capture failed or finished before, and nothing can be added to it.
    #[error("the capture has ended, and takes nothing more")]
    Ended,

    /// A stage has a number that another has, too.
    #[error("stage {folder}: is in the capture twice: give each a number of its own")]
    Twice { folder: String },

    /// A stage that has begun has not been finished.
    #[error("stage {folder}: has not finished")]
    Unfinished { folder: String },

    /// A tensor can't be written.
    #[error("tensor '{name}': {reason}")]
    Tensor { name: String, reason: String },

    /// A pattern of layer names can't be understood.
    #[error("layers '{pattern}': {reason}, as in double_blocks.*.img_attn.qkv or **.norm")]
    Pattern { pattern: String, reason: &'static str },

    /// The folder is no capture, or an incomplete one.
    #[error("{folder}: {reason}", folder = .folder.display())]
    NoCapture { folder: PathBuf, reason: String },

    /// The capture has another format.
    #[error(
        "{folder}: a capture of format {found}, and this program reads format {ours}: use Tilewright {tilewright}",
        folder = .folder.display()
    )]
    Format { folder: PathBuf, found: u64, ours: u32, tilewright: String },

    /// The capture was made by another version.
    #[error(
        "{folder}: a capture of Tilewright {found}, and this is {ours}: capture again, or use Tilewright {found}",
        folder = .folder.display()
    )]
    Version { folder: PathBuf, found: String, ours: &'static str },

    /// The capture is not as it was written.
    #[error("{folder}: {file} {reason}: capture again", folder = .folder.display())]
    Changed { folder: PathBuf, file: String, reason: String },

    /// A file can't go into a report.
    #[error("{name}: can't go into a report: {reason}")]
    Extra { name: String, reason: String },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action, source }
    }
}
