//! Jobs: submitted, listed, fetched, cancelled.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tilewright_service_api::{Job, JobRequest, JobState, SamplePaths};
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{
        PathName, QueryParams, body_problem, check_before, check_length, check_limit, check_names, is_media, parse_json,
    },
    form_request,
    forms::{BoundedForm, FormPart, TEXTS},
    spool::Spool,
};
use crate::{
    accept::{Refusal, inspected_bytes},
    app::App,
    error::one_line,
    jobs::{
        idempotency::{IdempotencyKey, KeyedSubmission, digest_uploads},
        inputs::{Input, Uploads},
        store::JobFilter,
    },
    problem::{ApiResult, Problem},
};

/// Bytes of the request beside its files.
const REQUEST: u64 = 256 << 10;

/// The most parts of a form.
const PARTS: usize = 64;

/// A job to submit, with its files.
#[derive(ToSchema)]
#[schema(as = Submission)]
#[allow(dead_code, reason = "describes the form's parts")]
pub struct SubmissionForm {
    /// The request; without paths.
    request: JobRequest,
    /// A ComfyUI .latent, or a .safetensors with one tensor. A sample without one begins from noise
    /// alone.
    #[schema(value_type = Option<String>, format = Binary)]
    latent: Vec<u8>,
    /// The conditioning of a sample: a .safetensors with `prompt_embeds`, as `tilewright sample`
    /// takes it.
    #[schema(value_type = Option<String>, format = Binary)]
    conditioning: Vec<u8>,
    /// The conditioning that guidance leads away from.
    #[schema(value_type = Option<String>, format = Binary)]
    negative: Vec<u8>,
    /// The noise of a sample: a .safetensors with `noise`.
    #[schema(value_type = Option<String>, format = Binary)]
    noise: Vec<u8>,
    /// A picture, or a .safetensors with `mask`: 1 where the latent is made again.
    #[schema(value_type = Option<String>, format = Binary)]
    mask: Vec<u8>,
    /// The picture or clip that is encoded, or the picture that a prompt's picture begins with.
    #[schema(value_type = Option<String>, format = Binary)]
    image: Vec<u8>,
}

/// Submit a decode, an encode, a sample or a prompt
///
/// Either with the paths of its files on the server, or with the files themselves. The job is kept
/// before the answer is given: it outlives the server.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "submitJob",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same job, however often it is sent: 1 to 128 printable ASCII characters. A key belongs to the token that it is sent with. With another request or other files it is refused (422)", min_length = 1, max_length = 128, pattern = "^[!-~]+$")),
    request_body(content((JobRequest = "application/json"), (SubmissionForm = "multipart/form-data"))),
    responses(
        (status = 202, description = "Accepted", body = Job, headers(("Location" = String, description = "The job"))),
        (status = 400, description = "No such body"),
        (status = 413, description = "The latent is too large"),
        (status = 415),
        (status = 422, description = "What is asked for makes no sense, or the key was used for another request or other files"),
        (status = 429, description = "The queue is full, or too many requests", headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 503, description = "The server is about to end, or its disk can't be written", headers(("Retry-After" = u64, description = "Seconds"))),
        (status = 507, description = "There is no room on the server's disk", headers(("Retry-After" = u64, description = "Seconds")))
    )
)]
pub async fn submit(State(app): State<App>, request: Request) -> ApiResult<Response> {
    let key = idempotency_key(request.headers())?;
    let key = key.map(|key| IdempotencyKey::new(app.auth.token_name(request.headers()).as_deref(), &key));
    let submission = read_submission(&app, request, key, false).await?;
    let job = accept_submission(&app, submission).await?;
    let location = HeaderValue::from_str(&format!("/v1/jobs/{}", job.id)).map_err(|error| Problem::internal(&error))?;
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(job)).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let sound = value
        .to_str()
        .ok()
        .filter(|key| (1..=128).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()));
    let line = "Idempotency-Key: expected 1 to 128 printable ASCII characters without blanks";
    sound.map(|key| Some(key.to_owned())).ok_or_else(|| Problem::bad_request(line))
}

/// A submission whose body has been read.
pub struct Submission {
    /// The request.
    pub job: JobRequest,
    uploads: Uploads,
    key: Option<IdempotencyKey>,
    caller: String,
}

impl Submission {
    /// A submission that no body was read for.
    pub fn of(job: JobRequest, uploads: Uploads, caller: String) -> Self {
        Self { job, uploads, key: None, caller }
    }
}

