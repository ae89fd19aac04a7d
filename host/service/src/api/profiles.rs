//! Profiles of jobs: a trace for programs, a page for people.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, Method, header},
    response::Response,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{PathName, QueryParams},
    jobs::job_not_found,
    results::KeptFile,
};
use crate::{
    app::App,
    problem::{ApiResult, Problem},
};

/// The policy of the page, which stands alone: its styles are its own, and it has no scripts.
const PAGE_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; sandbox";

/// The form of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProfileFormat {
    /// A trace of Chrome's format.
    #[default]
    Json,
    /// A page.
    Html,
}

/// The profile to fetch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ProfileQuery {
    /// A trace, or a page for browsers.
    #[serde(default)]
    #[param(inline, default = "json")]
    format: ProfileFormat,
}

/// Fetch the profile of a job
///
/// A job that was submitted with `profile` and has ended has a trace for ui.perfetto.dev and
/// chrome://tracing, in which its stages, steps, chunks, tiles and blocks are ranges, and a page
/// that stands alone. The job's own `profile` has the tables. Like a result, both never change.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/profile", operation_id = "getProfile",
    params(("id" = String, Path, description = "The job's id"), ProfileQuery),
    responses(
        (status = 200, description = "The trace or the page", content(("application/json"), ("text/html")), headers(("ETag" = String, description = "The file's tag, which never changes"))),
        (status = 206, description = "The part of it that Range asks for"),
        (status = 304, description = "The caller has it"),
        (status = 400),
        (status = 404, description = "No such job, or it has no profile: it was not asked for one, has not ended, or ended before a stage did"),
        (status = 412, description = "It is not the file that If-Match or If-Unmodified-Since means"),
        (status = 416, description = "There is no such part")
    )
)]
pub async fn get(
    State(app): State<App>,
    PathName(id): PathName,
    QueryParams(ProfileQuery { format }): QueryParams<ProfileQuery>,
    method: Method,
    asked: HeaderMap,
) -> ApiResult<Response> {
    let stored = app.blocking(move |app| app.server.jobs.store.get(&id)?.ok_or_else(job_not_found)).await?;
    if !stored.request.profile {
        return Err(Problem::not_found("no profile: the job was not asked for one: submit it with profile"));
    }
    if !stored.job.state.is_end() {
        return Err(Problem::not_found("no profile yet: the job has not ended"));
    }
    let (files, id) = (&app.server.jobs.files, &stored.job.id);
    let (path, content_type) = match format {
        ProfileFormat::Json => (files.profile_trace(id), "application/json"),
        ProfileFormat::Html => (files.profile_page(id), "text/html; charset=utf-8"),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kept = KeptFile {
        what: "profile",
        path: &path,
        tag: &format!("{id}.{name}"),
        content_type,
        name: &format!("{id}-{name}"),
    };
    let none = "no profile: no stage of the job was profiled to its end";
    let mut response = kept.answer(&method, &asked).await?.ok_or_else(|| Problem::not_found(none))?;
    if format == ProfileFormat::Html {
        let policy = HeaderValue::from_static(PAGE_SECURITY_POLICY);
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}
