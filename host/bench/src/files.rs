//! Atomic writes of files, and the cache folder.

use std::path::{Path, PathBuf};

use tilewright_files::UserFolder;

use crate::{Error, Result};

/// Writes a file atomically.
///
/// # Errors
/// [`Error::Write`]; no part of the file is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    tilewright_outputs::write_whole(path, contents).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// This user's cache folder.
///
/// # Errors
/// [`Error::NoCache`] if the environment names none.
pub fn cache_folder() -> Result<PathBuf> {
    UserFolder::Cache.path().ok_or(Error::NoCache)
}
