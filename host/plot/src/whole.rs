//! Files that stand under their names whole or not at all.

use std::{io, path::Path};

/// Writes a file under another name in its folder and renames it.
///
/// # Errors
/// It can't be written; nothing of it is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    tilewright_outputs::write_whole(path, contents)
}
