//! Files of the user's cache. One that can't be written is no failure: the next process does again
//! what it would have kept.

use std::{fs, io::Write, path::Path};

/// Writes a whole file, and its folder if there is none. An existing file stays unless it is
/// `replaced`. None if it can't be written, or stays.
pub fn write(place: &Path, bytes: &[u8], replaced: bool) -> Option<()> {
    let folder = place.parent()?;
    fs::create_dir_all(folder).ok()?;
    let mut file = tempfile::Builder::new().prefix(".tilewright-").tempfile_in(folder).ok()?;
    file.write_all(bytes).ok()?;
    match replaced {
        true => file.persist(place).ok().map(drop),
        false => file.persist_noclobber(place).ok().map(drop),
    }
}
