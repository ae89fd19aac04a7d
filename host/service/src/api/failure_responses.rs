//! Responses that are the same for all operations: each handler names only the statuses of its own,
//! and no response goes without words.

use axum::http::StatusCode;
use utoipa::openapi::{
    Content, HttpMethod, OpenApi, Ref, RefOr, Response, ResponseBuilder,
    path::{Operation, PathItem},
};

/// Statuses that any request may be answered with, and true if that includes requests that only
/// read.
const OF_ALL: [(&str, &str, bool); 7] = [
    ("401", "A token is asked for", true),
    ("403", "Asked for by a page of another site, or the caller's role does not reach that far", false),
    ("421", "The Host header names a server that this one is not", true),
    ("429", "Too many requests from this address", true),
    ("500", "The server could not do that: its log says why", true),
    ("503", "Not now: too many connections, or the server ends or has too much to do", true),
    ("507", "The server's disk is full: nothing has changed", false),
];

/// Paths that need no token, with the statuses that they never answer with. `/healthz` has no rate
/// limit and no limit on connections either.
const OPEN: [(&str, &[&str]); 2] = [("/healthz", &["401", "429", "500", "503"]), ("/readyz", &["401"])];

/// Adds the responses common to all requests, and gives each failure the body of a problem.
pub fn add_common_responses(description: &mut OpenApi) {
    for (path, item) in &mut description.paths.paths {
        let open = OPEN.iter().find(|(open, _)| open == path).map_or(&[] as &[&str], |(_, without)| without);
        for (method, operation) in operations(item) {
            for (status, words, of_reads) in OF_ALL {
                if (of_reads || method != HttpMethod::Get) && !open.contains(&status) {
                    let response = ResponseBuilder::new().description(words).build();
                    operation.responses.responses.entry(status.to_owned()).or_insert(RefOr::T(response));
                }
            }
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response {
                    complete(status, response);
                }
            }
        }
    }
}

/// Completes a response: if it has no description, it gets its status's, since OpenAPI requires one
/// of each; a failure without a body of its own gets a problem's.
fn complete(status: &str, response: &mut Response) {
    if response.description.is_empty() {
        let reason = status.parse().ok().and_then(|status: StatusCode| status.canonical_reason());
        response.description = reason.unwrap_or("As described").to_owned();
    }
    if status.starts_with(['4', '5']) && response.content.is_empty() {
        let body = Content::new(Some(Ref::from_schema_name("Problem")));
        response.content.insert("application/problem+json".to_owned(), body.into());
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (HttpMethod, &mut Operation)> {
    let PathItem { get, put, post, delete, .. } = item;
    let all = [(HttpMethod::Get, get), (HttpMethod::Put, put), (HttpMethod::Post, post), (HttpMethod::Delete, delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}
