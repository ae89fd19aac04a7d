//! A session with one registry: credentials, tokens, and the redirects that are followed.

use std::cell::RefCell;

use base64::{Engine, engine::general_purpose::STANDARD};
use http_auth::{ChallengeParser, ChallengeRef};
use serde_json::Value;
use ureq::{
    Body,
    http::{
        HeaderValue, Method, Response, Uri,
        header::{LOCATION, WWW_AUTHENTICATE},
        uri::PathAndQuery,
    },
};

use crate::{
    Credentials, Error, Limits, Reach, Reference, Result,
    artifact::shorten,
    reach::RegistryReach,
    transport::{Parts, Transport},
};

/// Redirects followed in a row.
const HOPS: usize = 5;

/// Bytes read of an error's or a token's text.
const TEXT: u64 = 64 << 10;

/// The reason why a redirect is not followed.
const DOWNGRADE: &str = "it leaves TLS";

/// One registry, one repository.
pub(crate) struct Session {
    transport: Transport,
    reference: Reference,
    base: Uri,
    credentials: Credentials,
    authorization: RefCell<Option<HeaderValue>>,
    /// True if the user allows HTTP without TLS.
    plain_http: bool,
    reach: RegistryReach,
}

impl Session {
    pub fn new(
        reference: &Reference,
        credentials: Credentials,
        plain_http: bool,
        reach: Reach,
        limits: Limits,
    ) -> Result<Self> {
        let scheme = if plain_http || reference.is_loopback() { "http" } else { "https" };
        let base = format!("{scheme}://{}", reference.registry());
        let base = base.parse().map_err(|error| Error::Reference {
            text: reference.to_string(),
            detail: format!("its registry is no address ({error})"),
        })?;
        let reach = RegistryReach::new(reach, reference.registry());
        Ok(Self {
            transport: Transport::new(reference.registry(), reference.is_loopback(), reach.clone(), limits),
            reference: reference.clone(),
            base,
            credentials,
            authorization: RefCell::default(),
            plain_http,
            reach,
        })
    }

    /// An address below this repository's.
    pub fn url(&self, rest: &str) -> Result<Uri> {
        let path = format!("/v2/{}/{rest}", self.reference.repository());
        let mut parts = self.base.clone().into_parts();
        let parsed = path.parse::<PathAndQuery>().ok();
        parts.path_and_query = parsed.clone();
        let url = parsed.and_then(|_| Uri::from_parts(parts).ok());
        url.ok_or_else(|| Error::Reference { text: path, detail: "it makes no address".into() })
    }

    /// Sends a request, and takes only an answer with one of these statuses.
    pub fn expect(
        &self,
        statuses: &[u16],
        what: &'static str,
        method: Method,
        url: Uri,
        parts: Parts<'_>,
    ) -> Result<Response<Body>> {
        let response = self.ask(what, method, url, parts)?;
        match statuses.contains(&response.status().as_u16()) {
            true => Ok(response),
            false => Err(self.response_error(what, response)),
        }
    }

    /// Sends a request, with credentials if the registry asks for them, and follows redirects.
    /// `what` is its subject, for errors.
    pub fn ask(
        &self,
        what: &'static str,
        method: Method,
        mut url: Uri,
        mut parts: Parts<'_>,
    ) -> Result<Response<Body>> {
        let (mut known, mut hops) = (false, 0);
        loop {
            let is_own = origin(&url) == origin(&self.base);
            // Credentials go to no other host: neither to a redirected download nor to an upload's
            // address.
            parts.headers.retain(|(name, _)| *name != "authorization");
            if let Some(value) = self.authorization.borrow().clone().filter(|_| is_own) {
                parts.headers.push(("authorization", value));
            }
            let response = self.transport.send(what, &method, &url, &parts)?;
            match response.status().as_u16() {
                401 if is_own && !known => {
                    known = true;
                    if !self.identify(&response, &method)? {
                        return Ok(response);
                    }
                }
                301 | 302 | 303 | 307 | 308 if matches!(method, Method::GET | Method::HEAD) => {
                    hops += 1;
                    let to = self.location(what, &url, &response)?;
                    if hops > HOPS {
                        return Err(self.redirect(what, &to.to_string(), "that is one redirect too many"));
                    }
                    url = to;
                }
                _ => return Ok(response),
            }
        }
    }

