//! Where the history lies, and the empty file that it begins as.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The file's name in the user's state folder.
const FILE: &str = "history.sqlite";

/// `$XDG_STATE_HOME/tilewright/history.sqlite`, or else `~/.local/state/tilewright/history.sqlite`.
///
/// # Errors
/// [`Error::NoPlace`] where neither variable is an absolute path.
pub fn user_path() -> Result<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    Ok(state.ok_or(Error::NoPlace)?.join("tilewright").join(FILE))
}

/// Makes an empty file that only the user can read, and the folders above it, where they are missing.
pub(crate) fn make(path: &Path) -> Result<()> {
    let made = || -> io::Result<()> {
        if fs::symlink_metadata(path).is_ok() {
            return Ok(());
        }
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Closed before it gets its name: closing a database that SQLite has open elsewhere in this process drops SQLite's locks.
        let empty = tempfile::Builder::new().prefix(".history-").tempfile_in(folder)?.into_temp_path();
        match empty.persist_noclobber(path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    };
    made().map_err(|cause| Error::Make { path: path.to_owned(), cause })
}
