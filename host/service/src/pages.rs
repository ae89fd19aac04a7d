//! The dashboard: pages, their live parts, and the actions of their forms.

mod actions;
mod thumbnails;
mod views;

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    convert::Infallible,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{
        Html, IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use futures_util::{Stream, stream};
use serde::Deserialize;
use tilewright_dashboard::{
    ASSETS, job, job_parts, jobs, login, overview, overview_parts, policy, policy_parts, prompt, prompt_parts,
    status_parts, views::JobQuery,
};
use tilewright_service_api::JobState;
use tokio::sync::watch;

use crate::{
    api::{PathName, QueryParams, job_not_found},
    app::App,
    problem::{ApiResult, Problem},
};

/// The time between two checks for changes.
const PACE: Duration = Duration::from_millis(250);

/// The time after which relative times are sent again.
const ANYWAY: Duration = Duration::from_secs(5);

/// Every page, its parts and its forms.
pub fn router() -> Router<App> {
    Router::new()
        .route("/", get(overview_page))
        .route("/prompt", get(prompt_page))
        .route("/jobs", get(jobs_page))
        .route("/jobs/{id}", get(job_page))
        .route("/jobs/{id}/thumbnail", get(thumbnails::get))
        .route("/policies/{name}", get(policy_page))
        .route("/live", get(live))
        .route("/assets/{name}", get(asset))
        .route("/login", get(login_page).post(actions::sign_in))
        .route("/actions/logout", post(actions::sign_out))
        .route("/actions/submit", post(actions::submit))
        .route("/actions/jobs/{id}/cancel", post(actions::cancel))
        .route("/actions/jobs/{id}/again", post(actions::again))
        .route("/actions/policies/{name}/swap", post(actions::swap))
        .route("/actions/policies/{name}/{what}", post(actions::policy))
        .route("/actions/routes/{name}/{what}", post(actions::route))
}

/// The query of a page.
#[derive(Debug, Default, Deserialize)]
struct PageQuery {
    /// The number of the notice with the last action's outcome.
    notice: Option<String>,
    next: Option<String>,
    page: Option<String>,
}

async fn overview_page(
    State(app): State<App>,
    QueryParams(query): QueryParams<PageQuery>,
    headers: HeaderMap,
) -> ApiResult<Html<String>> {
    let html = app.blocking(move |app| Ok(overview(&views::overview(app, &headers, query.notice.as_deref())?)));
    html.await.map(Html)
}

/// The query of the page for prompts.
#[derive(Debug, Default, Deserialize)]
struct PromptQuery {
    notice: Option<String>,
    /// The job whose picture comes first.
    job: Option<String>,
    /// The job that the form is filled in from.
    from: Option<String>,
}

async fn prompt_page(
    State(app): State<App>,
    QueryParams(query): QueryParams<PromptQuery>,
    headers: HeaderMap,
) -> ApiResult<Html<String>> {
    let PromptQuery { notice, job, from } = query;
    let asked = views::AskedPrompt { notice, job, from };
    app.blocking(move |app| Ok(Html(prompt(&views::prompt(app, &headers, &asked, true)?)))).await
}

/// The query of the list of jobs. An empty field does not filter.
#[derive(Debug, Default, Deserialize)]
struct JobListQuery {
    state: Option<String>,
    model: Option<String>,
    device: Option<String>,
    policy: Option<String>,
    q: Option<String>,
    before: Option<String>,
    notice: Option<String>,
}

async fn jobs_page(
    State(app): State<App>,
    QueryParams(asked): QueryParams<JobListQuery>,
    headers: HeaderMap,
) -> ApiResult<Html<String>> {
    let JobListQuery { state, model, device, policy, q, before, notice } = asked;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty()).map(|text| text.chars().take(64).collect());
    let known = |name: String| JobState::ALL.iter().find(|(_, known)| *known == name).map(|(state, _)| *state);
    let query = JobQuery {
        state: given(state).and_then(known),
        model: given(model),
        device: given(device),
        policy: given(policy),
        text: given(q),
        before: given(before),
    };
    app.blocking(move |app| Ok(Html(jobs(&views::jobs(app, &headers, query, notice.as_deref())?)))).await
}

async fn job_page(
    State(app): State<App>,
    PathName(id): PathName,
    QueryParams(query): QueryParams<PageQuery>,
    headers: HeaderMap,
) -> Response {
    let page = app.blocking(move |app| {
        let view = views::job_page(app, &headers, &id, query.notice.as_deref())?.ok_or_else(job_not_found)?;
        Ok(Html(job(&view)).into_response())
    });
    page.await.unwrap_or_else(|problem| problem_page(&problem))
}

