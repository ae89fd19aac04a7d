//! The dashboard: pages, their live parts, and what their forms do.

mod actions;
mod facts;
mod notices;

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
use tilewright_dashboard::{ASSETS, Part, job, job_part, jobs, login, overview, policy, policy_part, status_part};
use tokio::{sync::watch, task::spawn_blocking};

pub use self::notices::Notices;
use crate::{
    App,
    api::{Asked, Named},
    problem::{Outcome, Problem},
};

/// Between two looks at what has changed.
const PACE: Duration = Duration::from_millis(250);

/// Times that are told relative to now are told anew this often.
const ANYWAY: Duration = Duration::from_secs(5);

/// Every page, its parts and its forms.
pub fn router() -> Router<App> {
    Router::new()
        .route("/", get(overview_page))
        .route("/jobs", get(jobs_page))
        .route("/jobs/{id}", get(job_page))
        .route("/policies/{name}", get(policy_page))
        .route("/live", get(live))
        .route("/assets/{name}", get(asset))
        .route("/login", get(login_page).post(actions::sign_in))
        .route("/actions/logout", post(actions::sign_out))
        .route("/actions/submit", post(actions::submit))
        .route("/actions/jobs/{id}/cancel", post(actions::cancel))
        .route("/actions/policies/{name}/swap", post(actions::swap))
        .route("/actions/policies/{name}/{what}", post(actions::policy))
        .route("/actions/routes/{name}/{what}", post(actions::route))
}

/// What pages are asked with.
#[derive(Debug, Default, Deserialize)]
struct Told {
    /// What became of the last action, by its number.
    notice: Option<String>,
    next: Option<String>,
    page: Option<String>,
}

async fn overview_page(State(app): State<App>, Asked(told): Asked<Told>, headers: HeaderMap) -> Outcome<Html<String>> {
    let html =
        spawn_blocking(move || facts::overview(&app, &headers, told.notice.as_deref()).map(|facts| overview(&facts)));
    Ok(Html(html.await??))
}

/// The query of the list of jobs. An empty field asks for nothing.
#[derive(Debug, Default, Deserialize)]
struct Searched {
    state: Option<String>,
    model: Option<String>,
    device: Option<String>,
    policy: Option<String>,
    q: Option<String>,
    before: Option<String>,
    notice: Option<String>,
}

async fn jobs_page(State(app): State<App>, Asked(asked): Asked<Searched>, headers: HeaderMap) -> Outcome<Html<String>> {
    let Searched { state, model, device, policy, q, before, notice } = asked;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty()).map(|text| text.chars().take(64).collect());
    let query = facts::Query {
        state: given(state).and_then(|name: String| facts::state_of(&name)),
        model: given(model),
        device: given(device),
        policy: given(policy),
        text: given(q),
        before: given(before),
    };
    let html = spawn_blocking(move || facts::jobs(&app, &headers, query, notice.as_deref()).map(|facts| jobs(&facts)));
    Ok(Html(html.await??))
}

async fn job_page(State(app): State<App>, Named(id): Named, Asked(told): Asked<Told>, headers: HeaderMap) -> Response {
    let page = spawn_blocking(move || {
        facts::job_page(&app, &headers, &id, told.notice.as_deref()).map(|facts| facts.map(|facts| job(&facts)))
    });
    found(page.await, "no job of that id: it never was, or is no longer kept")
}

async fn policy_page(
    State(app): State<App>,
    Named(name): Named,
    Asked(told): Asked<Told>,
    headers: HeaderMap,
) -> Response {
    let page = spawn_blocking(move || {
        facts::policy_page(&app, &headers, &name, told.notice.as_deref()).map(|facts| facts.map(|facts| policy(&facts)))
    });
    found(page.await, "no policy of that name is in service")
}

