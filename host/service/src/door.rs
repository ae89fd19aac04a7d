//! Who comes in: names that the server goes by, tokens and sessions, how fast, and nothing on behalf of another site.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tilewright_config::Server;
use uuid::Uuid;

use crate::{App, Error, Result, pages, problem::Problem};

/// The cookie of a session.
const COOKIE: &str = "tilewright";

/// How long a session lasts.
const SESSION: Duration = Duration::from_secs(12 * 3600);

/// Sessions at once; the oldest goes.
const SESSIONS: usize = 64;

/// Characters of the shortest token.
const TOKEN: usize = 16;

/// Bytes of the longest token's file.
const TOKEN_FILE: u64 = 4096;

/// What everybody may see: whether the server lives, and how to sign in.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/login", "/assets/"];

type Hash = [u8; 32];

/// The door.
pub struct Door {
    token: Option<Hash>,
    /// Names that the server goes by, lower case, without port.
    hosts: Vec<String>,
    pace: DefaultKeyedRateLimiter<IpAddr>,
    sessions: Mutex<HashMap<Hash, Instant>>,
    /// Every form carries it: another site can't know it.
    pub form_token: String,
    /// Cookies are for encrypted connections alone.
    is_encrypted: bool,
}

impl Door {
    /// Reads the token where there is one.
    ///
    /// # Errors
    /// [`Error::Credential`] where it does not serve.
    pub fn new(server: &Server) -> Result<Self> {
        let token = server.token_file.as_deref().map(token).transpose()?;
        let mut hosts = vec!["localhost".to_owned()];
        hosts.extend(server.hosts.iter().map(|host| host.to_ascii_lowercase()));
        let rate = NonZeroU32::new(server.limits.requests_per_second).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(rate).allow_burst(rate.saturating_add(rate.get()));
        Ok(Self {
            token: token.map(|token| hash(token.as_bytes())),
            hosts,
            pace: RateLimiter::keyed(quota),
            sessions: Mutex::default(),
            form_token: secret(),
            is_encrypted: server.tls.is_some() || server.behind_proxy,
        })
    }

    /// Whether a token is asked for.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a form is of a page of ours.
    pub fn is_form_token(&self, given: Option<&str>) -> bool {
        given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(self.form_token.as_bytes())))
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Hash, Instant>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these are the token's bytes; takes as long whatever they are.
    pub fn is_token(&self, given: &[u8]) -> bool {
        self.token.is_some_and(|token| bool::from(hash(given).ct_eq(&token)))
    }

    /// Begins a session; gives the cookie to set.
    pub fn begin_session(&self) -> String {
        let value = secret();
        let mut sessions = self.sessions();
        sessions.retain(|_, began| began.elapsed() < SESSION);
        if sessions.len() >= SESSIONS
            && let Some(oldest) = sessions.iter().min_by_key(|(_, began)| **began).map(|(hash, _)| *hash)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(hash(value.as_bytes()), Instant::now());
        self.cookie(&value, SESSION.as_secs())
    }

    /// Ends the session of a request; gives the cookie to set.
    pub fn end_session(&self, headers: &HeaderMap) -> String {
        if let Some(value) = cookie(headers) {
            self.sessions().remove(&hash(value.as_bytes()));
        }
        self.cookie("", 0)
    }

    fn cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        if self.token.is_none() {
            return true;
        }
        let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
            let (scheme, rest) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
        });
        let session = || {
            let value = cookie(headers)?;
            let began = *self.sessions().get(&hash(value.as_bytes()))?;
            Some(began.elapsed() < SESSION)
        };
        bearer.map_or_else(|| session() == Some(true), |given| self.is_token(given))
    }

    /// Names of strangers are refused: a page of theirs could have been given our address (DNS rebinding). The one in the request's first line
    /// counts, too.
    fn is_ours(&self, headers: &HeaderMap, line: Option<&str>) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) else { return false };
        self.is_name(host) && line.is_none_or(|line| self.is_name(line))
    }

    fn is_name(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        // Nobody can give an address of ours a meaning of theirs.
        name.parse::<IpAddr>().is_ok() || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// What changes something is asked for by us, not by a page of another site.
fn is_same_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return false;
    }
    match (text("origin"), text("host")) {
        (None, _) => true,
        (Some(origin), Some(host)) => origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host)),
        (Some(_), None) => false,
    }
}

