//! Callers: tokens with their roles, read from their files, and the sessions of browsers that
//! signed in with one.

use std::{
    collections::HashMap,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderValue, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tilewright_config::{Role, Server};
use uuid::Uuid;

use crate::{Error, Result};

/// The cookie of a session.
const COOKIE: &str = "tilewright";

/// The lifetime of a session.
pub const SESSION: Duration = Duration::from_secs(12 * 3600);

/// The most sessions at once; one more removes the oldest.
const SESSIONS: usize = 64;

/// Characters of the shortest token.
const TOKEN: usize = 16;

/// Bytes of the longest token's file.
const TOKEN_FILE: u64 = 4096;

/// The name of the token that `token-file` names.
const OPERATOR: &str = "token-file";

/// The name of a caller if no token is asked for.
const ANYBODY: &str = "anybody";

type Hash = [u8; 32];

/// A caller and its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token's name.
    pub name: String,
    /// The token's role.
    pub role: Role,
}

/// A token's hash, by which it is compared, and its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    hash: Hash,
    caller: Caller,
}

#[derive(Clone, Debug)]
struct Session {
    began: Instant,
    /// The token that began it: a token that is taken back takes its sessions with it.
    token: Hash,
}

/// Tokens and sessions.
pub struct Callers {
    tokens: ArcSwap<Vec<Token>>,
    sessions: Mutex<HashMap<Hash, Session>>,
    /// True if cookies are for encrypted connections alone.
    is_encrypted: bool,
    /// Hashes of the files as last read, usable or not: unchanged files are not read again.
    last_files: Mutex<Vec<Option<Hash>>>,
}

impl Callers {
    /// Reads the tokens, if there are any.
    ///
    /// # Errors
    /// [`Error::Credential`] if a token can't be used.
    pub fn new(server: &Server) -> Result<Self> {
        Ok(Self {
            tokens: ArcSwap::from_pointee(read_tokens(server)?),
            sessions: Mutex::default(),
            is_encrypted: server.tls.is_some() || server.behind_proxy,
            last_files: Mutex::new(hash_files(server)),
        })
    }

    /// Reads the tokens again; true if they have changed. Tokens that were taken back are invalid
    /// from then on.
    ///
    /// # Errors
    /// [`Error::Credential`] if a token can't be used: all stay as they were. Reported once, until
    /// the files change again.
    pub fn reload(&self, server: &Server) -> Result<bool> {
        let now = hash_files(server);
        let mut last_files = self.last_files.lock().unwrap_or_else(PoisonError::into_inner);
        if *last_files == now {
            return Ok(false);
        }
        *last_files = now;
        drop(last_files);
        let read = read_tokens(server)?;
        let is_changed = **self.tokens.load() != read;
        if is_changed {
            self.tokens.store(read.into());
        }
        Ok(is_changed)
    }

    /// True if a token is asked for.
    pub fn has_tokens(&self) -> bool {
        !self.tokens.load().is_empty()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Hash, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller of a token; takes the same time for any token.
    fn find_by_token(&self, given: Hash) -> Option<Caller> {
        let tokens = self.tokens.load();
        let mut found = None;
        for token in tokens.iter() {
            if bool::from(given.ct_eq(&token.hash)) {
                found = Some(token.caller.clone());
            }
        }
        found
    }

    /// Begins a session. Returns the caller and the cookie to set, or none for an unknown token.
    pub fn sign_in(&self, given: &[u8]) -> Option<(Caller, String)> {
        let token = hash(given);
        let caller = self.find_by_token(token)?;
        let value = new_secret();
        let mut sessions = self.sessions();
        sessions.retain(|_, session| session.began.elapsed() < SESSION);
        if sessions.len() >= SESSIONS
            && let Some(oldest) = sessions.iter().min_by_key(|(_, session)| session.began).map(|(hash, _)| *hash)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(hash(value.as_bytes()), Session { began: Instant::now(), token });
        drop(sessions);
        Some((caller, self.cookie(&value, SESSION.as_secs())))
    }

    /// Ends the session of a request. Returns the cookie to set.
    pub fn sign_out(&self, headers: &HeaderMap) -> String {
        if let Some(value) = cookie(headers) {
            self.sessions().remove(&hash(value.as_bytes()));
        }
        self.cookie("", 0)
    }

    fn cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
    }

    /// The caller; none if a token is asked for and no valid one was given. If none is asked for,
    /// each caller may do everything.
    pub fn identify(&self, headers: &HeaderMap) -> Option<Caller> {
        if !self.has_tokens() {
            return Some(Caller { name: ANYBODY.into(), role: Role::Operate });
        }
        let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
            let (scheme, rest) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
        });
        if let Some(given) = bearer {
            return self.find_by_token(hash(given));
        }
        let session = self.sessions().get(&hash(cookie(headers)?.as_bytes()))?.clone();
        if session.began.elapsed() < SESSION { self.find_by_token(session.token) } else { None }
    }
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';')).find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// 244 random bits.
pub fn new_secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

