//! A folder with a guessable name: entered only if it belongs to this user, and its files opened
//! only if they do.

use std::{
    ffi::OsString,
    fs::{File, TryLockError},
    io::{self, ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::ffi::OsStringExt, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, renameat, unlinkat},
    io::Errno,
};

use crate::destination::user;

/// Access for the owner alone: the contents are trusted when they are read again.
const FOLDER_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
/// The permission of everybody to write.
const OTHERS_WRITE: u32 = 0o002;

/// A folder of this user, held open: its files are found in it even if its own path changes. No
/// link is followed, and no file is opened that is another user's, is not plain, or has a second
/// name elsewhere.
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    folder: OwnedFd,
}

impl OwnFolder {
    /// Opens a folder, or makes it for this user alone.
    ///
    /// # Errors
    /// It can't be made or opened; a link or a file stands there; it is another user's, or
    /// everybody can write to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        match mkdirat(rustix::fs::CWD, path, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR | Errno::MLINK => {
                foreign("it is a link or a file, not a folder of this program's")
            }
            error => error.into(),
        })?;
        let facts = File::from(folder.try_clone()?).metadata()?;
        if facts.uid() != user() {
            return Err(foreign(&format!("it belongs to another user (user {})", facts.uid())));
        }
        if facts.mode() & OTHERS_WRITE != 0 {
            return Err(foreign("everybody can write to it"));
        }
        Ok(Self { path: path.to_owned(), folder })
    }

    /// Opens a folder as [`OwnFolder::open`] does, and locks the file of this name in it for this
    /// process; the system releases it when the process ends.
    ///
    /// # Errors
    /// As [`OwnFolder::open`]; [`ErrorKind::WouldBlock`] if another process has it.
    pub fn locked(path: &Path, name: &str) -> io::Result<(Self, File)> {
        loop {
            let folder = Self::open(path)?;
            let file = match folder.file(name, true) {
                // Another process removed the folder in between.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // A process that finished may have removed the file, and the folder, before this one
            // locked it.
            let mine = file.metadata()?.ino();
            let there = folder.file(name, false).and_then(|file| file.metadata());
            if there.is_ok_and(|there| there.ino() == mine) && folder.is_in_place()? {
                return Ok((folder, file));
            }
        }
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading and writing and keeps its contents; a missing one is made only if
    /// `create` is true.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::PermissionDenied`] for a file that [`OwnFolder`] does
    /// not open.
    pub fn file(&self, name: &str, create: bool) -> io::Result<File> {
        let flags = OFlags::RDWR | if create { OFlags::CREATE } else { OFlags::empty() };
        self.open_file(name, flags)
    }

    /// A file's whole contents.
    ///
    /// # Errors
    /// As [`OwnFolder::file`]; the file is longer than `most` bytes.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        self.open_file(name, OFlags::RDONLY)?.take(most + 1).read_to_end(&mut contents)?;
        if contents.len() as u64 > most {
            return Err(foreign("it is longer than this program makes it"));
        }
        Ok(contents)
    }

    /// Replaces a file atomically by one that is on the disk; `new` is the new one's name until
    /// then.
    ///
    /// # Errors
    /// It can't be written.
    pub fn replace(&self, name: &str, new: &str, contents: &[u8]) -> io::Result<()> {
        // A file left by an interrupted run, or planted by somebody, is never written through.
        self.remove(new)?;
        let mut file = self.open_file(new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        file.write_all(contents)?;
        file.sync_all()?;
        renameat(&self.folder, new, &self.folder, name)?;
        // So that the name is on the disk, too.
        Ok(rustix::fs::fsync(&self.folder)?)
    }

    /// Removes a file, or a link itself, if there is one.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The names of its entries.
    ///
    /// # Errors
    /// It can't be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = Dir::read_from(&self.folder)?;
        let names = entries.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
        let names: io::Result<Vec<OsString>> = names.collect();
        Ok(names?.into_iter().filter(|name| name != "." && name != "..").collect())
    }

    /// True if the folder is still at its path.
    ///
    /// # Errors
    /// The open folder can't be examined.
    pub fn is_in_place(&self) -> io::Result<bool> {
        let mine = File::from(self.folder.try_clone()?).metadata()?;
        Ok(std::fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino())))
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // Non-blocking: opening a pipe could wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.folder, name, flags, FILE_MODE).map_err(|error| match error {
            Errno::LOOP | Errno::MLINK => foreign("it is a link, which is not followed"),
            Errno::NXIO | Errno::ISDIR => foreign("it is no plain file"),
            error => error.into(),
        })?;
        let file = File::from(file);
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(foreign("it is no plain file"));
        }
        if facts.uid() != user() {
            return Err(foreign(&format!("it belongs to another user (user {})", facts.uid())));
        }
        if facts.nlink() > 1 {
            return Err(foreign("it has a second name elsewhere, which would change with it"));
        }
        Ok(file)
    }
}

fn foreign(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, reason.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn own_files_are_read_written_and_replaced() {
        let place = tempfile::tempdir().unwrap();
        let folder = OwnFolder::open(&place.path().join("own")).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(folder.file("a", false).unwrap_err().kind(), ErrorKind::NotFound);
        folder.file("a", true).unwrap().write_all(b"one").unwrap();
        folder.replace("b", "new", b"two").unwrap();
        assert_eq!((folder.read("a", 3).unwrap(), folder.read("b", 9).unwrap()), (b"one".to_vec(), b"two".to_vec()));
        assert!(folder.read("a", 2).unwrap_err().to_string().contains("longer"));
        let mut names = folder.names().unwrap();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        folder.remove("a").unwrap();
        folder.remove("a").unwrap();
        assert!(folder.is_in_place().unwrap());
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(!folder.is_in_place().unwrap());
    }

    #[test]
    fn nothing_planted_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let victim = place.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let folder = OwnFolder::open(&place.path().join("own")).unwrap();
        symlink(&victim, folder.path().join("soft")).unwrap();
        fs::hard_link(&victim, folder.path().join("hard")).unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
        for name in ["soft", "hard", "folder", "pipe"] {
            assert!(folder.file(name, true).is_err(), "{name}");
            assert!(folder.read(name, 99).is_err(), "{name}");
        }
        symlink(&victim, folder.path().join("new")).unwrap();
        folder.replace("job", "new", b"ours").unwrap();
        assert_eq!(
            (fs::read_to_string(&victim).unwrap(), folder.read("job", 9).unwrap()),
            ("precious".into(), b"ours".to_vec())
        );

        symlink(folder.path(), place.path().join("link")).unwrap();
        for name in ["link", "victim"] {
            assert!(
                OwnFolder::open(&place.path().join(name)).unwrap_err().to_string().contains("not a folder"),
                "{name}"
            );
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(OwnFolder::open(folder.path()).unwrap_err().to_string().contains("everybody"));
        if user() == 0 {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(folder.path(), Some(12_345), None).unwrap();
            assert!(OwnFolder::open(folder.path()).unwrap_err().to_string().contains("another user"));
        }
    }
}
