//! What the dashboard's forms do. Each leads back to a page that says what became of it.

use axum::{
    Form,
    body::to_bytes,
    extract::{FromRequest, Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use serde::Deserialize;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;

use super::{facts, is_ours, problem_page, strange, with_notice};
use crate::{
    App, api,
    api::Named,
    audit::CameTo,
    problem::{Outcome, Problem},
};

/// Bytes of a form without files.
const FORM: usize = 16 << 10;

/// The token that every form carries, and what the sign-in form has.
#[derive(Debug, Deserialize)]
pub struct Carried {
    form: Option<String>,
    token: Option<String>,
    next: Option<String>,
}

/// Leads to a page.
fn see(location: &str) -> Response {
    let location = HeaderValue::from_str(location).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

fn told<T>(app: &App, path: &str, outcome: Outcome<T>, good: impl FnOnce(T) -> String) -> Response {
    match outcome {
        Ok(value) => came_to(see(&with_notice(app, path, true, &good(value))), StatusCode::OK.as_u16(), None),
        Err(problem) => refused(app, path, &problem),
    }
}

/// Leads to a page that says why not.
fn refused(app: &App, path: &str, problem: &Problem) -> Response {
    came_to(see(&with_notice(app, path, false, &problem.detail)), problem.status, None)
}

/// Says for the audit what an action came to.
fn came_to(mut response: Response, status: u16, made: Option<String>) -> Response {
    response.extensions_mut().insert(CameTo { status, made });
    response
}

async fn carried(request: Request) -> Option<Carried> {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, FORM).await.ok()?;
    let request = Request::from_parts(parts, bytes.into());
    Form::<Carried>::from_request(request, &()).await.ok().map(|Form(carried)| carried)
}

/// A path of ours, whatever was sent.
fn local(next: Option<&str>) -> &str {
    let sound = |next: &&str| {
        next.starts_with('/')
            && !next.starts_with("//")
            && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    next.filter(sound).unwrap_or("/")
}

/// Signs in with the token.
pub async fn sign_in(State(app): State<App>, request: Request) -> Response {
    let Some(Carried { form, token, next }) = carried(request).await else { return strange() };
    if !is_ours(&app, form.as_deref()) {
        return strange();
    }
    let Some((_, cookie)) = token.and_then(|token| app.door.callers.sign_in(token.trim().as_bytes())) else {
        app.house.metrics.turned_away("token");
        let page =
            tilewright_dashboard::login(&facts::login(&app, next.as_deref(), Some("that is no token of this server")));
        return (StatusCode::UNAUTHORIZED, Html(page)).into_response();
    };
    let mut response = came_to(see(local(next.as_deref())), StatusCode::OK.as_u16(), None);
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Signs out.
pub async fn sign_out(State(app): State<App>, headers: HeaderMap, request: Request) -> Response {
    if !carried(request).await.is_some_and(|carried| is_ours(&app, carried.form.as_deref())) {
        return strange();
    }
    let mut response = came_to(see("/login"), StatusCode::OK.as_u16(), None);
    if let Ok(cookie) = HeaderValue::from_str(&app.door.callers.sign_out(&headers)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Submits a decode.
pub async fn submit(State(app): State<App>, request: Request) -> Response {
    match api::submitted(&app, request, None, true).await {
        Ok(job) => {
            let path = format!("/jobs/{}", job.id);
            came_to(see(&path), StatusCode::ACCEPTED.as_u16(), Some(path))
        }
        Err(problem) => refused(&app, "/", &problem),
    }
}

/// Cancels a job.
pub async fn cancel(State(app): State<App>, Named(id): Named, request: Request) -> Response {
    if !carried(request).await.is_some_and(|carried| is_ours(&app, carried.form.as_deref())) {
        return strange();
    }
    let (of, house) = (id.clone(), app.house.clone());
    let outcome = async {
        match spawn_blocking(move || house.cancel(&of)).await?? {
            None => Err(Problem::not_found("no job of that id")),
            Some((_, true)) => Ok("the job ends"),
            Some((job, false)) => {
                Err(Problem::conflict(format!("the job has ended already: it is {}", job.state.name())))
            }
        }
    };
    let outcome = outcome.await;
    let path = if outcome.is_ok() { format!("/jobs/{}", plain(&id)) } else { "/".to_owned() };
    told(&app, &path, outcome, str::to_owned)
}

/// What of a name can stand in an address; ours are made of nothing else.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect()
}

/// Swaps: a module that is uploaded, or a digest or source that is named.
pub async fn swap(State(app): State<App>, Named(name): Named, request: Request) -> Response {
    let Swap { token, module, signature, source, settings } = match swap_form(&app, request).await {
        Ok(form) => form,
        Err(problem) => return problem_page(&problem),
    };
    if !is_ours(&app, token.as_deref()) {
        return strange();
    }
    let outcome = async {
        let in_force = app.house.rollout.policy(&name)?.in_force;
        let (digest, source) = match (module, source) {
            (Some(_), Some(_)) => return Err(Problem::wrong("give a file or a source, not both")),
            (Some(module), None) => {
                (Some(api::uploaded(&app, module, signature, Some(name.clone())).await?.digest), None)
            }
            (None, Some(source)) if source.starts_with("sha256:") => (Some(source), None),
            (None, Some(source)) => (None, Some(source)),
            // The same module with other settings.
            (None, None) if !settings.trim().is_empty() => (Some(in_force.identity.digest.clone()), None),
            (None, None) => {
                return Err(Problem::wrong(
                    "choose a file, name a policy that ships, a digest or oci://REGISTRY/NAME:TAG, or give settings",
                ));
            }
        };
        api::carried_out(&app, &name, api::ReplacementBody::of(digest, source, &settings)?).await
    };
    let outcome = outcome.await.map(drop);
    told(&app, "/", outcome, |()| format!("{} was swapped", plain(&name)))
}

/// What a swap's form has.
#[derive(Default)]
struct Swap {
    token: Option<String>,
    module: Option<NamedTempFile>,
    /// The text of its `.minisig`.
    signature: Option<String>,
    source: Option<String>,
    /// Lines `name=value`.
    settings: String,
}

async fn swap_form(app: &App, request: Request) -> Outcome<Swap> {
    let most = api::largest_module(app);
    let mut form = api::Bounded::new(request, most).await?;
    let mut swap = Swap::default();
    while let Some(mut part) = form.next().await? {
        match part.name() {
            "form" => swap.token = Some(part.text(256).await?),
            "source" => swap.source = Some(part.text(2048).await?.trim().to_owned()).filter(|text| !text.is_empty()),
            "signature" => swap.signature = Some(part.text(4096).await?).filter(|text| !text.trim().is_empty()),
            "settings" => swap.settings = part.text(FORM as u64).await?,
            "module" => {
                let mut spool = api::Spool::new(app).await?;
                while let Some(chunk) = part.chunk().await? {
                    spool.write(&chunk).await?;
                }
                // An empty field comes as an empty file.
                swap.module = (spool.bytes > 0).then_some(spool.finish().await?);
            }
            _ => return Err(Problem::wrong("the form: expected a module with its signature, a source, settings")),
        }
    }
    Ok(swap)
}

/// The changes to a policy that need nothing but its name.
enum Change {
    RollBack,
    Pause,
    Resume,
}

/// Rolls back, pauses, resumes.
pub async fn policy(State(app): State<App>, Path((name, what)): Path<(String, String)>, request: Request) -> Response {
    if !carried(request).await.is_some_and(|carried| is_ours(&app, carried.form.as_deref())) {
        return strange();
    }
    let (change, said) = match what.as_str() {
        "rollback" => (Change::RollBack, "was rolled back"),
        "pause" => (Change::Pause, "is paused"),
        "resume" => (Change::Resume, "is asked again"),
        _ => {
            return problem_page(&Problem::not_found(
                "a policy is swapped, rolled back, paused or resumed, nothing else",
            ));
        }
    };
    let said = format!("{} {said}", plain(&name));
    let outcome = api::changed(&app, &name, move |house, name| match change {
        Change::RollBack => house.rollout.roll_back(name).map(drop),
        Change::Pause => house.rollout.pause(name, true),
        Change::Resume => house.rollout.pause(name, false),
    });
    told(&app, "/", outcome.await.map(drop), |()| said)
}

/// Promotes or stops a canary.
pub async fn route(State(app): State<App>, Path((name, what)): Path<(String, String)>, request: Request) -> Response {
    if !carried(request).await.is_some_and(|carried| is_ours(&app, carried.form.as_deref())) {
        return strange();
    }
    let (promotes, said) = match what.as_str() {
        "promote" => (true, "promoted"),
        "stop" => (false, "stopped"),
        _ => return problem_page(&Problem::not_found("a canary is promoted or stopped, nothing else")),
    };
    let said = format!("the canary of {} was {said}", plain(&name));
    let house = app.house.clone();
    let outcome = async {
        spawn_blocking(move || match promotes {
            true => house.rollout.promote(&name).map(drop),
            false => house.rollout.stop(&name),
        })
        .await??;
        Ok(())
    };
    told(&app, "/", outcome.await, |()| said)
}