/// Reads a submission of either kind. A form from one of this server's pages carries the page's
/// token.
pub async fn read_submission(
    app: &App,
    request: Request,
    key: Option<IdempotencyKey>,
    from_page: bool,
) -> ApiResult<Submission> {
    let caller = app.auth.caller_name(&request);
    let is_known = match key.clone() {
        Some(key) => app.blocking(move |app| Ok(app.server.jobs.store.find_by_key(&key)?.is_some())).await?,
        None => false,
    };
    if app.server.is_draining() {
        return Err(Refusal::ShuttingDown.into());
    }
    if !is_known {
        check_room(app)?;
    }
    let (job, uploads) = if is_media(request.headers(), "application/json") && !from_page {
        check_length(request.headers(), REQUEST)?;
        let bytes = axum::body::to_bytes(request.into_body(), REQUEST as usize)
            .await
            .map_err(|error| body_problem(&error, REQUEST))?;
        let job: JobRequest = parse_json(&bytes)?;
        app.blocking(move |app| {
            let uploads = paths(&job).map(|(input, field, path)| Ok((input, app.server.copy_input(&field, path)?)));
            let uploads = uploads.collect::<Result<Uploads, Refusal>>()?;
            Ok((job, uploads))
        })
        .await?
    } else if is_media(request.headers(), "multipart/form-data") {
        let Form { job, uploads, token } = read_form(app, request).await?;
        if from_page && !app.auth.is_form_token(token.as_deref()) {
            return Err(Problem::stale_form());
        }
        (job, uploads)
    } else {
        return Err(Problem::unsupported("expected application/json or multipart/form-data"));
    };
    Ok(Submission { job, uploads, key, caller })
}

/// Checks that a job would be taken at present: before its body is read, so that a caller of a full
/// server learns it at once.
///
/// # Errors
/// The server ends, or its queues are full, or its disk takes nothing.
pub fn check_room(app: &App) -> ApiResult<()> {
    let server = &app.server;
    if server.is_draining() {
        return Err(Refusal::ShuttingDown.into());
    }
    server.check_writable().inspect_err(|_| server.metrics.count_refused("unable"))?;
    match server.devices.retry_after() {
        Some(seconds) => {
            server.metrics.count_refused("full");
            Err(Refusal::QueueFull(seconds).into())
        }
        None => Ok(()),
    }
}

/// Accepts a submission.
pub async fn accept_submission(app: &App, submission: Submission) -> ApiResult<Job> {
    let Submission { job, uploads, key, caller } = submission;
    let inspected = app.blocking(move |_| {
        let bytes = inspected_bytes(&uploads).map_err(|error| Problem::internal(&error))?;
        Ok((uploads, bytes))
    });
    let (uploads, bytes) = inspected.await?;
    let turn = app.inspections.acquire(&caller, bytes).await?;
    app.blocking(move |app| {
        // Held until the inspection ends, even if the caller is gone by then.
        let _turn = turn;
        let keyed = key.map(|key| {
            // A file that the request names by its path is the path's, whatever it holds now.
            let is_sent = |input| paths(&job).all(|(named, ..)| named != input);
            let uploads = digest_uploads(&uploads, is_sent).map_err(|error| Refusal::Internal(one_line(&error)))?;
            Ok::<_, Refusal>(KeyedSubmission { key, uploads })
        });
        Ok(app.server.accept(job, uploads, keyed.transpose()?.as_ref())?)
    })
    .await
}

/// The files that a request names on the server, each with its field.
fn paths(job: &JobRequest) -> impl Iterator<Item = (Input, String, &str)> {
    let latent = (Input::Latent, "latent_path".to_owned(), job.latent_path.as_deref());
    let sample = job.sample.iter().flat_map(|sample| {
        let SamplePaths { conditioning, negative, noise, mask, image } = &sample.paths;
        let named = [
            (Input::Conditioning, conditioning),
            (Input::Negative, negative),
            (Input::Noise, noise),
            (Input::Mask, mask),
            (Input::Image, image),
        ];
        named.map(|(input, path)| (input, format!("sample.paths.{}", input.name()), path.as_deref()))
    });
    let encode = job.encode.as_ref().and_then(|fields| fields.image_path.as_deref());
    let image = (Input::Image, "encode.image_path".to_owned(), encode);
    [latent, image].into_iter().chain(sample).filter_map(|(input, field, path)| Some((input, field, path?)))
}

async fn read_form(app: &App, request: Request) -> ApiResult<Form> {
    let most = app.server.config.in_force().server.limits.upload_bytes;
    let mut form = BoundedForm::new(request, most).await?;
    let (mut job, mut uploads, mut token) = (None, Uploads::new(), None);
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut parts = 0;
    while let Some(part) = form.next().await? {
        parts += 1;
        if parts > PARTS {
            return Err(Problem::invalid(format!("the form: expected at most {PARTS} parts")));
        }
        let name = part.name().to_owned();
        match (name.as_str(), Input::named(&name)) {
            (_, Some(input)) if !uploads.contains_key(&input) => {
                if let Some(file) = receive_file(app, part, most).await? {
                    uploads.insert(input, file);
                }
            }
            ("request", _) if job.is_none() => job = Some(parse_json::<JobRequest>(&part.read_all(REQUEST).await?)?),
            ("request", _) | (_, Some(_)) => {
                return Err(Problem::invalid(format!("the form: two parts are named {name}")));
            }
            ("form", _) => token = Some(part.read_text(256).await?),
            // The fields of the dashboard's form, one part each.
            (known, _) if let Some(most) = form_request::most_bytes(known, TEXTS) => {
                if !form_request::may_repeat(known) && fields.iter().any(|(before, _)| before == known) {
                    return Err(Problem::invalid(format!("the form: two parts are named {name}")));
                }
                fields.push((name, part.read_text(most).await?));
            }
            _ => {
                let names: Vec<&str> = Input::ALL.iter().map(|(_, name)| *name).collect();
                return Err(Problem::invalid(format!(
                    "the form: expected parts named request and {}",
                    names.join(", ")
                )));
            }
        }
    }
    let job = match job {
        Some(job) => job,
        None if fields.iter().any(|(name, _)| name == "model") => form_request::request_of(&fields)?,
        None => return Err(Problem::invalid("the form: no part named request")),
    };
    if let Some((_, field, _)) = paths(&job).next() {
        return Err(Problem::invalid(format!("{field}: a form has the files themselves: leave the path out")));
    }
    Ok(Form { job, uploads, token })
}