/// The first thing that a request meets.
pub async fn guard(
    State(app): State<App>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let door = &app.door;
    let (headers, path) = (request.headers(), request.uri().path());
    let is_open = OPEN.iter().any(|open| path == *open || open.ends_with('/') && path.starts_with(open));
    let refused = if path != "/healthz" && door.pace.check_key(&address.ip()).is_err() {
        Some(("pace", Problem::busy("too many requests from this address: slow down", 1)))
    } else if !door.is_ours(headers, request.uri().authority().map(|authority| authority.as_str())) {
        let line = "the Host header names a server that this one is not: add the name to [server] hosts";
        Some(("host", Problem::new(StatusCode::MISDIRECTED_REQUEST, line)))
    } else if !request.method().is_safe() && !is_same_site(headers) {
        Some(("site", Problem::new(StatusCode::FORBIDDEN, "asked for by a page of another site")))
    } else if !is_open && !door.is_known(headers) {
        if request.method() == Method::GET && wants_page(headers) {
            let next: String = path.chars().filter(|c| c.is_ascii_graphic()).take(200).collect();
            return Redirect::to(&format!("/login?next={}", next.replace(['&', '#', '?', '%'], ""))).into_response();
        }
        Some(("token", Problem::new(StatusCode::UNAUTHORIZED, "a token is asked for: Authorization: Bearer TOKEN")))
    } else {
        None
    };
    if let Some((reason, _)) = &refused {
        app.house.metrics.turned_away(reason);
        tracing::debug!(reason, address = %address.ip(), "a request was turned away");
    }
    let mut response = match refused.map(|(_, problem)| problem) {
        Some(problem) if wants_page(headers) && !path.starts_with("/v1/") => pages::problem_page(&problem),
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        // With no referrer at all, browsers send forms on behalf of nobody: Origin: null.
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("content-security-policy", tilewright_dashboard::CONTENT_SECURITY_POLICY),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// A browser that a person looks at.
pub fn wants_page(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

impl Door {
    /// Forgets addresses that have not come for a while.
    pub fn forget_idle(&self) {
        self.pace.retain_recent();
        self.pace.shrink_to_fit();
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
fn secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

/// The token in a file, which nobody else may read.
fn token(path: &Path) -> Result<String> {
    let wrong = |reason: &str| Error::Credential { path: path.to_owned(), reason: reason.to_owned() };
    let unreadable = |error: std::io::Error| wrong(&format!("can't be read: {error}"));
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > TOKEN_FILE {
        return Err(wrong("expected a file with a token in one line"));
    }
    {
        use std::os::unix::fs::MetadataExt;
        if metadata.mode() & 0o077 != 0 {
            tracing::warn!("{}: others can read the token: chmod 600 it", path.display());
        }
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let token = text.trim();
    if token.len() < TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("expected a token of at least 16 printable ASCII characters without blanks"));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn door(token: bool) -> Door {
        let mut server = Server::default();
        let folder = tempfile::tempdir().unwrap();
        if token {
            let path = folder.path().join("token");
            std::fs::write(&path, "0123456789abcdef\n").unwrap();
            server.token_file = Some(path);
        }
        server.hosts.push("Tiles.Example".into());
        Door::new(&server).unwrap()
    }

    #[test]
    fn only_the_token_or_a_session_comes_in() {
        let door = door(true);
        for (value, comes_in) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer 0123456789abcdef", true),
            ("Bearer 0123456789abcde", false),
            ("Bearer 0123456789abcdef0", false),
            ("Bearer ", false),
            ("Basic 0123456789abcdef", false),
            ("", false),
        ] {
            assert_eq!(door.is_known(&headers(&[("authorization", value)])), comes_in, "{value}");
        }
        assert!(!door.is_known(&HeaderMap::new()));
        let set = door.begin_session();
        let session = set.split(';').next().unwrap();
        assert!(door.is_known(&headers(&[("cookie", &format!("other=1; {session}"))])));
        door.end_session(&headers(&[("cookie", session)]));
        assert!(!door.is_known(&headers(&[("cookie", session)])));
        assert!(!door.is_known(&headers(&[("cookie", "tilewright=")])));
    }

    #[test]
    fn strangers_names_are_refused() {
        let door = door(false);
        for (host, ours) in [
            ("localhost:7590", true),
            ("LOCALHOST", true),
            ("127.0.0.1:1", true),
            ("[::1]:7590", true),
            ("192.168.0.7", true),
            ("tiles.example:443", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(door.is_ours(&headers(&[("host", host)]), None), ours, "{host}");
        }
        assert!(!door.is_ours(&HeaderMap::new(), None));
        assert!(!door.is_ours(&headers(&[("host", "localhost")]), Some("evil.example")));
    }

    #[test]
    fn other_sites_change_nothing() {
        let host = ("host", "localhost:7590");
        for (pairs, same) in [
            (vec![host], true),
            (vec![host, ("origin", "http://localhost:7590"), ("sec-fetch-site", "same-origin")], true),
            (vec![host, ("origin", "http://localhost:7591")], false),
            (vec![host, ("origin", "null")], false),
            (vec![host, ("sec-fetch-site", "cross-site")], false),
            (vec![host, ("sec-fetch-site", "same-site")], false),
        ] {
            assert_eq!(is_same_site(&headers(&pairs)), same, "{pairs:?}");
        }
    }
}
