//! The layers that every request passes: access control with the audit's lines, then metrics and
//! traces.

use std::{net::SocketAddr, time::Instant};

use axum::{
    extract::{ConnectInfo, MatchedPath, Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use tracing::Instrument;

use crate::{
    app::App,
    audit::{ActionOutcome, AuditEntry},
    auth::{is_public, is_same_site, required_role, wants_page},
    listen::Subject,
    pages::problem_page,
    problem::Problem,
};

/// Refuses requests that may not come in, writes the audit's line for each change, and adds the
/// headers that every response has.
pub async fn require_auth(
    State(app): State<App>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let auth = &app.auth;
    let (headers, path) = (request.headers(), request.uri().path());
    let caller = auth.callers.identify(headers);
    let needed = required_role(request.method(), path);
    let refused = if path != "/healthz" && !auth.is_within_rate(&address.ip()) {
        Some(("pace", Problem::busy("too many requests from this address: slow down", 1)))
    } else if !auth.is_own_host(headers, request.uri().authority().map(|authority| authority.as_str())) {
        let line = "the Host header names a server that this one is not: add the name to [server] hosts";
        Some(("host", Problem::new(StatusCode::MISDIRECTED_REQUEST, line)))
    } else if !request.method().is_safe() && !is_same_site(headers) {
        Some(("site", Problem::new(StatusCode::FORBIDDEN, "asked for by a page of another site")))
    } else if is_public(path) {
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
        app.server.metrics.count_rejected(reason);
        tracing::debug!(reason, address = %address.ip(), "a request was turned away");
    }
    // A refused request changes nothing and has no line in the audit, unless a known caller tried
    // more than the role allows. Signing in needs no role, so each attempt has a line.
    let is_audited = refused.as_ref().is_none_or(|(reason, _)| *reason == "role");
    let entry = (!request.method().is_safe() && is_audited).then(|| AuditEntry {
        time: AuditEntry::now(),
        who: caller.as_ref().map_or_else(|| "nobody yet".into(), |caller| caller.name.clone()),
        role: caller.as_ref().map_or("none", |caller| caller.role.name()),
        address: Some(address.ip()),
        certificate: request.extensions().get::<Subject>().map(ToString::to_string),
        method: request.method().to_string(),
        path: AuditEntry::printable_path(path),
        status: 0,
        made: None,
        fault: None,
    });
    let is_page = wants_page(headers) && !path.starts_with("/v1/");
    let mut response = match refused.map(|(_, problem)| problem) {
        Some(problem) if is_page => problem_page(&problem),
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    if let Some(mut entry) = entry {
        let ActionOutcome { status, made } = response.extensions_mut().remove::<ActionOutcome>().unwrap_or_else(|| {
            let made = response.headers().get(header::LOCATION).and_then(|made| made.to_str().ok());
            ActionOutcome { status: response.status().as_u16(), made: made.map(str::to_owned) }
        });
        entry.status = status;
        entry.made = made.as_deref().map(AuditEntry::printable_path);
        let audit = auth.audit.clone();
        // Written before the request is answered, so that every answer that a caller received has
        // its line.
        let _ = tokio::task::spawn_blocking(move || audit.write(&entry)).await;
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        // Without a referrer, browsers send forms with `Origin: null`.
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("content-security-policy", tilewright_dashboard::CONTENT_SECURITY_POLICY),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Records and traces each request.
pub async fn record_http_metrics(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    // The route's path, not the caller's: metrics need a bounded number of labels.
    let path = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];
    let method = known.iter().find(|known| **known == request.method().as_str()).copied().unwrap_or("other");
    let span = tracing::info_span!("request", method, path, status = tracing::field::Empty);
    let response = next.run(request).instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    app.server.metrics.record_request(method, &path, response.status().as_u16(), started.elapsed());
    response
}
