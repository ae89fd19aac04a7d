//! The door: the names that the server goes by, callers and what their role allows, their pace, and no requests on
//! behalf of another site.

mod callers;

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use subtle::ConstantTimeEq;
use tilewright_config::{Role, Server};

pub use self::callers::Callers;
use self::callers::secret;
use crate::{
    App, Result,
    audit::{Audit, CameTo, Entry},
    listen::Subject,
    pages,
    problem::Problem,
};

/// What everybody may see: whether the server lives, and how to sign in.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/login", "/assets/"];

/// The door.
pub struct Door {
    /// Tokens, roles and sessions.
    pub callers: Callers,
    /// Names that the server goes by, lower case, without port.
    hosts: Vec<String>,
    pace: DefaultKeyedRateLimiter<IpAddr>,
    /// Every form carries it: another site can't know it.
    pub form_token: String,
    /// The lines for changes.
    audit: Arc<Audit>,
}

impl Door {
    /// Reads the tokens, if there are any.
    ///
    /// # Errors
    /// [`crate::Error::Credential`] if a token can't be used.
    pub fn new(server: &Server) -> Result<Self> {
        let mut hosts = vec!["localhost".to_owned()];
        hosts.extend(server.hosts.iter().map(|host| host.to_ascii_lowercase()));
        let rate = NonZeroU32::new(server.limits.requests_per_second).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(rate).allow_burst(rate.saturating_add(rate.get()));
        Ok(Self {
            callers: Callers::new(server)?,
            hosts,
            pace: RateLimiter::keyed(quota),
            form_token: secret(),
            audit: Arc::new(Audit::new(server.audit.as_deref())),
        })
    }

    /// Whether a form is of a page of ours.
    pub fn is_form_token(&self, given: Option<&str>) -> bool {
        given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(self.form_token.as_bytes())))
    }

    /// The name that resources are shared out by: the token's, or else the address.
    pub fn caller_of(&self, request: &Request) -> String {
        let address = || request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip());
        match self.callers.of(request.headers()) {
            Some(caller) if self.callers.has_tokens() => caller.name,
            _ => address().map_or_else(String::new, |address| address.to_string()),
        }
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

/// The least role that a request needs.
fn needed(method: &Method, path: &str) -> Role {
    if method.is_safe() {
        return Role::Read;
    }
    let of_jobs = ["/v1/jobs", "/actions/submit", "/actions/jobs"];
    let is_below = |base: &&str| path.strip_prefix(*base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if of_jobs.iter().any(is_below) {
        return Role::Submit;
    }
    // Everybody may sign out.
    if path == "/actions/logout" { Role::Read } else { Role::Operate }
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
    let caller = door.callers.of(headers);
    let needed = needed(request.method(), path);
    let refused = if path != "/healthz" && door.pace.check_key(&address.ip()).is_err() {
        Some(("pace", Problem::busy("too many requests from this address: slow down", 1)))
    } else if !door.is_ours(headers, request.uri().authority().map(|authority| authority.as_str())) {
        let line = "the Host header names a server that this one is not: add the name to [server] hosts";
        Some(("host", Problem::new(StatusCode::MISDIRECTED_REQUEST, line)))
    } else if !request.method().is_safe() && !is_same_site(headers) {
        Some(("site", Problem::new(StatusCode::FORBIDDEN, "asked for by a page of another site")))
    } else if is_open {
        None
    } else {
        match &caller {
            None if request.method() == Method::GET && wants_page(headers) => {
                let next: String = path.chars().filter(|c| c.is_ascii_graphic()).take(200).collect();
                let next = next.replace(['&', '#', '?', '%'], "");
                return Redirect::to(&format!("/login?next={next}")).into_response();
            }
            None => {
                let line = "a token is asked for: Authorization: Bearer TOKEN";
                Some(("token", Problem::new(StatusCode::UNAUTHORIZED, line)))
            }
            Some(caller) if caller.role < needed => {
                let line = format!(
                    "the token '{}' is good for {}, and this takes one for {}",
                    caller.name,
                    caller.role.name(),
                    needed.name()
                );
                Some(("role", Problem::new(StatusCode::FORBIDDEN, line)))
            }
            Some(_) => None,
        }
    };
    if let Some((reason, _)) = &refused {
        app.house.metrics.turned_away(reason);
        tracing::debug!(reason, address = %address.ip(), "a request was turned away");
    }
    // A refused request changes nothing and has no line, unless a known caller tried more than the role allows. Signing
    // in needs no role, so each attempt has one.
    let is_told = refused.as_ref().is_none_or(|(reason, _)| *reason == "role");
    let entry = (!request.method().is_safe() && is_told).then(|| Entry {
        time: Entry::now(),
        who: caller.as_ref().map_or_else(|| "nobody yet".into(), |caller| caller.name.clone()),
        role: caller.as_ref().map_or("none", |caller| caller.role.name()),
        address: address.ip(),
        certificate: request.extensions().get::<Subject>().map(ToString::to_string),
        method: request.method().to_string(),
        path: Entry::path(path),
        status: 0,
        made: None,
    });
    let is_page = wants_page(headers) && !path.starts_with("/v1/");
    let mut response = match refused.map(|(_, problem)| problem) {
        Some(problem) if is_page => pages::problem_page(&problem),
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    if let Some(mut entry) = entry {
        let CameTo { status, made } = response.extensions_mut().remove::<CameTo>().unwrap_or_else(|| {
            let made = response.headers().get(header::LOCATION).and_then(|made| made.to_str().ok());
            CameTo { status: response.status().as_u16(), made: made.map(str::to_owned) }
        });
        entry.status = status;
        entry.made = made.as_deref().map(Entry::path);
        let audit = door.audit.clone();
        // Written before the request is answered: every answer that a caller got has its line.
        let _ = tokio::task::spawn_blocking(move || audit.write(&entry)).await;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn door() -> Door {
        let mut server = Server::default();
        server.hosts.push("Tiles.Example".into());
        Door::new(&server).unwrap()
    }

    #[test]
    fn each_request_takes_the_least_role_that_it_can_do_with() {
        for (method, path, role) in [
            ("GET", "/v1/jobs", Role::Read),
            ("HEAD", "/metrics", Role::Read),
            ("POST", "/v1/jobs", Role::Submit),
            ("DELETE", "/v1/jobs/1", Role::Submit),
            ("POST", "/actions/submit", Role::Submit),
            ("POST", "/actions/jobs/1/cancel", Role::Submit),
            ("POST", "/actions/logout", Role::Read),
            ("POST", "/v1/modules", Role::Operate),
            ("PUT", "/v1/modules/sha256:1/signature", Role::Operate),
            ("POST", "/v1/policies/a/check", Role::Operate),
            ("POST", "/actions/policies/a/swap", Role::Operate),
            ("POST", "/v1/routes/a/canary/stop", Role::Operate),
            ("POST", "/v1/jobs2", Role::Operate),
            ("PATCH", "/whatever/comes", Role::Operate),
        ] {
            assert_eq!(needed(&method.parse().unwrap(), path), role, "{method} {path}");
        }
    }

    #[test]
    fn strangers_names_are_refused() {
        let door = door();
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