/// Every token that is configured.
fn read_tokens(server: &Server) -> Result<Vec<Token>> {
    let mut tokens: Vec<Token> = Vec::new();
    let operator = server.token_file.iter().map(|file| (OPERATOR, Role::Operate, file));
    for (name, role, file) in operator.chain(server.tokens.iter().map(|own| (own.name.as_str(), own.role, &own.file))) {
        let (name, hash) = (name.to_owned(), hash(read_token(file)?.as_bytes()));
        if let Some(same) = tokens.iter().find(|known| known.hash == hash) {
            let reason = format!("holds the token of '{}', too: give each its own", same.caller.name);
            return Err(Error::Credential { path: file.clone(), reason });
        }
        tokens.push(Token { hash, caller: Caller { name, role } });
    }
    Ok(tokens)
}

/// Hashes of the tokens' names, roles and files, by which a change of any is known.
fn hash_files(server: &Server) -> Vec<Option<Hash>> {
    let of = |name: &str, role: Role, file: &Path| {
        let bytes = tilewright_files::read(file, TOKEN_FILE).ok()?;
        Some(hash(&[name.as_bytes(), b" ", role.name().as_bytes(), b" ", &bytes].concat()))
    };
    let operator = server.token_file.iter().map(|file| of(OPERATOR, Role::Operate, file));
    operator.chain(server.tokens.iter().map(|own| of(&own.name, own.role, &own.file))).collect()
}

/// Reads the token in a file; warns if others can read the file.
fn read_token(path: &Path) -> Result<String> {
    let wrong = |reason: &str| Error::Credential { path: path.to_owned(), reason: reason.to_owned() };
    let unreadable = |error: std::io::Error| wrong(&format!("can't be read: {error}"));
    let text = tilewright_files::read_text(path, TOKEN_FILE).map_err(|error| match error.kind() {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FIRST: &str = "0123456789abcdef";
    const SECOND: &str = "fedcba9876543210";

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        [(name, value.parse().unwrap())].into_iter().collect()
    }

    fn bearer(callers: &Callers, token: &str) -> Option<(String, Role)> {
        let caller = callers.identify(&headers(header::AUTHORIZATION, &format!("Bearer {token}")));
        caller.map(|caller| (caller.name, caller.role))
    }

    #[test]
    fn only_a_token_or_its_session_comes_in_and_has_its_role() {
        let folder = tempfile::tempdir().unwrap();
        let (operator, reader) = (folder.path().join("token"), folder.path().join("reader"));
        fs::write(&operator, format!("{FIRST}\n")).unwrap();
        fs::write(&reader, SECOND).unwrap();
        let own = tilewright_config::Token { name: "board".into(), role: Role::Read, file: reader.clone() };
        let server = Server { token_file: Some(operator.clone()), tokens: vec![own], ..Server::default() };
        let callers = Callers::new(&server).unwrap();
        for (value, name) in [
            (format!("Bearer {FIRST}"), Some("token-file")),
            (format!("bearer {FIRST}"), Some("token-file")),
            (format!("Bearer {SECOND}"), Some("board")),
            (format!("Bearer {}", &FIRST[1..]), None),
            (format!("Bearer {FIRST}0"), None),
            ("Bearer ".into(), None),
            (format!("Basic {FIRST}"), None),
            (String::new(), None),
        ] {
            let caller = callers.identify(&headers(header::AUTHORIZATION, &value));
            assert_eq!(caller.as_ref().map(|caller| caller.name.as_str()), name, "{value}");
        }
        assert_eq!(callers.identify(&HeaderMap::new()), None);
        assert!(callers.sign_in(b"nonsense").is_none());
        let (caller, set) = callers.sign_in(SECOND.as_bytes()).unwrap();
        assert_eq!((caller.name.as_str(), caller.role), ("board", Role::Read));
        let session = set.split(';').next().unwrap();
        let asked = headers(header::COOKIE, &format!("other=1; {session}"));
        assert_eq!(callers.identify(&asked), Some(caller));
        callers.sign_out(&asked);
        assert_eq!(callers.identify(&asked), None);
        assert_eq!(callers.identify(&headers(header::COOKIE, "tilewright=")), None);

        // A renewed token ends the sessions of the one before; an unusable one changes nothing.
        let (_, set) = callers.sign_in(SECOND.as_bytes()).unwrap();
        let asked = headers(header::COOKIE, set.split(';').next().unwrap());
        assert!(!callers.reload(&server).unwrap());
        fs::write(&reader, "short").unwrap();
        assert!(callers.reload(&server).is_err() && callers.identify(&asked).is_some());
        fs::write(&reader, FIRST).unwrap();
        let same = callers.reload(&server).unwrap_err().to_string();
        assert!(same.contains("holds the token of 'token-file', too"), "{same}");
        fs::write(&reader, "a-third-token-of-its-own").unwrap();
        assert!(callers.reload(&server).unwrap());
        assert_eq!((callers.identify(&asked), bearer(&callers, SECOND)), (None, None));
        assert_eq!(bearer(&callers, "a-third-token-of-its-own"), Some(("board".into(), Role::Read)));
    }

    #[test]
    fn where_no_token_is_asked_for_everybody_may_do_everything() {
        let callers = Callers::new(&Server::default()).unwrap();
        assert_eq!(callers.identify(&HeaderMap::new()).map(|caller| caller.role), Some(Role::Operate));
        assert!(callers.sign_in(b"").is_none());
    }
}