    /// Reads an answer's body.
    pub fn body(&self, what: &'static str, response: &mut Response<Body>, most: u64) -> Result<Vec<u8>> {
        let bytes = self.transport.body(what, response, most)?;
        bytes.ok_or_else(|| Error::TooLarge { reference: self.reference.to_string(), what, most })
    }

    /// The address in an answer: an upload's, or a redirect's.
    pub fn location(&self, what: &'static str, from: &Uri, response: &Response<Body>) -> Result<Uri> {
        let text = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let to = resolve(from, text).ok_or_else(|| self.redirect(what, text, "that is no address"))?;
        self.check_permitted(&to).map_err(|why| self.redirect(what, text, why))?;
        Ok(to)
    }

    /// The error of an unexpected answer.
    fn response_error(&self, what: &'static str, mut response: Response<Body>) -> Error {
        let registry = self.reference.registry().to_owned();
        let text = self.transport.body(what, &mut response, TEXT).ok().flatten().unwrap_or_default();
        let detail = error_message(&text);
        match response.status().as_u16() {
            401 | 403 => Error::Denied { registry, what: what.into(), detail },
            404 => Error::NotFound { reference: self.reference.to_string(), detail },
            status => Error::Answer { registry, what: what.into(), status, detail },
        }
    }

    /// Allows an address if it is within reach and keeps TLS, or if the registry is on this machine
    /// or the user allows HTTP.
    fn check_permitted(&self, to: &Uri) -> Result<(), &'static str> {
        self.reach.check(to)?;
        let is_here = || to.authority().is_some_and(|authority| crate::reference::is_loopback(authority.as_str()));
        match to.scheme_str() {
            Some("https") => Ok(()),
            Some("http") if self.base.scheme_str() == Some("http") && (self.plain_http || is_here()) => Ok(()),
            _ => Err(DOWNGRADE),
        }
    }

    fn redirect(&self, what: &str, to: &str, why: &'static str) -> Error {
        let registry = self.reference.registry().to_owned();
        Error::Redirect { registry, what: what.into(), to: shorten(to), why }
    }

    /// Answers an authentication challenge; false if there are no credentials.
    fn identify(&self, response: &Response<Body>, method: &Method) -> Result<bool> {
        let values: Vec<&str> =
            response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).collect();
        // A malformed challenge can't be answered.
        let challenges: Vec<ChallengeRef<'_>> =
            values.iter().flat_map(|value| ChallengeParser::new(value)).filter_map(Result::ok).collect();
        let of = |scheme: &str| challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        let value = if let Some(challenge) = of("bearer") {
            Some(format!("Bearer {}", self.token(challenge, method)?))
        } else if of("basic").is_some() {
            self.basic()
        } else {
            None
        };
        let Some(value) = value else { return Ok(false) };
        let mut value = HeaderValue::try_from(value).map_err(|_| self.strange("its token is no text"))?;
        value.set_sensitive(true);
        *self.authorization.borrow_mut() = Some(value);
        Ok(true)
    }

    fn basic(&self) -> Option<String> {
        match &self.credentials {
            Credentials::Basic { user, password } => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
            Credentials::Anonymous => None,
        }
    }

    /// Gets a token from the challenge's address, with the rights that a method needs.
    fn token(&self, challenge: &ChallengeRef<'_>, method: &Method) -> Result<String> {
        const WHAT: &str = "logging in";
        let parameter = |name: &str| {
            let found = challenge.params.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        // A pull only gets; a push asks for what is there by another method.
        let actions = if *method == Method::GET { "pull" } else { "pull,push" };
        let realm = parameter("realm").unwrap_or_default();
        let scope = format!("repository:{}:{actions}", self.reference.repository());
        let mut query = vec![format!("scope={}", percent_encode(&scope))];
        query.extend(parameter("service").map(|service| format!("service={}", percent_encode(&service))));
        let joint = if realm.contains('?') { '&' } else { '?' };
        let url = format!("{realm}{joint}{}", query.join("&"));
        let url = resolve(&self.base, &url).ok_or_else(|| self.redirect(WHAT, &realm, "that is no address"))?;
        self.check_permitted(&url).map_err(|why| self.redirect(WHAT, &realm, why))?;
        let credentials = self.basic().and_then(|basic| HeaderValue::try_from(basic).ok());
        let headers = credentials.map(|value| ("authorization", value)).into_iter().collect();
        let parts = Parts { headers, body: None };
        let mut response = self.transport.send(WHAT, &Method::GET, &url, &parts)?;
        if response.status() != 200 {
            return Err(self.response_error(WHAT, response));
        }
        let text = self.body("token", &mut response, TEXT)?;
        let said: Value = serde_json::from_slice(&text).unwrap_or_default();
        let token = said["token"].as_str().or(said["access_token"].as_str());
        token.map(str::to_owned).ok_or_else(|| self.strange("it gives no token"))
    }

    fn strange(&self, detail: &str) -> Error {
        Error::Transport { registry: self.reference.registry().into(), detail: format!("logging in: {detail}") }
    }
}

