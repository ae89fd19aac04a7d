//! Files that stand under their names whole or not at all.

use std::{fs, io, io::Write, os::unix::fs::PermissionsExt, path::Path};

/// Writes a file under another name in its folder and renames it.
///
/// # Errors
/// It can't be written; nothing of it is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The umask takes away what the user does not want, as for every file.
    let mode = fs::Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".tilewright-").permissions(mode).tempfile_in(folder)?;
    file.write_all(contents)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