async fn policy_page(
    State(app): State<App>,
    PathName(name): PathName,
    QueryParams(query): QueryParams<PageQuery>,
    headers: HeaderMap,
) -> Response {
    let page = app.blocking(move |app| {
        let view = views::policy_page(app, &headers, &name, query.notice.as_deref());
        let view = view.ok_or_else(|| Problem::not_found("no policy of that name is in service"))?;
        Ok(Html(policy(&view)).into_response())
    });
    page.await.unwrap_or_else(|problem| problem_page(&problem))
}

/// A problem, as a page.
pub fn problem_page(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Html(tilewright_dashboard::problem(&views::problem_page(problem)))).into_response();
    if let Some(seconds) = problem.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn login_page(State(app): State<App>, QueryParams(query): QueryParams<PageQuery>) -> Html<String> {
    Html(login(&views::login_page(&app, query.next.as_deref(), None)))
}

async fn asset(PathName(name): PathName) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        // Pages add the digest to the address, so the file may be kept for good.
        Some(asset) => {
            let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
            (
                [(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type)), (header::CACHE_CONTROL, kept)],
                asset.body,
            )
                .into_response()
        }
        None => Problem::not_found("there is no such file").into_response(),
    }
}

/// The parts of a page as they are now: ids and elements.
fn render_parts(app: &App, headers: &HeaderMap, page: &str) -> crate::Result<Vec<(&'static str, String)>> {
    if let Some(id) = page.strip_prefix("/jobs/") {
        return Ok(views::job_page(app, headers, id, None)?.as_ref().map(job_parts).unwrap_or_default());
    }
    if let Some(name) = page.strip_prefix("/policies/") {
        return Ok(views::policy_page(app, headers, name, None).as_ref().map(policy_parts).unwrap_or_default());
    }
    if let Some(query) = page.strip_prefix("/prompt") {
        let job = query.strip_prefix("?job=").map(str::to_owned);
        let view = views::prompt(app, headers, &views::AskedPrompt { job, ..views::AskedPrompt::default() }, false)?;
        return Ok(prompt_parts(&view));
    }
    if page == "/jobs" {
        return Ok(status_parts(&views::frame(app, headers, None)));
    }
    Ok(overview_parts(&views::overview(app, headers, None)?))
}

/// Sends a page's parts as they change.
async fn live(
    State(app): State<App>,
    QueryParams(query): QueryParams<PageQuery>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let page = query.page.unwrap_or_default();
    let follower = app.server.metrics.track_follower();
    let changes = app.server.jobs.live.subscribe();
    let start = PageFollower { app, page, headers, changes, sent: HashMap::new(), waiting: Vec::new(), looked: None };
    let events = stream::unfold((start, follower), |(mut following, follower)| async move {
        let event = following.next().await?;
        Some((Ok(event), (following, follower)))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}

/// A follower of a page's parts.
struct PageFollower {
    app: App,
    page: String,
    /// The headers of the page's own request, which tell the server's address and the caller.
    headers: HeaderMap,
    changes: watch::Receiver<u64>,
    /// Hashes of the parts as they were sent.
    sent: HashMap<&'static str, u64>,
    waiting: Vec<(&'static str, String)>,
    looked: Option<Instant>,
}

impl PageFollower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((id, html)) = self.waiting.pop() {
                return Event::default().json_data(serde_json::json!({ "id": id, "html": html })).ok();
            }
            if let Some(looked) = self.looked {
                tokio::time::sleep_until((looked + PACE).into()).await;
                tokio::select! {
                    () = self.app.wait_for_end() => return None,
                    changed = self.changes.changed() => changed.ok()?,
                    () = tokio::time::sleep_until((looked + ANYWAY).into()) => {}
                }
            }
            // A caller whose token has ended sees nothing more.
            self.app.auth.callers.identify(&self.headers)?;
            self.looked = Some(Instant::now());
            self.changes.mark_unchanged();
            let (page, headers) = (self.page.clone(), self.headers.clone());
            let parts = self.app.blocking(move |app| Ok(render_parts(app, &headers, &page)?)).await.ok()?;
            for (id, html) in parts.into_iter().rev() {
                let mut hasher = DefaultHasher::new();
                html.hash(&mut hasher);
                let hash = hasher.finish();
                if self.sent.insert(id, hash) != Some(hash) {
                    self.waiting.push((id, html));
                }
            }
        }
    }
}

/// The address of a page, with the number of a notice that the page shows.
pub fn with_notice(app: &App, path: &str, is_good: bool, text: &str) -> String {
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}notice={}", app.notices.hold(is_good, text))
}