fn found(page: Result<crate::Result<Option<String>>, tokio::task::JoinError>, missing: &str) -> Response {
    match page {
        Ok(Ok(Some(html))) => Html(html).into_response(),
        Ok(Ok(None)) => problem_page(&Problem::not_found(missing)),
        Ok(Err(error)) => problem_page(&Problem::unable(&error)),
        Err(error) => problem_page(&Problem::unable(&error)),
    }
}

/// A problem, as a page.
pub fn problem_page(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Html(tilewright_dashboard::problem(&facts::problem(problem)))).into_response();
    if let Some(seconds) = problem.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn login_page(State(app): State<App>, Asked(told): Asked<Told>) -> Html<String> {
    Html(login(&facts::login(&app, told.next.as_deref(), None)))
}

async fn asset(Named(name): Named) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        // Pages name them with their digest.
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

/// A page's parts, as they are now: ids and elements.
fn parts(app: &App, headers: &HeaderMap, page: &str) -> crate::Result<Vec<(&'static str, String)>> {
    if let Some(id) = page.strip_prefix("/jobs/") {
        let facts = facts::job_page(app, headers, id, None)?;
        return Ok(
            facts.map_or_else(Vec::new, |facts| vec![("status", status_part(&facts.frame)), ("job", job_part(&facts))])
        );
    }
    if let Some(name) = page.strip_prefix("/policies/") {
        let facts = facts::policy_page(app, headers, name, None)?;
        return Ok(facts.map_or_else(Vec::new, |facts| {
            vec![("status", status_part(&facts.frame)), ("policy", policy_part(&facts))]
        }));
    }
    if page == "/jobs" {
        return Ok(vec![("status", status_part(&facts::frame(app, headers, None)))]);
    }
    let facts = facts::overview(app, headers, None)?;
    Ok(Part::ALL.iter().map(|part| (part.id(), part.html(&facts))).collect())
}

/// A page's parts as they change.
async fn live(
    State(app): State<App>,
    Asked(told): Asked<Told>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let page = told.page.unwrap_or_default();
    let follower = app.house.metrics.follower();
    let changes = app.house.live.changes();
    let start = Following { app, page, headers, changes, sent: HashMap::new(), waiting: Vec::new(), looked: None };
    let events = stream::unfold((start, follower), |(mut following, follower)| async move {
        let event = following.next().await?;
        Some((Ok(event), (following, follower)))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}

/// Somebody who looks at a page.
struct Following {
    app: App,
    page: String,
    /// Of the page's own request: pages tell by them what the server is called.
    headers: HeaderMap,
    changes: watch::Receiver<u64>,
    /// Hashes of the parts as they were sent.
    sent: HashMap<&'static str, u64>,
    waiting: Vec<(&'static str, String)>,
    looked: Option<Instant>,
}

impl Following {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((id, html)) = self.waiting.pop() {
                return Event::default().json_data(serde_json::json!({ "id": id, "html": html })).ok();
            }
            if let Some(looked) = self.looked {
                tokio::time::sleep_until((looked + PACE).into()).await;
                tokio::select! {
                    () = self.app.ended() => return None,
                    changed = self.changes.changed() => changed.ok()?,
                    () = tokio::time::sleep_until((looked + ANYWAY).into()) => {}
                }
            }
            self.looked = Some(Instant::now());
            self.changes.mark_unchanged();
            let (app, page, headers) = (self.app.clone(), self.page.clone(), self.headers.clone());
            let parts = spawn_blocking(move || parts(&app, &headers, &page)).await.ok()?.ok()?;
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

/// A page's address, with the number of a notice that the page shows.
pub fn with_notice(app: &App, path: &str, is_good: bool, text: &str) -> String {
    format!("{path}?notice={}", app.notices.hold(is_good, text))
}

/// Whatever a form asks for is ours.
fn is_ours(app: &App, token: Option<&str>) -> bool {
    app.door.is_form_token(token)
}

/// A page of another site, or one of a server that has ended since.
fn strange() -> Response {
    problem_page(&Problem::new(StatusCode::FORBIDDEN, "this form is out of date: load its page again and repeat it"))
}
