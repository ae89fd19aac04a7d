//! Bodies of requests and parts of paths, read whole or refused with a line.

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header, request::Parts},
};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::parse_faults::{self, Fault};
use crate::problem::Problem;

/// Characters of the longest name.
const NAME: usize = 64;

/// Bytes of a JSON body.
const JSON: usize = 64 << 10;

/// A JSON body.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        if !is_media(&parts.headers, "application/json") {
            return Err(Problem::unsupported("expected Content-Type: application/json"));
        }
        check_length(&parts.headers, JSON as u64)?;
        let bytes = axum::body::to_bytes(body, JSON).await.map_err(|error| body_problem(&error, JSON as u64))?;
        parse_json(&bytes).map(JsonBody)
    }
}

/// True if a body is of a media type.
pub fn is_media(headers: &HeaderMap, media: &str) -> bool {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    sent.split(';').next().is_some_and(|sent| sent.trim().eq_ignore_ascii_case(media))
}

/// Parses JSON; a fault names the field that is wrong.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    parse_faults::parse_object(bytes).map_err(|fault| match fault {
        Fault::Syntax(line) => Problem::bad_request(format!("the body: {line}")),
        Fault::Data(line) => Problem::invalid(line),
    })
}

/// Refuses a body that says itself that it is too large, before any of it is read.
pub fn check_length(headers: &HeaderMap, most: u64) -> Result<(), Problem> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) { Err(too_large(most)) } else { Ok(()) }
}

fn too_large(most: u64) -> Problem {
    let most = tilewright_plan::bytes::display(most);
    Problem::too_large(format!("the body is larger than the {most} that are taken"))
}

/// The problem of a body that ended early.
pub fn body_problem(error: &axum::Error, most: u64) -> Problem {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return too_large(most);
        }
        cause = error.source();
    }
    Problem::bad_request("the body was cut off, or took too long")
}

/// The parameters of a query.
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        asked.map(|Query(asked)| QueryParams(asked)).map_err(|error| {
            let fault = parse_faults::describe_query_fault(&error.body_text());
            Problem::bad_request(format!("the query: {fault}"))
        })
    }
}

/// Checks texts of a query that are compared with names, none of which is longer than 64
/// characters.
///
/// # Errors
/// A text is longer.
pub fn check_names(names: &[(&str, &Option<String>)]) -> Result<(), Problem> {
    match names.iter().find(|(_, text)| text.as_ref().is_some_and(|text| text.chars().count() > NAME)) {
        Some((name, _)) => Err(Problem::bad_request(format!("{name}: expected at most {NAME} characters"))),
        None => Ok(()),
    }
}

/// Checks the id of the job that a page goes on from.
///
/// # Errors
/// It is not the id of a job: it would have no place among them.
pub fn check_before(before: Option<&str>) -> Result<(), Problem> {
    let is_id = |text: &str| Uuid::try_parse(text).is_ok_and(|id| id.to_string() == text);
    match before.is_none_or(is_id) {
        true => Ok(()),
        false => Err(Problem::bad_request("before: expected a job's id, such as the page before has in next")),
    }
}

/// Checks the limit of a page.
///
/// # Errors
/// It is none or too many.
pub fn check_limit(limit: u32) -> Result<u32, Problem> {
    match limit {
        1..=500 => Ok(limit),
        _ => Err(Problem::bad_request("limit: expected 1 to 500")),
    }
}

/// The name in a path.
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(PathName(name)),
            Err(_) => Err(Problem::not_found("there is nothing of that name")),
        }
    }
}
