//! The actions of the dashboard's forms. Each leads back to a page that shows the outcome.

use axum::{
    Form,
    body::to_bytes,
    extract::{FromRequest, Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use serde::Deserialize;
use tempfile::NamedTempFile;
use tilewright_service_api::{Draw, Job, JobRequest, JobStage, PolicyBody, Seeds};

use super::{problem_page, views, with_notice};
use crate::{
    api,
    api::PathName,
    app::App,
    audit::ActionOutcome,
    problem::{ApiResult, Problem},
};

/// Bytes of a form without files.
const FORM: usize = 16 << 10;

/// The fields of all forms without files: the form's token, and those of the sign-in form.
#[derive(Debug, Deserialize)]
pub struct ActionForm {
    form: Option<String>,
    token: Option<String>,
    next: Option<String>,
}

/// Redirects to a page.
fn redirect_to(location: &str) -> Response {
    let location = HeaderValue::from_str(location).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

fn respond<T>(app: &App, path: &str, outcome: ApiResult<T>, good: impl FnOnce(T) -> String) -> Response {
    match outcome {
        Ok(value) => {
            attach_outcome(redirect_to(&with_notice(app, path, true, &good(value))), StatusCode::OK.as_u16(), None)
        }
        Err(problem) => redirect_with_problem(app, path, &problem),
    }
}

/// Redirects to a page that says why an action was refused.
fn redirect_with_problem(app: &App, path: &str, problem: &Problem) -> Response {
    attach_outcome(redirect_to(&with_notice(app, path, false, &problem.detail)), problem.status, None)
}

/// Attaches the outcome of an action, for the audit.
fn attach_outcome(mut response: Response, status: u16, made: Option<String>) -> Response {
    response.extensions_mut().insert(ActionOutcome { status, made });
    response
}

impl FromRequest<App> for ActionForm {
    type Rejection = Response;

    /// Reads a form, which comes from a page of this server.
    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let read = async {
            let (parts, body) = request.into_parts();
            let request = Request::from_parts(parts, to_bytes(body, FORM).await.ok()?.into());
            Form::<Self>::from_request(request, &()).await.ok()
        };
        let own = read.await.map(|Form(sent)| sent).filter(|sent| app.auth.is_form_token(sent.form.as_deref()));
        own.ok_or_else(|| problem_page(&Problem::stale_form()))
    }
}

/// The path to go on to; `/` if the one sent is not of this server.
fn local_path(next: Option<&str>) -> &str {
    let sound = |next: &&str| {
        next.starts_with('/')
            && !next.starts_with("//")
            && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    next.filter(sound).unwrap_or("/")
}

/// Signs in with the token.
pub async fn sign_in(State(app): State<App>, ActionForm { token, next, .. }: ActionForm) -> Response {
    let Some((_, cookie)) = token.and_then(|token| app.auth.callers.sign_in(token.trim().as_bytes())) else {
        app.server.metrics.count_rejected("token");
        let page = tilewright_dashboard::login(&views::login_page(
            &app,
            next.as_deref(),
            Some("that is no token of this server"),
        ));
        return (StatusCode::UNAUTHORIZED, Html(page)).into_response();
    };
    let mut response = attach_outcome(redirect_to(local_path(next.as_deref())), StatusCode::OK.as_u16(), None);
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Signs out.
pub async fn sign_out(State(app): State<App>, headers: HeaderMap, _: ActionForm) -> Response {
    let mut response = attach_outcome(redirect_to("/login"), StatusCode::OK.as_u16(), None);
    if let Ok(cookie) = HeaderValue::from_str(&app.auth.callers.sign_out(&headers)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Submits a decode, or a prompt. A refused prompt is in its form again.
pub async fn submit(State(app): State<App>, request: Request) -> Response {
    let page = sender(request.headers());
    let submission = match api::read_submission(&app, request, None, true).await {
        Ok(submission) => submission,
        Err(problem) => return redirect_with_problem(&app, page, &problem),
    };
    let asked = submission.job.clone();
    respond_to_job(&app, api::accept_submission(&app, submission).await, asked)
}

/// The page that a form was sent from, of the two that have one.
fn sender(headers: &HeaderMap) -> &'static str {
    let referer = headers.get(header::REFERER).and_then(|referer| referer.to_str().ok()).unwrap_or_default();
    let path = referer.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    if path.split('?').next() == Some("prompt") { "/prompt" } else { "/" }
}

/// Leads to the page of a job that was accepted, or back to the form of one that was not.
fn respond_to_job(app: &App, accepted: ApiResult<Job>, asked: JobRequest) -> Response {
    let is_prompt = asked.prompt.is_some();
    match accepted {
        Ok(job) => {
            let path = format!("/jobs/{}", job.id);
            let page = if is_prompt { format!("/prompt?job={}", job.id) } else { path.clone() };
            attach_outcome(redirect_to(&page), StatusCode::ACCEPTED.as_u16(), Some(path))
        }
        Err(problem) if is_prompt => {
            let number = app.notices.hold_refused(&problem.detail, asked);
            attach_outcome(redirect_to(&format!("/prompt?notice={number}")), problem.status, None)
        }
        Err(problem) => redirect_with_problem(app, "/", &problem),
    }
}

/// Submits a prompt's job again, with another seed.
pub async fn again(State(app): State<App>, PathName(id): PathName, request: Request) -> Response {
    let caller = app.auth.caller_name(&request);
    if let Err(refused) = ActionForm::from_request(request, &app).await {
        return refused;
    }
    let found = app.blocking(move |app| {
        let found = app.server.jobs.store.get(&id)?.filter(|stored| stored.job.stage == JobStage::Generate);
        let stored = found.ok_or_else(|| Problem::not_found("no prompt's job of that id is kept"))?;
        Ok((stored.request, app.server.copy_beginning(&id)?))
    });
    let (mut asked, uploads) = match found.await {
        Ok(found) => found,
        Err(problem) => return redirect_with_problem(&app, "/prompt", &problem),
    };
    asked.sample.get_or_insert_default().seed = Some(Seeds::Drawn(Draw::Random));
    let submission = api::Submission::of(asked.clone(), uploads, caller);
    respond_to_job(&app, api::accept_submission(&app, submission).await, asked)
}

/// Cancels a job.
pub async fn cancel(State(app): State<App>, PathName(id): PathName, _: ActionForm) -> Response {
    let outcome = api::cancel(State(app.clone()), PathName(id.clone())).await;
    let path = if outcome.is_ok() { format!("/jobs/{}", strip_name(&id)) } else { "/".to_owned() };
    respond(&app, &path, outcome, |_| "the job ends".into())
}

/// The letters of a name that can stand in an address. Names of policies and routes have no others.
fn strip_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect()
}

/// Swaps a policy: to an uploaded module, or to a digest or source that is named.
pub async fn swap(State(app): State<App>, PathName(name): PathName, request: Request) -> Response {
    let Swap { token, module, signature, source, settings } = match swap_form(&app, request).await {
        Ok(form) => form,
        Err(problem) => return problem_page(&problem),
    };
    if !app.auth.is_form_token(token.as_deref()) {
        return problem_page(&Problem::stale_form());
    }
    let outcome = async {
        let in_force = app.server.rollout.policy(&name)?.in_force;
        let (digest, source) = match (module, source) {
            (Some(_), Some(_)) => return Err(Problem::invalid("give a file or a source, not both")),
            (Some(module), None) => {
                (Some(api::store_module(&app, module, signature, Some(name.clone())).await?.digest), None)
            }
            (None, Some(source)) if source.starts_with("sha256:") => (Some(source), None),
            (None, Some(source)) => (None, Some(source)),
            // The same module with other settings.
            (None, None) if !settings.trim().is_empty() => (Some(in_force.identity.digest.clone()), None),
            (None, None) => {
                return Err(Problem::invalid(
                    "choose a file, name a policy that ships, a digest or oci://REGISTRY/NAME:TAG, or give settings",
                ));
            }
        };
        api::swap_policy(&app, &name, api::ReplacementBody::from_form(digest, source, &settings)?).await
    };
    // The warnings come with the outcome: the swap is done, and not as one may have meant it.
    let said = |policy: PolicyBody| {
        let warnings = policy.warnings.iter().map(|line| format!("\nwarning: {line}"));
        format!("{} was swapped{}", strip_name(&name), warnings.collect::<String>())
    };
    respond(&app, "/", outcome.await, said)
}

/// The fields of the form for a swap.
#[derive(Default)]
struct Swap {
    token: Option<String>,
    module: Option<NamedTempFile>,
    /// The text of the module's `.minisig`.
    signature: Option<String>,
    source: Option<String>,
    /// Lines `name=value`.
    settings: String,
}

async fn swap_form(app: &App, request: Request) -> ApiResult<Swap> {
    let most = api::largest_module(app);
    let mut form = api::BoundedForm::new(request, most).await?;
    let mut swap = Swap::default();
    while let Some(mut part) = form.next().await? {
        match part.name() {
            "form" => swap.token = Some(part.read_text(256).await?),
            "source" => {
                swap.source = Some(part.read_text(2048).await?.trim().to_owned()).filter(|text| !text.is_empty())
            }
            "signature" => swap.signature = Some(part.read_text(4096).await?).filter(|text| !text.trim().is_empty()),
            "settings" => swap.settings = part.read_text(FORM as u64).await?,
            "module" => {
                let mut spool = api::Spool::new(app).await?;
                while let Some(chunk) = part.chunk().await? {
                    spool.write(&chunk).await?;
                }
                // An empty field is sent as an empty file.
                swap.module = (spool.bytes > 0).then_some(spool.finish().await?);
            }
            _ => return Err(Problem::invalid("the form: expected a module with its signature, a source, settings")),
        }
    }
    Ok(swap)
}

/// Rolls a policy back, pauses or resumes it.
pub async fn policy(State(app): State<App>, Path((name, what)): Path<(String, String)>, _: ActionForm) -> Response {
    let (state, of) = (State(app.clone()), PathName(name.clone()));
    let (outcome, said) = match what.as_str() {
        "rollback" => (api::roll_back(state, of).await, "was rolled back"),
        "pause" => (api::pause(state, of).await, "is paused"),
        "resume" => (api::resume(state, of).await, "is asked again"),
        _ => {
            return problem_page(&Problem::not_found(
                "a policy is swapped, rolled back, paused or resumed, nothing else",
            ));
        }
    };
    respond(&app, "/", outcome, |_| format!("{} {said}", strip_name(&name)))
}

/// Promotes or stops a canary.
pub async fn route(State(app): State<App>, Path((name, what)): Path<(String, String)>, _: ActionForm) -> Response {
    let (state, of) = (State(app.clone()), PathName(name.clone()));
    let (outcome, said) = match what.as_str() {
        "promote" => (api::promote(state, of).await, "promoted"),
        "stop" => (api::stop(state, of).await, "stopped"),
        _ => return problem_page(&Problem::not_found("a canary is promoted or stopped, nothing else")),
    };
    respond(&app, "/", outcome, |_| format!("the canary of {} was {said}", strip_name(&name)))
}
