//! Atomic writes of files, and the cache folder.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// Writes a file atomically.
///
/// # Errors
/// [`Error::Write`]; no part of the file is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    tilewright_plot::write_whole(path, contents).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// This user's cache folder.
///
/// # Errors
/// [`Error::NoCache`] if the environment names none.
pub fn cache_folder() -> Result<PathBuf> {
    let home = || env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    Ok(cache.ok_or(Error::NoCache)?.join("tilewright"))
}