/// A submission as it came in a form.
struct Form {
    job: JobRequest,
    uploads: Uploads,
    /// The token that the dashboard's form carries.
    token: Option<String>,
}

/// A part that is a file, written as it comes; none of a field that browsers send without a file.
async fn receive_file(app: &App, mut part: FormPart<'_>, most: u64) -> ApiResult<Option<NamedTempFile>> {
    let may_be_missing = part.has_no_file_name();
    let mut spool = Spool::new(app).await?;
    while let Some(chunk) = part.chunk().await? {
        spool.write_within(&chunk, most).await?;
    }
    if spool.bytes == 0 && may_be_missing { Ok(None) } else { spool.finish().await.map(Some) }
}

/// The jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobListQuery {
    /// Jobs in this state.
    state: Option<JobState>,
    /// Jobs with this tag.
    #[param(max_length = 64)]
    tag: Option<String>,
    /// Jobs of this model.
    #[param(max_length = 64)]
    model: Option<String>,
    /// Jobs on this device.
    #[param(max_length = 64)]
    device: Option<String>,
    /// Jobs decided by this policy.
    #[param(max_length = 64)]
    policy: Option<String>,
    /// Jobs on this route.
    #[param(max_length = 64)]
    route: Option<String>,
    /// Jobs with this text in the id, model, device, tag, route, policy, format, prompt or error.
    #[param(max_length = 64)]
    q: Option<String>,
    /// The most jobs to list.
    #[serde(default = "fifty")]
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: u32,
    /// Jobs accepted before this one: `next` of the page before.
    #[param(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    before: Option<String>,
}

fn fifty() -> u32 {
    50
}

/// Jobs, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Jobs)]
pub struct JobList {
    jobs: Vec<Job>,
    /// The `before` of the next page; null on the last. A search reads a bounded number of jobs at
    /// a time: a page may be short and still not the last.
    next: Option<String>,
}

/// List jobs, newest first
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "listJobs", params(JobListQuery),
    responses(
        (status = 200, body = JobList),
        (status = 400)
    )
)]
pub async fn list(State(app): State<App>, QueryParams(query): QueryParams<JobListQuery>) -> ApiResult<Json<JobList>> {
    let JobListQuery { state, tag, model, device, policy, route, q, limit, before } = query;
    let limit = check_limit(limit)?;
    check_names(&[
        ("tag", &tag),
        ("model", &model),
        ("device", &device),
        ("policy", &policy),
        ("route", &route),
        ("q", &q),
    ])?;
    check_before(before.as_deref())?;
    let text = q.filter(|text| !text.is_empty());
    let filter = JobFilter { state, tag, policy, route, limit, before, model, device, text, ..JobFilter::default() };
    app.blocking(move |app| {
        let (found, next) = app.server.jobs.store.search(&filter)?;
        let jobs = found.into_iter().map(|stored| app.server.jobs.view(stored)).collect();
        Ok(Json(JobList { jobs, next }))
    })
    .await
}

/// The problem of an unknown id.
pub fn job_not_found() -> Problem {
    Problem::not_found("no job of that id: it never was, or is no longer kept")
}

/// One job
#[utoipa::path(
    get, path = "/v1/jobs/{id}", operation_id = "getJob", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, body = Job),
        (status = 404)
    )
)]
pub async fn get(State(app): State<App>, PathName(id): PathName) -> ApiResult<Json<Job>> {
    view_job(&app, id).await.map(Json)
}

/// A job as it is now.
pub async fn view_job(app: &App, id: String) -> ApiResult<Job> {
    app.blocking(move |app| {
        let stored = app.server.jobs.store.get(&id)?.ok_or_else(job_not_found)?;
        Ok(app.server.jobs.view_whole(stored))
    })
    .await
}

/// Cancel a job
///
/// One that waits ends at once, one at work at its next tile or block.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", operation_id = "cancelJob", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "It ends, or has", body = Job),
        (status = 404),
        (status = 409, description = "It has ended already")
    )
)]
pub async fn cancel(State(app): State<App>, PathName(id): PathName) -> ApiResult<Json<Job>> {
    app.blocking(move |app| match app.server.jobs.cancel(&id)? {
        None => Err(job_not_found()),
        Some((job, true)) => Ok(Json(job)),
        Some((job, false)) => Err(Problem::conflict(format!("the job has ended already: it is {}", job.state.name()))),
    })
    .await
}
