//! Secret keys: generated, opened and used. None of these types prints its key.

use std::{
    fmt,
    io::Cursor,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use minisign::SecretKeyBox;

use crate::{Error, PublicKey, Result, files, public::COMMENT};

/// Characters allowed in a comment: minisign reads no longer line.
const COMMENT_CHARS: usize = 1000;

/// The mark of a secret key's file that needs a password.
const ENCRYPTED: [u8; 2] = *b"Sc";

/// A newly generated pair.
pub struct KeyPair {
    secret: String,
    /// The public half, to be given to others.
    pub public: PublicKey,
}

impl KeyPair {
    /// Generates a pair, its secret half encrypted with a password if one is given.
    ///
    /// # Errors
    /// [`Error::Unable`] if the system gives no randomness.
    pub fn generate(password: Option<String>) -> Result<Self> {
        let (kind, pair) = match password {
            Some(password) => ("encrypted ", minisign::KeyPair::generate_encrypted_keypair(Some(password))?),
            None => ("", minisign::KeyPair::generate_unencrypted_keypair()?),
        };
        let public: PublicKey = pair.pk.to_base64().parse()?;
        let comment = format!("minisign {kind}secret key {}", public.id());
        Ok(Self { secret: pair.sk.to_box(Some(&comment))?.into_string(), public })
    }

    /// The text of the secret key's file.
    pub(crate) fn secret_text(&self) -> &str {
        &self.secret
    }

    /// The text of the public key's file.
    pub(crate) fn public_text(&self) -> String {
        format!("{COMMENT} minisign public key {}\n{}\n", self.public.id(), self.public)
    }

    /// The secret half, as read from its file.
    ///
    /// # Errors
    /// None for a pair that [`KeyPair::generate`] made.
    pub fn lock(&self) -> Result<LockedKey> {
        LockedKey::parse(self.secret.clone(), Path::new("a new key"))
    }
}

/// A secret key as stored on the disk.
pub struct LockedKey {
    text: String,
    bytes: Vec<u8>,
    is_encrypted: bool,
    path: PathBuf,
}

impl LockedKey {
    /// Reads a secret key's file.
    ///
    /// # Errors
    /// [`Error::Unreadable`], or [`Error::NotSecret`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(files::read_text(path)?, path)
    }

    fn parse(text: String, path: &Path) -> Result<Self> {
        let mut lines = text.lines();
        let begins = lines.next().is_some_and(|line| line.starts_with(COMMENT));
        let bytes = lines.next().and_then(|line| STANDARD.decode(line.trim()).ok()).unwrap_or_default();
        let is_encrypted = match bytes.get(2..4) {
            Some(&[0, 0]) => false,
            Some(algorithm) if algorithm == ENCRYPTED => true,
            _ => return Err(Error::NotSecret { path: path.into() }),
        };
        if !begins || bytes.len() != 158 {
            return Err(Error::NotSecret { path: path.into() });
        }
        Ok(Self { text, bytes, is_encrypted, path: path.into() })
    }

    /// True if a password is needed.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Opens the key. An encrypted key takes a moment and up to a GiB, on purpose; the password is
    /// ignored otherwise.
    ///
    /// # Errors
    /// [`Error::Password`], or [`Error::NotSecret`] for a damaged one.
    pub fn open(self, password: String) -> Result<SecretKey> {
        if self.is_encrypted {
            let opened = SecretKeyBox::from(self.text).into_secret_key(Some(password));
            return opened.map(SecretKey).map_err(|_| Error::Password { path: self.path });
        }
        // minisign leaves the checksum of such keys empty, so the halves are tested against each
        // other instead.
        let key = minisign::SecretKey::from_bytes(&self.bytes).ok().map(SecretKey).filter(SecretKey::is_whole);
        key.ok_or(Error::NotSecret { path: self.path })
    }
}

/// A key that signs.
pub struct SecretKey(minisign::SecretKey);

