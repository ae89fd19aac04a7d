//! Callers: the tokens that are valid, with their roles, and the sessions of browsers that signed
//! in with one.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine, engine::general_purpose::STANDARD};
use subtle::ConstantTimeEq;
use tilewright_config::{Role, Server};
use uuid::Uuid;

use super::tokens::{Hash, Token, hash, hash_files, read_tokens};
use crate::{Error, Result, error::one_line};

/// The cookie of a session.
const COOKIE: &str = "tilewright";

/// The lifetime of a session.
pub const SESSION: Duration = Duration::from_secs(12 * 3600);

/// The most sessions at once; one more removes the oldest.
const SESSIONS: usize = 64;

/// The name of a caller if no token is asked for.
const ANYBODY: &str = "anybody";

/// A caller and its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token's name.
    pub name: String,
    /// The token's role.
    pub role: Role,
}

#[derive(Clone, Debug)]
struct Session {
    began: Instant,
    /// The token that began it: a token that is taken back takes its sessions with it.
    token: Hash,
}

/// The tokens that are valid at present.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ValidTokens {
    /// True if a token is asked for, also while no file holds one: nobody comes in then. It is
    /// never unset, since only a restart opens a server to everybody.
    is_asked_for: bool,
    tokens: Vec<Token>,
}

/// The outcome of another look at the tokens' files.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadTokens {
    /// True if other tokens are valid than before.
    pub is_changed: bool,
    /// A line for each file that holds no token of its own: its token has ended.
    pub faults: Vec<String>,
}

/// Tokens and sessions.
pub struct Callers {
    valid: ArcSwap<ValidTokens>,
    sessions: Mutex<HashMap<Hash, Session>>,
    /// True if cookies are for encrypted connections alone.
    is_encrypted: bool,
    /// Hashes of the files as last read, usable or not: unchanged files are not read again.
    last_files: Mutex<Vec<Hash>>,
}

impl Callers {
    /// Reads the tokens, if there are any.
    ///
    /// # Errors
    /// [`Error::Credential`] if a token can't be used.
    pub fn new(server: &Server) -> Result<Self> {
        // Before the tokens: a change between the two is found at the next look.
        let last_files = hash_files(server).unwrap_or_default();
        let tokens = read_tokens(server).into_iter().collect::<Result<_>>()?;
        Ok(Self {
            valid: ArcSwap::from_pointee(ValidTokens { is_asked_for: server.has_tokens(), tokens }),
            sessions: Mutex::default(),
            is_encrypted: server.tls.is_some() || server.behind_proxy,
            last_files: Mutex::new(last_files),
        })
    }

    /// Reads the tokens' files again. Each token is valid while its file holds it: a file that is
    /// gone, empty or without a token of its own ends its token, and a token in the place of
    /// another one counts instead of it. The other tokens stay valid. None if the files are as they
    /// were, or if no file can be opened at present.
    pub fn reload(&self, server: &Server) -> Option<ReadTokens> {
        let now = hash_files(server).ok()?;
        let mut last_files = self.last_files.lock().unwrap_or_else(PoisonError::into_inner);
        if *last_files == now {
            return None;
        }
        let (mut tokens, mut faults) = (Vec::new(), Vec::new());
        for read in read_tokens(server) {
            match read {
                Ok(token) => tokens.push(token),
                Err(Error::File { .. }) => return None,
                Err(error) => faults.push(format!("a token is not valid: {}", one_line(&error))),
            }
        }
        *last_files = now;
        drop(last_files);
        let before = self.valid.load();
        let valid = ValidTokens { is_asked_for: before.is_asked_for || server.has_tokens(), tokens };
        let is_changed = **before != valid;
        if is_changed {
            self.valid.store(valid.into());
        }
        Some(ReadTokens { is_changed, faults })
    }

