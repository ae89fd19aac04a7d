//! Public keys and their ids.

use std::{fmt, path::Path, str::FromStr};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize, Serializer};

use crate::{Error, Result, files};

/// The first words of every minisign file.
pub(crate) const COMMENT: &str = "untrusted comment:";

/// The id of a key pair: it says which key is meant, and proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// Reads the id from a key's or a signature's line: two bytes are the algorithm, eight the id.
    pub(crate) fn in_line(line: &str) -> Option<Self> {
        let bytes = STANDARD.decode(line.trim()).ok()?;
        Some(Self(bytes.get(2..10)?.try_into().ok()?))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The format of minisign.
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey {
    pub(crate) key: minisign_verify::PublicKey,
    id: KeyId,
    line: String,
}

impl PublicKey {
    /// Reads a `.pub` file.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::Secret`] or [`Error::NotPublic`].
    pub fn read(path: &Path) -> Result<Self> {
        let origin = || Some(path.display().to_string());
        files::read_text(path)?.parse().map_err(|error| match error {
            Error::NotPublic { .. } => Error::NotPublic { origin: origin() },
            Error::Secret { .. } => Error::Secret { origin: origin() },
            other => other,
        })
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        self.id
    }
}

/// Parses the key itself, or the two lines of a `.pub` file.
impl FromStr for PublicKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.find(|line| !line.starts_with(COMMENT)).unwrap_or_default();
        let known = minisign_verify::PublicKey::from_base64(line).ok().zip(KeyId::in_line(line));
        match known {
            Some((key, id)) if lines.next().is_none() => Ok(Self { key, id, line: line.to_owned() }),
            // A secret key's line begins with the algorithms of signing, encryption (or none) and
            // checksum.
            _ if ["RWRTY0Iy", "RWQAAEIy"].iter().any(|start| line.starts_with(start)) => {
                Err(Error::Secret { origin: None })
            }
            _ => Err(Error::NotPublic { origin: None }),
        }
    }
}

impl TryFrom<String> for PublicKey {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// The key in one line, as a configuration holds it.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::KeyPair;

    #[test]
    fn a_key_is_read_from_its_line_and_from_its_file() {
        let pair = KeyPair::generate(None).unwrap();
        let line = pair.public.to_string();
        let file = format!("{COMMENT} minisign public key {}\n{line}\n", pair.public.id());
        assert_eq!(line.parse::<PublicKey>().unwrap(), pair.public);
        assert_eq!(file.parse::<PublicKey>().unwrap(), pair.public);
        assert_eq!(file.replace('\n', "\r\n").parse::<PublicKey>().unwrap(), pair.public);
    }

    #[test]
    fn a_secret_key_given_for_a_public_one_is_called_by_its_name() {
        for password in [None, Some("right".to_owned())] {
            let pair = KeyPair::generate(password).unwrap();
            assert!(matches!(pair.secret_text().parse::<PublicKey>(), Err(Error::Secret { .. })));
        }
    }

    proptest! {
        #[test]
        fn nothing_else_is_a_key(text in "\\PC{0,80}", line in "RW[A-Za-z0-9+/=]{0,70}") {
            prop_assert!(text.parse::<PublicKey>().is_err());
            let key = line.parse::<PublicKey>();
            prop_assert!(key.is_err() || line.len() == 56);
        }
    }
}
