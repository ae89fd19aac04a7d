//! The path of the configuration file.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use tilewright_files::UserFolder;

use crate::{Error, Result};

/// Bytes of the longest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The choice of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// The user's, if there is one.
    User,
    /// This one, which has to exist.
    File(PathBuf),
    /// None: the defaults.
    Defaults,
}

/// `$XDG_CONFIG_HOME/tilewright/config.toml` or `~/.config/tilewright/config.toml`; none for a user
/// without a home.
pub fn user_path() -> Option<PathBuf> {
    Some(UserFolder::Config.path()?.join("config.toml"))
}

/// `$XDG_STATE_HOME/tilewright/server` or `~/.local/state/tilewright/server`; none for a user
/// without a home.
pub(crate) fn state_path() -> Option<PathBuf> {
    Some(UserFolder::State.path()?.join("server"))
}

impl ConfigSource {
    /// The file's path.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            ConfigSource::User => user_path(),
            ConfigSource::File(path) => Some(path.clone()),
            ConfigSource::Defaults => None,
        }
    }

    /// Checks that a file that was asked for exists.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if it does not, or is not a file.
    pub fn check(&self) -> Result<()> {
        let ConfigSource::File(path) = self else { return Ok(()) };
        is_file(path).map_err(|source| Error::Unreadable { path: path.clone(), source })
    }

    /// The file and its text, if it exists.
    pub(crate) fn read(&self) -> Result<Option<(PathBuf, String)>> {
        let Some(path) = self.path() else { return Ok(None) };
        match text(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && *self == ConfigSource::User => Ok(None),
            Err(source) => Err(Error::Unreadable { path, source }),
        }
    }
}

/// Checks the type without opening: opening a pipe would wait for a writer.
fn is_file(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() { Ok(()) } else { Err(io::Error::other("it is not a file")) }
}

fn text(path: &Path) -> io::Result<String> {
    let file = tilewright_files::open(path)?;
    warn_where_others_can_write(path, &file.metadata()?);
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it is longer than 1 MiB"));
    }
    Ok(text)
}

#[cfg(unix)]
fn warn_where_others_can_write(path: &Path, metadata: &fs::Metadata) {
    use std::os::unix::fs::MetadataExt;
    if metadata.mode() & 0o002 != 0 {
        tracing::warn!("{}: everybody can write it, and so choose whom you trust: chmod o-w it", path.display());
    }
}

#[cfg(not(unix))]
fn warn_where_others_can_write(_path: &Path, _metadata: &fs::Metadata) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_file_that_was_asked_for_has_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let missing = ConfigSource::File(folder.path().join("config.toml"));
        assert!(matches!(Config::load(&missing), Err(Error::Unreadable { .. })));
        assert!(matches!(missing.check(), Err(Error::Unreadable { .. })));
        assert!(matches!(ConfigSource::File("/dev/zero".into()).check(), Err(Error::Unreadable { .. })));
        assert!(ConfigSource::User.check().is_ok() && ConfigSource::Defaults.check().is_ok());
        assert_eq!(Config::load(&ConfigSource::Defaults).unwrap(), Config::default());
    }

    #[test]
    fn what_is_no_text_of_sensible_length_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        for contents in [vec![0xff], vec![b'#'; MOST_BYTES as usize + 1]] {
            fs::write(&file, contents).unwrap();
            assert!(matches!(Config::load(&ConfigSource::File(file.clone())), Err(Error::Unreadable { .. })));
        }
        assert!(matches!(Config::load(&ConfigSource::File(folder.path().into())), Err(Error::Unreadable { .. })));
        assert!(matches!(Config::load(&ConfigSource::File("/dev/zero".into())), Err(Error::Unreadable { .. })));
    }
}
