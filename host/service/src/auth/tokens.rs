//! Tokens in their files: each file holds one, and no two hold the same.

use std::{
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::Path,
};

use sha2::{Digest, Sha256};
use tilewright_config::{Role, Server};

use super::callers::Caller;
use crate::{Error, Result, descriptors};

/// Characters of the shortest token.
const TOKEN: usize = 16;

/// Bytes of the longest token's file.
const TOKEN_FILE: u64 = 4096;

/// The name of the token that `token-file` names.
const OPERATOR: &str = "token-file";

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// A token's hash, by which it is compared, and its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub hash: Hash,
    pub caller: Caller,
}

/// The hash of some bytes.
pub fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// The name, role and file of every token that is configured.
fn configured(server: &Server) -> impl Iterator<Item = (&str, Role, &Path)> {
    let operator = server.token_file.iter().map(|file| (OPERATOR, Role::Operate, file.as_path()));
    operator.chain(server.tokens.iter().map(|own| (own.name.as_str(), own.role, own.file.as_path())))
}

/// The token of each file, or its fault: [`Error::File`] if no file can be opened at present,
/// [`Error::Credential`] otherwise.
pub fn read_tokens(server: &Server) -> Vec<Result<Token>> {
    let mut tokens: Vec<Result<Token>> = Vec::new();
    for (name, role, file) in configured(server) {
        let token = read_token(file).and_then(|token| {
            let hash = hash(token.as_bytes());
            match tokens.iter().flatten().find(|known| known.hash == hash) {
                Some(Token { caller: Caller { name: other, .. }, .. }) => {
                    let reason = format!("holds the token of '{other}', too: give each its own");
                    Err(Error::Credential { path: file.to_owned(), reason })
                }
                None => Ok(Token { hash, caller: Caller { name: name.to_owned(), role } }),
            }
        });
        tokens.push(token);
    }
    tokens
}

/// Hashes of the tokens' names, roles and files, by which a change of any is known.
///
/// # Errors
/// No file can be opened at present.
pub fn hash_files(server: &Server) -> io::Result<Vec<Hash>> {
    let of = |(name, role, file): (&str, Role, &Path)| {
        let (state, bytes) = match tilewright_files::read(file, TOKEN_FILE) {
            Ok(bytes) => ("read", bytes),
            Err(error) if descriptors::are_exhausted(&error) => return Err(error),
            // Another kind of error is another fault.
            Err(error) => ("unreadable", error.to_string().into_bytes()),
        };
        let path = file.as_os_str().as_encoded_bytes();
        let parts = [name.as_bytes(), role.name().as_bytes(), path, state.as_bytes(), &bytes[..]];
        Ok(hash(&parts.join(&b'\0')))
    };
    configured(server).map(of).collect()
}

/// Reads the token in a file; warns if others can read the file.
fn read_token(path: &Path) -> Result<String> {
    let wrong = |reason: &str| Error::Credential { path: path.to_owned(), reason: reason.to_owned() };
    let unreadable = |error: io::Error| wrong(&format!("can't be read: {error}"));
    let text = tilewright_files::read_text(path, TOKEN_FILE).map_err(|error| match error.kind() {
        _ if descriptors::are_exhausted(&error) => Error::File { path: path.to_owned(), verb: "opened", source: error },
        ErrorKind::NotFound | ErrorKind::PermissionDenied => unreadable(error),
        _ => wrong("expected a file with a token in one line"),
    })?;
    if std::fs::metadata(path).map_err(unreadable)?.mode() & 0o077 != 0 {
        tracing::warn!("{}: others can read the token: chmod 600 it", path.display());
    }
    let token = text.trim();
    if token.len() < TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("expected a token of at least 16 printable ASCII characters without blanks"));
    }
    Ok(token.to_owned())
}
