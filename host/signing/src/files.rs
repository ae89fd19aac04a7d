//! Files of keys and signatures: read up to a limit, written atomically, and secret ones readable
//! by their owner alone.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;
use tilewright_outputs::{place, place_new, stage};

use crate::{Error, KeyPair, Result};

/// Bytes of the largest file that can be a key or a signature.
pub const MOST_BYTES: u64 = 16 << 10;

/// The path of a file's signature: its whole name and `.minisig`, as minisign has it.
pub fn signature_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".minisig");
    name.into()
}

/// Reads a key's or signature's text.
///
/// # Errors
/// [`Error::Unreadable`], also for a file that is too long or not a text.
pub fn read_text(path: &Path) -> Result<String> {
    let unreadable = |source| Error::Unreadable { path: path.into(), source };
    let file = tilewright_files::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(unreadable(io::Error::other("it is too long to be a key or a signature")));
    }
    Ok(text)
}

/// Writes a pair: the secret key for the owner alone, the public one for all. Existing files are
/// replaced only with `replace`.
///
/// # Errors
/// [`Error::Stands`] or [`Error::Unwritable`].
pub fn write_pair(pair: &KeyPair, secret: &Path, public: &Path, replace: bool) -> Result<()> {
    if let Some(path) = [secret, public].into_iter().find(|path| !replace && path.symlink_metadata().is_ok()) {
        return Err(Error::Stands { path: path.into() });
    }
    // Both are known to be writable before one replaces an older file.
    let whole =
        [write_temporary(secret, pair.secret_text(), 0o600)?, write_temporary(public, &pair.public_text(), 0o666)?];
    whole.into_iter().zip([secret, public]).try_for_each(|(file, path)| persist_new(file, path, replace))
}

/// Writes a signature beside its file, in the place of an older one.
///
/// # Errors
/// [`Error::Unwritable`].
pub fn write_signature(path: &Path, text: &str) -> Result<()> {
    persist_new(write_temporary(path, text, 0o666)?, path, true)
}

/// A complete temporary file for this path. `mode` is its mode before the user's umask.
fn write_temporary(path: &Path, text: &str, mode: u32) -> Result<NamedTempFile> {
    stage(path, text.as_bytes(), mode).map_err(|source| Error::Unwritable { path: path.into(), source })
}

fn persist_new(file: NamedTempFile, path: &Path, replace: bool) -> Result<()> {
    // A key that appeared there in the meantime stays, too.
    let unwritable = |source| Error::Unwritable { path: path.into(), source };
    if replace {
        return place(file, path).map_err(unwritable);
    }
    match place_new(file, path).map_err(unwritable)? {
        None => Ok(()),
        Some(_) => Err(Error::Stands { path: path.into() }),
    }
}

/// True if others than the owner can read this file.
pub fn others_can_read(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockedKey, PublicKey};

    #[test]
    fn a_pair_is_written_for_its_owner_and_never_over_another() {
        let folder = tempfile::tempdir().unwrap();
        let (secret, public) = (folder.path().join("me.key"), folder.path().join("me.pub"));
        let first = KeyPair::generate(None).unwrap();
        write_pair(&first, &secret, &public, false).unwrap();
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!others_can_read(&secret));
        assert_eq!(PublicKey::read(&public).unwrap(), first.public);
        assert!(!LockedKey::read(&secret).unwrap().is_encrypted());

        let second = KeyPair::generate(None).unwrap();
        for gone in [&public, &secret] {
            assert!(matches!(write_pair(&second, &secret, &public, false), Err(Error::Stands { .. })));
            assert_eq!(LockedKey::read(&secret).unwrap().open(String::new()).unwrap().public().unwrap(), first.public);
            fs::rename(gone, folder.path().join("aside")).unwrap();
            assert!(matches!(write_pair(&second, &secret, &public, false), Err(Error::Stands { .. })));
            fs::rename(folder.path().join("aside"), gone).unwrap();
        }
        write_pair(&second, &secret, &public, true).unwrap();
        assert_eq!(PublicKey::read(&public).unwrap(), second.public);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left over");
    }

    #[test]
    fn what_can_be_no_key_is_not_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("long");
        fs::write(&file, vec![b'x'; MOST_BYTES as usize + 1]).unwrap();
        for path in [&file, folder.path(), Path::new("/dev/zero"), Path::new("nowhere")] {
            assert!(matches!(read_text(path), Err(Error::Unreadable { .. })), "{}", path.display());
        }
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(matches!(read_text(&pipe), Err(Error::Unreadable { .. })), "nobody writes to it");
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(matches!(read_text(&file), Err(Error::Unreadable { .. })), "no text");
    }
}
