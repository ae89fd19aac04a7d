//! Signatures of minisign's kind, made by the crate that signs policies.

use std::{
    env, fs,
    io::{self, IsTerminal},
    path::Path,
};

use anyhow::{Context, Result, bail};
use tilewright_signing::{KeyId, LockedKey, PublicKey, SecretKey, others_can_read, signature_path, write_signature};

use super::{VERSION, commit::Commit, refuse};
use crate::tools;

/// The variable that holds a key's password, as for policies.
const PASSWORD: &str = "TILEWRIGHT_KEY_PASSWORD";

/// An opened secret key.
pub struct Signer {
    key: SecretKey,
    public: PublicKey,
}

impl Signer {
    /// Opens a key, and asks for its password if it has one.
    ///
    /// # Errors
    /// [`super::Refused`] if it is no key, or the password is missing or wrong.
    pub fn open(path: &Path) -> Result<Self> {
        if others_can_read(path) {
            tools::say(&format!("{}: others can read this secret key: chmod 600 it", path.display()));
        }
        open(path).or_else(|why| refuse(format!("the release's key: {why:#}")))
    }

    /// The id of the key.
    pub fn id(&self) -> KeyId {
        self.public.id()
    }

    /// The key that verifies.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs a file; the signature is beside it. Its trusted comment has the file's name, the
    /// version and the commit, with the commit's time.
    pub fn sign(&self, path: &Path, commit: &Commit) -> Result<()> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let comment =
            format!("timestamp:{}\tfile:{name}\tversion:{VERSION}\tcommit:{}\tprehashed", commit.seconds, commit.id);
        let signature = self.key.sign(&bytes, &comment, None)?;
        Ok(write_signature(&signature_path(path), &signature)?)
    }
}

fn open(path: &Path) -> Result<Signer> {
    let key = LockedKey::read(path)?;
    let password = if key.is_encrypted() { password(path)? } else { String::new() };
    let key = key.open(password)?;
    let public = key.public()?;
    Ok(Signer { key, public })
}

/// The password of a key, from the variable or the terminal.
fn password(path: &Path) -> Result<String> {
    if let Ok(password) = env::var(PASSWORD) {
        return Ok(password);
    }
    if !io::stdin().is_terminal() {
        bail!("{}: the password is needed, and nobody is here to be asked: set {PASSWORD}", path.display());
    }
    rpassword::prompt_password(format!("Password of {}: ", path.display()))
        .with_context(|| format!("{}: no password can be asked for: set {PASSWORD}", path.display()))
}
