//! Errors as callers receive them: problem details (RFC 9457), one line each.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tilewright_rollout::without_error_numbers;
use utoipa::ToSchema;

use crate::{accept::Refusal, disk_check, error::one_line};

/// A fault of a request, or a failure of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status names the kind.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    kind: &'static str,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The fault, its place and the remedy, in a line.
    pub detail: String,
    #[serde(skip)]
    pub retry_after: Option<u64>,
}

/// A response or a problem.
pub type ApiResult<T> = Result<T, Problem>;

impl Problem {
    /// A problem with a status and a line.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        let detail: String = detail.into();
        let detail =
            without_error_numbers(&detail).chars().map(|c| if c.is_control() { ' ' } else { c }).take(2000).collect();
        Self { kind: "about:blank", title, status: status.as_u16(), detail, retry_after: None }
    }

    /// The request is not as HTTP or its form has it.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The body is larger than is taken.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// The body is of a kind that is not taken.
    pub fn unsupported(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// A form of another site, or of a page of a server that has ended since.
    pub fn stale_form() -> Self {
        Self::new(StatusCode::FORBIDDEN, "this form is out of date: load its page again and repeat it")
    }

    /// The resource does not exist.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The request can't be carried out as it is.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// The request conflicts with the present state.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// The server failed. The cause goes to its log alone.
    pub fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!(error = one_line(error), "a request can't be served");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the server could not do that: its log says why")
    }

    /// The disk is full or can't be written: nothing has changed, and a later try may succeed.
    pub fn not_written(is_full: bool) -> Self {
        let (status, detail) = match is_full {
            true => (
                StatusCode::INSUFFICIENT_STORAGE,
                "there is no room on the server's disk, nothing was changed: come again after Retry-After",
            ),
            false => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the server's disk can't be written, nothing was changed: come again after Retry-After",
            ),
        };
        Self { retry_after: Some(disk_check::RETRY_S), ..Self::new(status, detail) }
    }

    /// Too many requests, with the seconds to wait.
    pub fn busy(detail: impl Into<String>, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(line) => Problem::invalid(line),
            Refusal::QueueFull(seconds) => Problem::busy("the queue is full: come again after Retry-After", seconds),
            Refusal::TooLarge(most) => {
                let most = tilewright_plan::bytes::display(most);
                Problem::too_large(format!("a latent of at most {most} is taken ([server.limits] upload)"))
            }
            Refusal::NotWritten(is_full) => Problem::not_written(is_full),
            Refusal::ShuttingDown => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server is about to end"),
            Refusal::Internal(line) => {
                tracing::error!(error = line, "a job can't be accepted");
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server could not do that: its log says why")
            }
        }
    }
}

impl From<crate::Error> for Problem {
    fn from(error: crate::Error) -> Self {
        match error.write_fault() {
            Some(is_full) => {
                tracing::error!(error = one_line(&error), "a request can't be served");
                Problem::not_written(is_full)
            }
            None => Problem::internal(&error),
        }
    }
}

impl From<tilewright_rollout::Error> for Problem {
    fn from(error: tilewright_rollout::Error) -> Self {
        use tilewright_rollout::Error;
        let line = error.for_callers();
        match error {
            // The answer of a registry is for the operator.
            Error::Registry(_) => {
                tracing::warn!(error = one_line(&error), "a registry does not give a policy");
                Problem::invalid(line)
            }
            Error::UnknownPolicy { .. } | Error::UnknownRoute { .. } => Problem::not_found(line),
            Error::NoPrevious { .. } | Error::NoCanary { .. } | Error::Busy { .. } => Problem::conflict(line),
            error if error.is_input() => Problem::invalid(line),
            error => crate::Error::from(error).into(),
        }
    }
}

impl From<tokio::task::JoinError> for Problem {
    fn from(error: tokio::task::JoinError) -> Self {
        Problem::internal(&error)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = self.retry_after;
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
