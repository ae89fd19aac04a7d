//! Files that stand under their names whole or not at all, and the folder for what can be made again.

use std::path::{Path, PathBuf};

use tilewright_files::UserFolder;

use crate::{Error, Result};

/// Writes a file under another name in its folder and renames it.
///
/// # Errors
/// [`Error::Write`]; nothing of the file is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    tilewright_outputs::write_whole(path, contents).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// This user's folder for what can be made again.
///
/// # Errors
/// [`Error::NoCache`] where the environment names none.
pub fn cache_folder() -> Result<PathBuf> {
    UserFolder::Cache.path().ok_or(Error::NoCache)
}
