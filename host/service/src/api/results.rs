//! Results of jobs, and pictures of samples under way.

use std::{ops::RangeInclusive, path::Path, time::SystemTime};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tilewright_service_api::JobState;
use tower::ServiceExt;
use tower_http::services::ServeFile;
use utoipa::IntoParams;

use super::{
    conditional::{Answer, Validators},
    extract::{PathName, QueryParams},
    jobs::job_not_found,
};
use crate::{
    app::App,
    problem::{ApiResult, Problem},
};

/// The caching of what never changes. Callers keep it for themselves: others may not see it.
pub const KEPT: &str = "private, max-age=3600, immutable";

/// The result to fetch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ResultQuery {
    /// The sample's place in the batch, from 0.
    #[serde(default)]
    #[param(default = 0, maximum = 65535)]
    sample: u16,
}

/// Fetch a result
///
/// A result never changes: its ETag stays, and a copy with this tag is current. Of Range, one range
/// of bytes is given; anything else is answered with the whole file.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/result", operation_id = "getResult",
    params(
        ("id" = String, Path, description = "The job's id"), ResultQuery,
        ("Range" = Option<String>, Header, description = "One range of bytes"),
        ("If-Range" = Option<String>, Header, description = "The tag or date of the file that other parts are of: of another one, all of it is given"),
        ("If-None-Match" = Option<String>, Header, description = "Tags of files that the caller has"),
        ("If-Match" = Option<String>, Header, description = "Tags of files that the caller means")
    ),
    responses(
        (status = 200, description = "The file", content(("image/png"), ("image/jpeg"), ("image/webp"), ("image/gif"), ("video/mp4"), ("video/webm"), ("video/x-matroska"), ("application/octet-stream")), headers(("ETag" = String, description = "The file's tag, which never changes"), ("Last-Modified" = String, description = "When it was written"))),
        (status = 206, description = "The part of it that Range asks for", headers(("Content-Range" = String, description = "The part, and the size of the whole"))),
        (status = 304, description = "The caller has it"),
        (status = 400),
        (status = 404),
        (status = 409, description = "It has not ended, or ended without a result"),
        (status = 410, description = "It is no longer there"),
        (status = 412, description = "It is not the file that If-Match or If-Unmodified-Since means"),
        (status = 416, description = "There is no such part", headers(("Content-Range" = String, description = "The size of the whole")))
    )
)]
pub async fn result(
    State(app): State<App>,
    PathName(id): PathName,
    QueryParams(ResultQuery { sample }): QueryParams<ResultQuery>,
    method: Method,
    asked: HeaderMap,
) -> ApiResult<Response> {
    let job = app.blocking(move |app| Ok(app.server.jobs.store.get(&id)?.ok_or_else(job_not_found)?.job)).await?;
    if job.state != JobState::Done {
        let why = job.error.map_or_else(String::new, |error| format!(": {error}"));
        return Err(Problem::conflict(format!("there is no result: the job is {}{why}", job.state.name())));
    }
    let Some(result) = job.results.get(usize::from(sample)) else {
        return Err(Problem::not_found(format!("sample: the job has {}", job.results.len())));
    };
    let paths = app.server.jobs.files.results(&job.id, job.format.ending(), job.batch);
    let gone = || Problem::new(StatusCode::GONE, "the result is no longer there");
    let path = paths.into_iter().nth(usize::from(sample)).ok_or_else(gone)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kept = KeptFile {
        what: "result",
        path: &path,
        // A job has one result for each sample, whatever becomes of the server.
        tag: &format!("{}.{sample}", job.id),
        content_type: &result.content_type,
        name: &format!("{}-{name}", job.id),
    };
    kept.answer(&method, &asked).await?.ok_or_else(gone)
}

/// A file of a job that never changes once it exists.
pub struct KeptFile<'a> {
    /// The file in a word.
    pub what: &'a str,
    /// The place of the file.
    pub path: &'a Path,
    /// The text that is its tag.
    pub tag: &'a str,
    /// The media type.
    pub content_type: &'a str,
    /// The name that browsers save it under.
    pub name: &'a str,
}

impl KeptFile<'_> {
    /// The file, a part of it, or the answer that the caller has it; none if it is not there.
    ///
    /// # Errors
    /// The caller means another file, or a part that it does not have.
    pub async fn answer(&self, method: &Method, asked: &HeaderMap) -> ApiResult<Option<Response>> {
        let Self { what, path, .. } = self;
        let Ok(facts) = tokio::fs::metadata(path).await else { return Ok(None) };
        let validators = Validators::new(self.tag, facts.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        let part = match validators.answer(method, asked, facts.len()) {
            Answer::Whole => None,
            Answer::Part(part) => Some(part),
            Answer::NotModified => {
                let headers = [(header::CACHE_CONTROL, KEPT)];
                return Ok(Some((StatusCode::NOT_MODIFIED, validators.headers(), headers).into_response()));
            }
            Answer::NotTheSame => {
                let line = format!("the {what} is another file: its tag is {}", validators.tag);
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, line);
                return Ok(Some((validators.headers(), problem).into_response()));
            }
            Answer::NoSuchPart => {
                let size = [(header::CONTENT_RANGE, format!("bytes */{}", facts.len()))];
                let line = format!("Range: there is no such part of {} bytes", facts.len());
                return Ok(Some((size, Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, line)).into_response()));
            }
        };
        let file = serve_file(path, part).await;
        if ![StatusCode::OK, StatusCode::PARTIAL_CONTENT].contains(&file.status()) {
            return Ok(None);
        }
        let headers = [
            (header::CONTENT_TYPE, self.content_type.to_owned()),
            (header::CONTENT_DISPOSITION, format!("inline; filename=\"{}\"", self.name)),
            (header::CACHE_CONTROL, KEPT.to_owned()),
        ];
        Ok(Some((headers, validators.headers(), file).into_response()))
    }
}

/// The sample so far
///
/// A picture of a sample under way that was submitted with `preview`, after its last step.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/preview", operation_id = "getPreview", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The picture", content(("image/png"))),
        (status = 404, description = "No such job, or it has no preview now")
    )
)]
pub async fn preview(State(app): State<App>, PathName(id): PathName) -> ApiResult<Response> {
    app.blocking(move |app| {
        // The id is a job's, and so no path of anybody's making.
        let stored = app.server.jobs.store.get(&id)?.ok_or_else(job_not_found)?;
        // That of a job that has just ended may not be removed yet.
        let is_under_way = !stored.job.state.is_end();
        let picture = is_under_way.then(|| std::fs::read(app.server.jobs.files.preview(&id)).ok()).flatten();
        let none = "no preview: the job does not sample now, or was not asked for one";
        let picture = picture.ok_or_else(|| Problem::not_found(none))?;
        let headers = [(header::CONTENT_TYPE, "image/png"), (header::CACHE_CONTROL, "no-store")];
        Ok((headers, picture).into_response())
    })
    .await
}

/// A file, or a part of it; another status if there is none. It is read as the caller takes it,
/// and is open until then: what is deleted meanwhile arrives whole.
pub async fn serve_file(path: &Path, part: Option<RangeInclusive<u64>>) -> Response {
    let mut request = Request::new(Body::empty());
    let range = part.and_then(|part| HeaderValue::try_from(format!("bytes={}-{}", part.start(), part.end())).ok());
    request.headers_mut().extend(range.map(|range| (header::RANGE, range)));
    let Ok(found) = ServeFile::new(path).oneshot(request).await;
    found.map(Body::new)
}