    /// True if a token is asked for.
    pub fn has_tokens(&self) -> bool {
        self.valid.load().is_asked_for
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Hash, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller of a token; takes the same time for any token.
    fn find_by_token(&self, given: Hash) -> Option<Caller> {
        let valid = self.valid.load();
        let mut found = None;
        for token in &valid.tokens {
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
        if let Some(given) = headers.get(header::AUTHORIZATION).and_then(token) {
            return self.find_by_token(hash(&given));
        }
        let session = self.sessions().get(&hash(cookie(headers)?.as_bytes()))?.clone();
        if session.began.elapsed() < SESSION { self.find_by_token(session.token) } else { None }
    }
}

/// The token of a header: the bearer's or, of clients that only know addresses such as
/// `https://any:TOKEN@server`, the password.
fn token(authorization: &HeaderValue) -> Option<Vec<u8>> {
    let value = authorization.as_bytes();
    let rest = |scheme: &[u8]| {
        let (given, rest) = value.split_at_checked(scheme.len())?;
        given.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    if let Some(token) = rest(b"bearer ") {
        return Some(token.to_vec());
    }
    let pair = STANDARD.decode(rest(b"basic ")?).ok()?;
    let name = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[name + 1..].to_vec())
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';')).find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// 244 random bits.
pub fn new_secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
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
            (format!("Basic {}", STANDARD.encode(format!("any:{SECOND}"))), Some("board")),
            (format!("Basic {}", STANDARD.encode(format!(":{SECOND}"))), Some("board")),
            (format!("Basic {}", STANDARD.encode(SECOND)), None),
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
    }

    #[test]
    fn each_token_is_valid_while_its_file_holds_it_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (operator, reader) = (folder.path().join("token"), folder.path().join("reader"));
        fs::write(&operator, FIRST).unwrap();
        fs::write(&reader, SECOND).unwrap();
        let own = tilewright_config::Token { name: "board".into(), role: Role::Read, file: reader.clone() };
        let server = Server { token_file: Some(operator.clone()), tokens: vec![own], ..Server::default() };
        let callers = Callers::new(&server).unwrap();
        assert_eq!(callers.reload(&server), None, "nothing has changed");
        let asked = {
            let (_, set) = callers.sign_in(SECOND.as_bytes()).unwrap();
            headers(header::COOKIE, set.split(';').next().unwrap())
        };
        let ends: [(&str, &dyn Fn()); 5] = [
            ("reader: expected a token of at least 16", &|| fs::write(&reader, "short").unwrap()),
            ("expected a token of at least 16", &|| fs::write(&reader, "").unwrap()),
            ("can't be read: No such file", &|| fs::remove_file(&reader).unwrap()),
            ("expected a file with a token in one line", &|| fs::write(&reader, [0xff; 16]).unwrap()),
            ("holds the token of 'token-file', too", &|| fs::write(&reader, FIRST).unwrap()),
        ];
        for (words, end) in ends {
            end();
            let read = callers.reload(&server).unwrap();
            assert!(matches!(&read.faults[..], [line] if line.contains(words)), "{words}: {read:?}");
            assert_eq!((callers.identify(&asked), bearer(&callers, SECOND)), (None, None), "{words}");
            assert_eq!(bearer(&callers, FIRST), Some(("token-file".into(), Role::Operate)), "{words}");
            assert_eq!(callers.reload(&server), None, "said once");
        }
        // The same token again: its sessions go on. Another one counts instead of it.
        fs::write(&reader, SECOND).unwrap();
        assert_eq!(callers.reload(&server), Some(ReadTokens { is_changed: true, faults: Vec::new() }));
        assert!(callers.identify(&asked).is_some());
        fs::write(&reader, "a-third-token-of-its-own").unwrap();
        assert!(callers.reload(&server).unwrap().is_changed);
        assert_eq!((callers.identify(&asked), bearer(&callers, SECOND)), (None, None));
        assert_eq!(bearer(&callers, "a-third-token-of-its-own"), Some(("board".into(), Role::Read)));
    }

    #[test]
    fn without_any_valid_token_nobody_comes_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, FIRST).unwrap();
        let server = Server { token_file: Some(file.clone()), ..Server::default() };
        let callers = Callers::new(&server).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(callers.reload(&server).unwrap().faults.len(), 1);
        assert!(callers.has_tokens() && callers.identify(&HeaderMap::new()).is_none());
        assert_eq!((bearer(&callers, FIRST), bearer(&callers, "")), (None, None));
        // Nor would a configuration without tokens open the server.
        assert!(callers.reload(&Server::default()).is_some());
        assert!(callers.has_tokens() && callers.identify(&HeaderMap::new()).is_none());
    }

    #[test]
    fn where_no_token_is_asked_for_everybody_may_do_everything() {
        let callers = Callers::new(&Server::default()).unwrap();
        assert_eq!(callers.identify(&HeaderMap::new()).map(|caller| caller.role), Some(Role::Operate));
        assert!(callers.sign_in(b"").is_none());
    }
}
