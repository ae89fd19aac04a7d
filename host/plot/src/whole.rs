//! Atomic writes of files.

use std::{io, path::Path};

/// Writes a file atomically: under another name in its folder, which is then renamed.
///
/// # Errors
/// It can't be written; nothing of it is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    tilewright_outputs::write_whole(path, contents)
}
