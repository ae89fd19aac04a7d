//! Modules that revisions are made from, stored by their digest: modules in force are available
//! after a restart, whatever their source.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tilewright_files::digest::{is_sha256, sha256};
use tilewright_signing::signature_path;

use crate::{Disk, Error, Result, disk};

/// The most bytes of a module that is read, above any operator's limit.
const MOST_BYTES: u64 = 1 << 30;

/// The time that an unused module is kept.
const UNUSED: Duration = Duration::from_secs(24 * 3600);

/// A folder of modules.
#[derive(Clone, Debug)]
pub struct Modules {
    folder: PathBuf,
    disk: Disk,
}

impl Modules {
    /// Opens a folder, made if it is missing.
    ///
    /// # Errors
    /// [`Error::Storage`]
    pub fn open(folder: &Path, disk: Disk) -> Result<Self> {
        if !folder.is_dir() {
            let made = fs::create_dir_all(folder).and_then(|()| disk.sync_folder(folder.parent().unwrap_or(folder)));
            made.map_err(|source| write_error(folder, source))?;
        }
        disk::remove_unfinished(folder);
        Ok(Self { folder: folder.to_owned(), disk })
    }

    /// Stores a module; returns its digest.
    ///
    /// # Errors
    /// [`Error::Storage`]
    pub fn keep(&self, bytes: &[u8]) -> Result<String> {
        let digest = sha256(bytes);
        let path = self.path(&digest).ok_or_else(|| Error::UnknownModule { digest: digest.clone() })?;
        // A damaged file is written again.
        if tilewright_files::read(&path, bytes.len() as u64).is_ok_and(|known| known == bytes)
            && let Ok(file) = fs::File::options().write(true).open(&path)
        {
            // Marked as used: the caller is going to need it.
            let _ = file.set_modified(SystemTime::now());
            return Ok(digest);
        }
        self.disk.replace(&path, bytes).map_err(|source| write_error(&path, source))?;
        Ok(digest)
    }

    /// Stores a signature beside a stored module, unless it is stored already.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::UnknownModule`]
    pub fn sign(&self, digest: &str, signature: &str) -> Result<()> {
        let module = self.path(digest).ok_or_else(|| Error::UnknownModule { digest: digest.into() })?;
        let path = signature_path(&module);
        let most = signature.len() as u64;
        if tilewright_files::read(&path, most).is_ok_and(|known| known == signature.as_bytes()) {
            return Ok(());
        }
        self.disk.replace(&path, signature.as_bytes()).map_err(|source| write_error(&path, source))
    }

    /// The module of a digest.
    ///
    /// # Errors
    /// [`Error::UnknownModule`], also if the file no longer has its digest.
    pub fn get(&self, wanted: &str) -> Result<Vec<u8>> {
        let unknown = || Error::UnknownModule { digest: wanted.chars().take(80).collect() };
        let path = self.path(wanted).ok_or_else(unknown)?;
        let bytes = tilewright_files::read(&path, MOST_BYTES).map_err(|_| unknown())?;
        if sha256(&bytes) == wanted { Ok(bytes) } else { Err(unknown()) }
    }

    /// The path of a digest's module; none for a text that is not a digest.
    pub fn path(&self, digest: &str) -> Option<PathBuf> {
        let hex = digest.strip_prefix("sha256:").filter(|_| is_sha256(digest))?;
        Some(self.folder.join(format!("{hex}.wasm")))
    }

    /// Removes every module that is not among these digests and was last stored over a day ago.
    /// Returns the removed digests.
    pub fn retain(&self, digests: &[String]) -> Vec<String> {
        let saved: Vec<PathBuf> = digests.iter().filter_map(|digest| self.path(digest)).collect();
        let is_kept = |path: &PathBuf| saved.iter().any(|module| path == module || *path == signature_path(module));
        // Modules uploaded a while ago and never put in force.
        let is_old = |path: &Path| {
            let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            modified.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > UNUSED)
        };
        let mut removed = Vec::new();
        for path in fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if is_kept(&path) || !is_old(&path) {
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => {
                    let digest = path.file_stem().map(|stem| format!("sha256:{}", stem.to_string_lossy()));
                    removed.extend(digest.filter(|digest| self.path(digest).is_some_and(|module| module == path)));
                }
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "a module that nothing needs can't be removed");
                }
            }
        }
        removed
    }
}

/// A module that has only its digest for a name, in words: `module sha256:0123456789ab`.
pub fn describe_module(digest: &str) -> String {
    format!("module {}", digest.chars().take("sha256:".len() + 12).collect::<String>())
}

fn write_error(path: &Path, source: io::Error) -> Error {
    Error::Storage { path: path.to_owned(), verb: "written", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let modules = Modules::open(&folder.path().join("modules"), Disk::default()).unwrap();
        let digest = modules.keep(b"one").unwrap();
        assert_eq!(modules.keep(b"one").unwrap(), digest);
        assert_eq!(modules.get(&digest).unwrap(), b"one");
        for wrong in ["", "sha256:", "sha256:../../etc/passwd", "/etc/passwd", &digest.replace("sha256:", "sha512:")] {
            assert!(matches!(modules.get(wrong), Err(Error::UnknownModule { .. })), "{wrong}");
        }
        fs::write(modules.path(&digest).unwrap(), b"two").unwrap();
        assert!(modules.get(&digest).is_err(), "damaged");
        let (old, new) = (modules.keep(b"old").unwrap(), modules.keep(b"new").unwrap());
        let long_ago = SystemTime::now() - 2 * UNUSED;
        fs::File::options().write(true).open(modules.path(&old).unwrap()).unwrap().set_modified(long_ago).unwrap();
        assert!(modules.retain(std::slice::from_ref(&old)).is_empty(), "needed");
        assert!(modules.get(&old).is_ok(), "needed");
        assert_eq!(modules.retain(&[]), std::slice::from_ref(&old));
        assert!(modules.get(&old).is_err() && modules.get(&new).is_ok());
    }
}