/// Scheme, host and port, which credentials belong to.
fn origin(url: &Uri) -> (Option<&str>, Option<String>, Option<u16>) {
    let fallback = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let host = url.host().map(str::to_ascii_lowercase);
    (url.scheme_str(), host, url.port_u16().or(Some(fallback)))
}

/// An address in a registry's answer: absolute, or a path.
fn resolve(from: &Uri, text: &str) -> Option<Uri> {
    if text.starts_with('/') && !text.starts_with("//") {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(text.parse().ok()?);
        return Uri::from_parts(parts).ok();
    }
    let url: Uri = text.parse().ok()?;
    // User information before the host would be sent as credentials.
    let authority = url.authority()?.as_str();
    (url.scheme().is_some() && !authority.contains('@')).then_some(url)
}

/// A text, encoded for a query.
fn percent_encode(text: &str) -> String {
    let keeps = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if keeps(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A registry's own message: the first error in the specification's form.
fn error_message(text: &[u8]) -> String {
    let said: Value = serde_json::from_slice(text).unwrap_or_default();
    let first = &said["errors"][0];
    shorten(first["message"].as_str().or(first["code"].as_str()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(reference: &str, plain_http: bool) -> Session {
        Session::new(&reference.parse().unwrap(), Credentials::Anonymous, plain_http, Reach::User, Limits::default())
            .unwrap()
    }

    #[test]
    fn tls_is_never_left() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let secure = session("registry.example/wide:1", false);
        assert!(secure.check_permitted(&uri("https://elsewhere.example/blob")).is_ok());
        for to in ["http://registry.example/blob", "http://localhost:9/", "ftp://a.example/"] {
            assert_eq!(secure.check_permitted(&uri(to)), Err(DOWNGRADE), "{to}");
        }
        assert!(secure.check_permitted(&uri("http://127.0.0.1/blob")).is_err());
        let here = session("127.0.0.1:5000/wide:1", false);
        assert!(here.check_permitted(&uri("http://localhost:5001/blob")).is_ok());
        assert_eq!(here.check_permitted(&uri("http://elsewhere.example/blob")), Err(DOWNGRADE));
        assert!(session("registry.example/wide:1", true).check_permitted(&uri("http://elsewhere.example/")).is_ok());
    }

    #[test]
    fn credentials_belong_to_scheme_host_and_port() {
        let same = |one: &str, other: &str| origin(&one.parse().unwrap()) == origin(&other.parse().unwrap());
        assert!(same("https://a.example/x", "https://A.example:443/y"));
        assert!(same("http://a.example/x", "http://a.example:80/y"));
        for other in ["http://a.example/", "https://a.example:444/", "https://b.example/", "https://a.example.b/"] {
            assert!(!same("https://a.example/", other), "{other}");
        }
    }

    #[test]
    fn addresses_are_whole_or_a_path() {
        let from: Uri = "https://a.example:1/v2/x".parse().unwrap();
        let resolve = |text: &str| resolve(&from, text).map(|url| url.to_string());
        assert_eq!(resolve("/v2/y?z=1").as_deref(), Some("https://a.example:1/v2/y?z=1"));
        assert_eq!(resolve("https://b.example/y").as_deref(), Some("https://b.example/y"));
        for text in ["//b.example/y", "y", "", "https://user@b.example/y", "javascript:x", "/a b", "http://"] {
            assert_eq!(resolve(text), None, "{text}");
        }
    }

    #[test]
    fn a_registrys_words_fit_into_a_line() {
        assert_eq!(error_message(br#"{"errors":[{"code":"DENIED","message":"no\n\u001b[31m way"}]}"#), "no [31m way");
        assert_eq!(error_message(br#"{"errors":[{"code":"DENIED"}]}"#), "DENIED");
        for text in ["", "<html>", "{}", r#"{"errors":[]}"#] {
            assert_eq!(error_message(text.as_bytes()), "");
        }
    }
}
