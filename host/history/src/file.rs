//! The path of the history, and the empty file that it begins as.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use tilewright_files::{Format, LOOKED_AT, UserFolder};

use crate::{Error, Result, schema::BUSY};

/// The file's name in the user's state folder.
const FILE: &str = "history.sqlite";

/// `$XDG_STATE_HOME/tilewright/history.sqlite`, or else `~/.local/state/tilewright/history.sqlite`.
///
/// # Errors
/// [`Error::NoPlace`] if neither variable is an absolute path.
pub fn user_path() -> Result<PathBuf> {
    Ok(UserFolder::State.path().ok_or(Error::NoPlace)?.join(FILE))
}

/// Makes an empty file that only the user can read, and missing parent folders.
pub(crate) fn create_empty(path: &Path) -> Result<()> {
    let made = || -> io::Result<()> {
        if fs::symlink_metadata(path).is_ok() {
            return Ok(());
        }
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Closed before it gets its name: closing a database that SQLite has open elsewhere in this
        // process drops SQLite's locks.
        let empty = tempfile::Builder::new().prefix(".history-").tempfile_in(folder)?.into_temp_path();
        match empty.persist_noclobber(path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    };
    made().map_err(|cause| Error::Make { path: path.to_owned(), cause })
}

/// The size limit of a history, in bytes: 20,000 records of a few thousand bytes are a tenth of it.
const MOST_BYTES: u64 = 1 << 30;

/// Checks that the file, and those that SQLite names after it, are plain and of reasonable size:
/// SQLite would wait for a pipe for ever. No file is opened: closing one that SQLite has open
/// elsewhere in this process drops SQLite's locks.
pub(crate) fn check_plain(path: &Path) -> Result<()> {
    for ending in ["", "-journal", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        let Ok(facts) = fs::metadata(&name) else {
            // The file is missing, or SQLite reports its fault.
            continue;
        };
        tilewright_files::regular(&facts).map_err(|cause| Error::NoFile { path: name.into(), cause })?;
        if facts.len() > MOST_BYTES {
            return Err(Error::Corrupt { path: path.to_owned() });
        }
    }
    Ok(())
}

/// True if a file that SQLite can't read may be a damaged history: it has the history's own name,
/// is empty, or begins as a database. Any other file is another's, such as a model that was named
/// by mistake, and is never renamed.
pub(crate) fn may_be_history(path: &Path) -> bool {
    // The name first: closing a file that SQLite has open elsewhere in this process drops SQLite's
    // locks.
    if path.file_name().is_some_and(|name| name == FILE) {
        return true;
    }
    let mut start = Vec::new();
    let read = tilewright_files::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    read.is_ok() && matches!(Format::of(&start), Some(Format::Empty | Format::Sqlite))
}

/// The condition on renames of a file while its lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// The file is being opened, and nobody may rename it. SQLite finds its logs by name: a process
    /// that opened the old file would take the new one's logs for its own.
    Shared,
    /// The caller alone may rename it.
    Exclusive,
}

/// Locks the file's folder while the result lives. The file itself is not locked: closing a file
/// that SQLite has open elsewhere in this process drops SQLite's locks.
pub(crate) fn lock_folder(path: &Path, hold: LockMode) -> Result<Option<File>> {
    let started = Instant::now();
    let Ok(folder) = File::open(path.parent().unwrap_or(Path::new("/"))) else {
        // The folder can be entered, not read; opening the file reports faults.
        return Ok(None);
    };
    loop {
        let locked = match hold {
            LockMode::Shared => folder.try_lock_shared(),
            LockMode::Exclusive => folder.try_lock(),
        };
        match locked {
            Ok(()) => return Ok(Some(folder)),
            Err(TryLockError::WouldBlock) if started.elapsed() < BUSY => thread::sleep(BUSY / 1000),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: path.to_owned() }),
            // A file system without locks; SQLite reports it if it needs them.
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
}
