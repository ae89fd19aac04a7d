//! The hidden folder in which a capture is written. Its lock lasts as long as its process, so that
//! the folders of processes that were killed are known, and removed by the next capture.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use tilewright_outputs::{OwnFolder, folder_of};

/// The prefix of the names of hidden folders.
pub(crate) const PREFIX: &str = ".tilewright-capture-";

/// The file that is locked. It stands beside the contents, not among them: it stays locked while
/// those are renamed, or another process could take them for left behind.
const LOCK: &str = "lock";

/// The folder of the contents in a hidden folder.
const CONTENTS: &str = "contents";

/// The most names that are tried. One is lost only if another process looks for leftovers between
/// the making of the folder and its locking.
const TRIES: u32 = 16;

/// A hidden folder of this process, for its user alone; it is removed when dropped.
#[derive(Debug)]
pub(crate) struct Hidden {
    path: PathBuf,
    contents: PathBuf,
    _lock: (OwnFolder, File),
}

impl Hidden {
    /// Makes one in this folder, and removes those that killed processes left there.
    ///
    /// # Errors
    /// None can be made there.
    pub fn create(parent: &Path) -> io::Result<Self> {
        // The error of a missing one says more than that of a file that can't be made in it.
        fs::metadata(parent)?;
        remove_leftovers(parent);
        for _ in 0..TRIES {
            let private = fs::Permissions::from_mode(0o700);
            let made = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(parent);
            // The error's own words name the hidden folder, which says nothing to a user.
            let path = made.map_err(|error| io::Error::from(error.kind()))?.keep();
            let lock = match OwnFolder::locked(&path, LOCK) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Best effort: the next capture finds it otherwise.
                    let _ = fs::remove_dir_all(&path);
                    return Err(error);
                }
            };
            let hidden = Self { contents: path.join(CONTENTS), path, _lock: lock };
            make_folder(&hidden.contents)?;
            return Ok(hidden);
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// The folder of the contents.
    pub fn contents(&self) -> &Path {
        &self.contents
    }

    /// Renames the contents to a free name or that of an empty folder, on the same file system.
    ///
    /// # Errors
    /// Something else stands there.
    pub fn place(self, target: &Path) -> io::Result<()> {
        fs::rename(&self.contents, target)?;
        File::open(folder_of(target))?.sync_all()
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Best effort: the next capture finds what is left.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes a folder for this user alone.
///
/// # Errors
/// Something stands there, or it can't be made.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Removes the hidden folders of processes that are no more; those that can't be removed stay.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_hidden = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if !is_hidden || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        // It refuses another user's folder, and a living process's.
        if let Ok(_lock) = OwnFolder::locked(&entry.path(), LOCK) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_the_dead_go_and_folders_of_the_living_stay() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let living = Hidden::create(place.path()).unwrap();
        let dead = at(&format!("{PREFIX}dead"));
        fs::create_dir_all(dead.join("contents/1-text")).unwrap();
        fs::write(dead.join("contents/1-text/a"), "").unwrap();
        fs::write(dead.join(LOCK), "").unwrap();
        fs::create_dir(at(&format!("{PREFIX}just-made"))).unwrap();
        fs::create_dir(at("other")).unwrap();
        fs::write(at(&format!("{PREFIX}file")), "").unwrap();
        std::os::unix::fs::symlink("other", at(&format!("{PREFIX}link"))).unwrap();

        let second = Hidden::create(place.path()).unwrap();
        assert!(living.contents().is_dir() && second.contents().is_dir());
        assert_eq!(fs::metadata(second.contents()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!dead.exists() && !at(&format!("{PREFIX}just-made")).exists());
        for name in ["other".to_owned(), format!("{PREFIX}file"), format!("{PREFIX}link")] {
            assert!(at(&name).exists(), "{name}");
        }
        let path = second.path.clone();
        drop(second);
        assert!(!path.exists());
        living.place(&at("placed")).unwrap();
        assert!(at("placed").is_dir());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 4);
    }
}
