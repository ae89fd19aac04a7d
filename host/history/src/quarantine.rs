//! Quarantine of damaged files: each is renamed, never deleted, since its records may be
//! recoverable.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    Error, Result,
    file::{LockMode, lock_folder},
    schema,
};

/// Renames a damaged file to `NAME.broken-TIME`, with its log, and returns the new path; none if
/// another process did so first.
pub(crate) fn quarantine(path: &Path) -> Result<Option<PathBuf>> {
    let stuck = |cause| Error::Stuck { path: path.to_owned(), cause };
    // Several processes may find the damage at once, and the slower ones must not move the new
    // file.
    let _held = lock_folder(path, LockMode::Exclusive)?;
    let sound = schema::connect(path).and_then(|connection| schema::damage(&connection, path));
    match sound {
        Ok(None) => return Ok(None),
        Ok(Some(_)) | Err(Error::Corrupt { .. }) => {}
        Err(error) => return Err(error),
    }
    let to = free_name(path).map_err(stuck)?;
    // The log first: left behind, it would be replayed into the new file.
    for part in ["-wal", "-shm", ""] {
        match fs::rename(with(path, part), with(&to, part)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(stuck(error)),
            _ => {}
        }
    }
    Ok(Some(to))
}

fn free_name(path: &Path) -> io::Result<PathBuf> {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace([':', '-'], "");
    let mut name = with(path, &format!(".broken-{time}"));
    let mut count = 1;
    while fs::exists(&name)? {
        count += 1;
        name = with(path, &format!(".broken-{time}-{count}"));
    }
    Ok(name)
}

/// The path with a suffix after its whole name, ending included.
fn with(path: &Path, after: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(after);
    name.into()
}