impl SecretKey {
    /// Signs these bytes. The trusted comment is signed with them; the untrusted one is for readers
    /// of the file.
    ///
    /// # Errors
    /// [`Error::Comment`], or [`Error::Unable`].
    pub fn sign(&self, bytes: &[u8], trusted: &str, untrusted: Option<&str>) -> Result<String> {
        for comment in [Some(trusted), untrusted].into_iter().flatten() {
            let what = match comment {
                _ if comment.chars().count() > COMMENT_CHARS => "is too long",
                // Tabs separate the parts of a trusted comment.
                _ if comment.chars().any(|c| c.is_control() && c != '\t') => "has control characters",
                // Verifiers differ on whether blanks at its ends are signed.
                _ if comment.trim() != comment => "begins or ends with a blank",
                _ => continue,
            };
            return Err(Error::Comment { what, most: COMMENT_CHARS });
        }
        let fallback = format!("signature from minisign secret key {}", self.public()?.id());
        let untrusted = untrusted.unwrap_or(&fallback);
        let signature = minisign::sign(None, &self.0, Cursor::new(bytes), Some(trusted), Some(untrusted))?;
        Ok(signature.into_string())
    }

    /// True if its signatures hold under its own public half.
    fn is_whole(&self) -> bool {
        let signature = self.sign(b"", "", None).ok().and_then(|text| minisign_verify::Signature::decode(&text).ok());
        let holds = |key: PublicKey| signature.is_some_and(|signature| key.key.verify(b"", &signature, false).is_ok());
        self.public().is_ok_and(holds)
    }

    /// The public half.
    ///
    /// # Errors
    /// [`Error::Unable`] for a secret key that is damaged.
    pub fn public(&self) -> Result<PublicKey> {
        minisign::PublicKey::from_secret_key(&self.0)?.to_base64().parse()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // minisign's own implementation prints the key.
        f.write_str("SecretKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_under_a_password_opens_with_no_other() {
        let pair = KeyPair::generate(Some("right".into())).unwrap();
        assert!(pair.lock().unwrap().is_encrypted());
        assert!(matches!(pair.lock().unwrap().open("wrong".into()), Err(Error::Password { .. })));
        let key = pair.lock().unwrap().open("right".into()).unwrap();
        assert_eq!(key.public().unwrap(), pair.public);
    }

    #[test]
    fn nothing_prints_a_secret_key() {
        let pair = KeyPair::generate(None).unwrap();
        let key = pair.lock().unwrap().open(String::new()).unwrap();
        assert_eq!(format!("{key:?}"), "SecretKey");
    }

    #[test]
    fn what_is_no_secret_key_is_refused() {
        let pair = KeyPair::generate(None).unwrap();
        let cut = &pair.secret_text()[..pair.secret_text().len() - 20];
        for text in ["", "two\nlines\n", cut, &pair.public_text(), pair.secret_text().trim_start_matches('u')] {
            let parsed = LockedKey::parse(text.to_owned(), Path::new("some.key"));
            assert!(matches!(parsed, Err(Error::NotSecret { .. })), "{text}");
        }
        // One byte of the key itself changed, which its checksum reveals.
        let mut damaged = pair.secret_text().trim_end().to_owned().into_bytes();
        let at = damaged.len() - 80;
        damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
        let parsed = LockedKey::parse(String::from_utf8(damaged).unwrap(), Path::new("some.key")).unwrap();
        assert!(matches!(parsed.open(String::new()), Err(Error::NotSecret { .. })));
    }

    #[test]
    fn a_comment_has_one_line_without_blanks_at_its_ends() {
        let key = KeyPair::generate(None).unwrap().lock().unwrap().open(String::new()).unwrap();
        for comment in ["two\nlines", " blank", "blank ", "bell\u{7}", &"x".repeat(COMMENT_CHARS + 1)] {
            assert!(matches!(key.sign(b"", comment, None), Err(Error::Comment { .. })), "{comment:?}");
            assert!(matches!(key.sign(b"", "", Some(comment)), Err(Error::Comment { .. })), "{comment:?}");
        }
    }
}
