//! Access control: the server's own host names, callers and their roles, the rate of requests, and
//! protection from requests that another site makes a browser send.

mod callers;
mod tokens;

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
};

use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderMap, Method, header},
};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use subtle::ConstantTimeEq;
use tilewright_config::{Role, Server};

pub use self::callers::Callers;
use self::callers::new_secret;
use crate::{Result, audit::AuditLog};

/// Paths that need no token: health checks and the sign-in page. A path that ends in `/` stands for
/// all below it.
const PUBLIC: [&str; 4] = ["/healthz", "/readyz", "/login", "/assets/"];

/// The decision about each request: its host, its caller, its rate.
pub struct AccessControl {
    /// Tokens, roles and sessions.
    pub callers: Callers,
    /// The server's own names, lower case, without port.
    hosts: Vec<String>,
    /// The rate limit of each address.
    rate_limiter: DefaultKeyedRateLimiter<IpAddr>,
    /// The token in every form of the dashboard. Another site can't know it.
    pub form_token: String,
    /// The log of changes.
    pub audit: Arc<AuditLog>,
}

impl AccessControl {
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
            rate_limiter: RateLimiter::keyed(quota),
            form_token: new_secret(),
            audit: Arc::new(AuditLog::new(server.audit.as_deref())),
        })
    }

    /// True if a form comes from a page of this server.
    pub fn is_form_token(&self, given: Option<&str>) -> bool {
        given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(self.form_token.as_bytes())))
    }

    /// Counts a request of an address; false if it has made too many.
    pub fn is_within_rate(&self, address: &IpAddr) -> bool {
        self.rate_limiter.check_key(address).is_ok()
    }

    /// Forgets addresses that have sent nothing for a while.
    pub fn forget_idle_addresses(&self) {
        self.rate_limiter.retain_recent();
        self.rate_limiter.shrink_to_fit();
    }

    /// The name of the caller's token; none if no token is asked for.
    pub fn token_name(&self, headers: &HeaderMap) -> Option<String> {
        // A token that has ended since the request came in has no name any more, which is none of
        // those callers without tokens have.
        let name = || self.callers.identify(headers).map(|caller| caller.name).unwrap_or_default();
        self.callers.has_tokens().then(name)
    }

    /// The name that resources are shared out by: the token's, or else the address.
    pub fn caller_name(&self, request: &Request) -> String {
        let address = || request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip());
        self.token_name(request.headers())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| address().map_or_else(String::new, |address| address.to_string()))
    }

    /// True if the Host header, and the name in the request's first line if it has one, are this
    /// server's. A page under another name could have been given our address (DNS rebinding).
    pub fn is_own_host(&self, headers: &HeaderMap, line: Option<&str>) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) else { return false };
        self.is_known_host(host) && line.is_none_or(|line| self.is_known_host(line))
    }

    fn is_known_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        // An address can't be rebound: only names are.
        name.parse::<IpAddr>().is_ok() || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// True if a path needs no token.
pub fn is_public(path: &str) -> bool {
    PUBLIC.iter().any(|public| path == *public || public.ends_with('/') && path.starts_with(public))
}

/// True unless the headers say that a page of another site makes the request.
pub fn is_same_site(headers: &HeaderMap) -> bool {
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
pub fn required_role(method: &Method, path: &str) -> Role {
    if method.is_safe() {
        return Role::Read;
    }
    let of_jobs = ["/v1/jobs", "/v1/remote-vae", "/actions/submit", "/actions/jobs"];
    let is_below = |base: &&str| path.strip_prefix(*base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if of_jobs.iter().any(is_below) {
        return Role::Submit;
    }
    // Each caller may sign out.
    if path == "/actions/logout" { Role::Read } else { Role::Operate }
}

/// True for a browser that asks for a page.
pub fn wants_page(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn auth() -> AccessControl {
        let mut server = Server::default();
        server.hosts.push("Tiles.Example".into());
        AccessControl::new(&server).unwrap()
    }

    #[test]
    fn each_request_takes_the_least_role_that_it_can_do_with() {
        for (method, path, role) in [
            ("GET", "/v1/jobs", Role::Read),
            ("HEAD", "/metrics", Role::Read),
            ("POST", "/v1/jobs", Role::Submit),
            ("DELETE", "/v1/jobs/1", Role::Submit),
            ("POST", "/v1/remote-vae/flux/decode", Role::Submit),
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
            assert_eq!(required_role(&method.parse().unwrap(), path), role, "{method} {path}");
        }
    }

    #[test]
    fn strangers_names_are_refused() {
        let auth = auth();
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
            assert_eq!(auth.is_own_host(&headers(&[("host", host)]), None), ours, "{host}");
        }
        assert!(!auth.is_own_host(&HeaderMap::new(), None));
        assert!(!auth.is_own_host(&headers(&[("host", "localhost")]), Some("evil.example")));
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
