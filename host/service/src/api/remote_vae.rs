//! Autoencoders for clients of diffusers' remote VAE protocol: a request is a job, and its answer
//! what the job made.

use std::{fs::File, io};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tempfile::NamedTempFile;
use tilewright_models::Checkpoint;
use tilewright_pipeline::Model;
use tilewright_plan::{Failure, Record};
use tilewright_service_api::{EncodeFields, Job, JobRequest, JobState, OutputFormat};
use tokio::sync::broadcast::error::RecvError;

use super::{
    extract::{PathName, body_problem, check_length},
    jobs::{Submission, accept_submission, check_room, view_job},
    results::serve_file,
    spool::{Spool, unwritten},
};
use crate::{
    accept::Refusal,
    app::App,
    error::one_line,
    jobs::{
        inputs::{Input, Uploads},
        live::JobUpdate,
    },
    problem::{ApiResult, Problem},
    remote_vae::{self, Arrangement, Element, Output, Parameters, Scaling, Values},
};

/// The media type of tensors.
const TENSOR: &str = "tensor/binary";

/// Bytes held for each byte of packed latents: themselves, and in f32 as they came and unpacked.
const HELD: u64 = 5;

/// Decode latents for diffusers
///
/// The server of `diffusers.utils.remote_utils.remote_decode`, whose `endpoint` is this address.
/// The body is the latents' bytes; the query has their `shape`, once for each axis, and `dtype`,
/// and what is wanted: `output_type` (pil, pt or mp4), `image_format` (jpg or png),
/// `partial_postprocess`, `scaling_factor` and `shift_factor` that the latents carry, or
/// `do_scaling` for the model's own, `height` and `width` of the picture of Flux' packed latents,
/// and, which the client does not send, `fps` of a clip and the job's `tag`. Other parameters are
/// ignored. A tensor is answered in the type of the latents, with its extents and its type in the
/// headers `shape` and `dtype`. The decode is a job like any other; it is cancelled if the client
/// goes away.
#[utoipa::path(
    post, path = "/v1/remote-vae/{model}/decode", operation_id = "remoteDecode",
    params(
        ("model" = String, Path, description = "The model, by its name in the configuration"),
        ("shape" = Vec<i64>, Query, description = "The extents of the latents: [N, C, h, w], [N, C, T, h, w], or [N, tokens, 4 · C] packed"),
        ("dtype" = String, Query, description = "float32, float16 or bfloat16")
    ),
    request_body(content = String, content_type = "tensor/binary"),
    responses(
        (status = 200, description = "A tensor, a picture or a clip", content(("tensor/binary"), ("image/jpeg"), ("image/png"), ("video/mp4"))),
        (status = 400, description = "The query is wrong, or the body is not as long as it says"),
        (status = 404, description = "No model of that name has a vae"),
        (status = 409, description = "The job was cancelled"),
        (status = 413, description = "The latents are too large"),
        (status = 422, description = "They are no latents of the model"),
        (status = 504, description = "The job's deadline passed")
    )
)]
pub async fn decode(State(app): State<App>, PathName(model): PathName, request: Request) -> ApiResult<Response> {
    let (parameters, takes_tensors) = (parameters(&request)?, takes_tensors(request.headers()));
    let element = element(&parameters)?;
    let (shape, output) = (parameters.shape.clone(), parameters.output);
    let of_model = move |vae: &Model| {
        check_output(output, takes_tensors, vae, &shape)?;
        packed(&parameters, vae).map(|packed| (parameters, packed))
    };
    let (parameters, packed) = with_vae(&app, &model, of_model).await?;
    let (caller, raw) = (app.auth.caller_name(&request), receive(&app, request).await?);
    check_bytes(&parameters, element, raw.bytes)?;
    let held = if packed.is_some() { HELD.saturating_mul(raw.bytes) } else { 0 };
    let turn = app.inspections.acquire(&caller, held).await?;
    let scaling = parameters.scaling();
    let latent = write_input(&app, raw.file, parameters.shape.clone(), (element, "latent", scaling, packed)).await?;
    drop(turn);
    let (format, arrangement, element) = match output {
        Output::Picture if takes_tensors => (OutputFormat::Safetensors, Some(Arrangement::Shares), element),
        Output::Picture if parameters.is_jpeg => (OutputFormat::Jpg, None, element),
        Output::Picture => (OutputFormat::Png, None, element),
        Output::Tensor => (OutputFormat::Safetensors, Some(Arrangement::AsMade), element),
        Output::Bytes => (OutputFormat::Safetensors, Some(Arrangement::Pixels), Element::UInt8),
        Output::Clip => (OutputFormat::Mp4, None, element),
    };
    let job = JobRequest {
        model,
        format: Some(format),
        scaled: parameters.has_own_scaling(),
        fps: parameters.fps,
        tag: parameters.tag,
        ..JobRequest::default()
    };
    let job = carry_out(&app, job, (Input::Latent, latent), caller).await?;
    match arrangement {
        Some(arrangement) => answer_tensor(&app, &job, "sample", arrangement, element).await,
        None => answer_file(&app, &job).await,
    }
}

/// Encode pictures for diffusers
///
/// The server of `diffusers.utils.remote_utils.remote_encode`, whose `endpoint` is this address.
/// The body is a picture's file, or the bytes of a tensor in −1…1 whose `shape` and `dtype` the
/// query has. The answer is the latents' bytes, in the type of the tensor or, of a file, in
/// float32, with their extents and type in the headers `shape` and `dtype`: the means, scaled by
/// `scaling_factor` and `shift_factor` if they are given.
#[utoipa::path(
    post, path = "/v1/remote-vae/{model}/encode", operation_id = "remoteEncode",
    params(
        ("model" = String, Path, description = "The model, by its name in the configuration"),
        ("shape" = Option<Vec<i64>>, Query, description = "The extents of a tensor: [N, 3, H, W] or [1, 3, T, H, W]"),
        ("dtype" = Option<String>, Query, description = "float32, float16 or bfloat16")
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "The latents", content(("tensor/binary"))),
        (status = 400, description = "The query is wrong, or the body is not as long as it says"),
        (status = 404, description = "No model of that name has a vae"),
        (status = 409, description = "The job was cancelled"),
        (status = 413, description = "The picture is too large"),
        (status = 422, description = "It is no picture for the model"),
        (status = 504, description = "The job's deadline passed")
    )
)]
pub async fn encode(State(app): State<App>, PathName(model): PathName, request: Request) -> ApiResult<Response> {
    let parameters = parameters(&request)?;
    let is_tensor = !parameters.shape.is_empty();
    let element = if is_tensor { element(&parameters)? } else { Element::Float32 };
    if is_tensor && !matches!(parameters.shape.len(), 4 | 5) {
        return Err(wrong_shape("[N, 3, H, W] or [1, 3, T, H, W]", &parameters.shape));
    }
    with_vae(&app, &model, |_| Ok(())).await?;
    let (caller, raw) = (app.auth.caller_name(&request), receive(&app, request).await?);
    let image = match is_tensor {
        true => {
            check_bytes(&parameters, element, raw.bytes)?;
            let as_is = (element, "sample", Scaling::default(), None);
            write_input(&app, raw.file, parameters.shape.clone(), as_is).await?
        }
        false => raw.file,
    };
    let job = JobRequest {
        model,
        format: Some(OutputFormat::Safetensors),
        scaled: parameters.has_own_scaling(),
        tag: parameters.tag.clone(),
        encode: Some(EncodeFields::default()),
        ..JobRequest::default()
    };
    let job = carry_out(&app, job, (Input::Image, image), caller).await?;
    answer_tensor(&app, &job, "latent", Arrangement::Scaled(parameters.scaling()), element).await
}

fn parameters(request: &Request) -> ApiResult<Parameters> {
    Parameters::parse(request.uri().query().unwrap_or_default())
}

/// True of a client that takes a tensor where others take a picture's file.
fn takes_tensors(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|text| text.split(',')).any(|media| {
        let mut parts = media.split(';').map(str::trim);
        let is_meant = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(TENSOR));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
        is_meant && weight > 0.0
    })
}

fn element(parameters: &Parameters) -> ApiResult<Element> {
    let missing = || Problem::bad_request(format!("dtype: expected the type of the body: {}", Element::REALS));
    parameters.element.ok_or_else(missing)
}

fn wrong_shape(expected: &str, found: &[i64]) -> Problem {
    Problem::bad_request(format!("shape: expected {expected}, not {found:?}"))
}

/// Looks into the autoencoder of a model.
async fn with_vae<T: Send + 'static>(
    app: &App,
    model: &str,
    look: impl FnOnce(&Model) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let name = model.to_owned();
    app.blocking(move |app| {
        let found = app.server.models.of_request(&name);
        let vae = found.as_ref().and_then(|model| model.vae.as_deref());
        look(&vae.ok_or_else(|| Problem::not_found("no model of that name has a vae: see /v1/models"))?.model)
    })
    .await
}

/// Refuses a clip where a picture's file is wanted.
fn check_output(output: Output, takes_tensors: bool, vae: &Model, shape: &[i64]) -> ApiResult<()> {
    let is_clip = vae.is_video() && shape.len() == 5 && shape[2] > 1;
    match output == Output::Picture && !takes_tensors && is_clip {
        true => Err(Problem::bad_request("output_type=pil: a clip is no picture: expected pt, mp4, or a processor")),
        false => Ok(()),
    }
}

/// The extents of Flux' latents that came packed; none of others.
fn packed(parameters: &Parameters, vae: &Model) -> ApiResult<Option<[i64; 2]>> {
    let shape = &parameters.shape;
    match shape.len() {
        4 | 5 => Ok(None),
        3 => {
            let (Some(height), Some(width)) = (parameters.height, parameters.width) else {
                return Err(Problem::bad_request("height and width: expected the picture's, for packed latents"));
            };
            // As `FluxPipeline._unpack_latents` rounds.
            let side = |pixels: i64| 2 * (pixels / (2 * i64::from(vae.spatial_scale())));
            let (height, width) = (side(height), side(width));
            if height * width == 0 {
                return Err(Problem::bad_request("height and width: less than packed latents stand for"));
            }
            let expected = [shape[0], height * width / 4, 4 * vae.latent_channels() as i64];
            match *shape == expected {
                true => Ok(Some([height, width])),
                false => Err(wrong_shape(&format!("{expected:?} for this height and width"), shape)),
            }
        }
        _ => Err(wrong_shape("[N, C, h, w], [N, C, T, h, w], or packed latents [N, tokens, 4 · C]", shape)),
    }
}

/// Refuses a body that is not as long as the query says.
fn check_bytes(Parameters { shape, .. }: &Parameters, element: Element, bytes: u64) -> ApiResult<()> {
    let values = shape.iter().try_fold(1_u64, |values, side| values.checked_mul(u64::try_from(*side).ok()?));
    let expected = values.and_then(|values| values.checked_mul(element.bytes() as u64));
    match expected == Some(bytes) {
        true => Ok(()),
        false => Err(Problem::bad_request(format!(
            "the body has {bytes} bytes, and {shape:?} in {} takes {}",
            element.name(),
            expected.map_or_else(|| "more than any file has".to_owned(), |expected| expected.to_string())
        ))),
    }
}

/// A body in a file.
struct Received {
    file: NamedTempFile,
    bytes: u64,
}

/// Writes a body into a file, if a job would be taken at present.
async fn receive(app: &App, request: Request) -> ApiResult<Received> {
    check_room(app)?;
    let most = app.server.config.in_force().server.limits.upload_bytes;
    check_length(request.headers(), most)?;
    let mut body = request.into_body().into_data_stream();
    let mut spool = Spool::new(app).await?;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| body_problem(&error, most))?;
        spool.write_within(&chunk, most).await?;
    }
    let bytes = spool.bytes;
    Ok(Received { file: spool.finish().await?, bytes })
}

/// Writes a tensor that came as a job's input.
async fn write_input(
    app: &App,
    raw: NamedTempFile,
    shape: Vec<i64>,
    (element, name, scaling, packed): (Element, &'static str, Scaling, Option<[i64; 2]>),
) -> ApiResult<NamedTempFile> {
    app.blocking(move |app| {
        let part = if name == "sample" { "image" } else { name };
        let mut input = app.server.create_upload()?;
        let tensor = remote_vae::Input { path: raw.path(), shape: &shape, element };
        let file: &mut File = input.as_file_mut();
        match tensor.write(file, name, scaling, packed).map_err(|error| unwritten(&app.server, &error))? {
            0 => Ok(input),
            unsound => {
                let after = if scaling == Scaling::default() { "" } else { " without their scaling" };
                Err(Problem::invalid(format!("{part}: {unsound} of its values are NaN or infinite{after}")))
            }
        }
    })
    .await
}

/// A job whose result somebody waits for: if nobody does any more, it is cancelled.
struct Awaited {
    app: App,
    id: String,
    has_ended: bool,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.has_ended {
            return;
        }
        let (app, id) = (self.app.clone(), std::mem::take(&mut self.id));
        runtime.spawn_blocking(move || {
            if let Err(error) = app.server.jobs.cancel(&id) {
                tracing::warn!(job = id, error = one_line(&error), "a job whose client is gone can't be cancelled");
            }
        });
    }
}

/// Submits a job and waits until it is done.
async fn carry_out(
    app: &App,
    job: JobRequest,
    (input, file): (Input, NamedTempFile),
    caller: String,
) -> ApiResult<Job> {
    let submission = Submission::of(job, Uploads::from([(input, file)]), caller);
    let job = accept_submission(app, submission).await?;
    let mut awaited = Awaited { app: app.clone(), id: job.id.clone(), has_ended: false };
    let updates = app.server.jobs.live.get(&job.id).map(|handle| handle.follow().1);
    let ended = match updates {
        Some(mut updates) => loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Ok(JobUpdate::End(job)) => break *job,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break view_job(app, job.id.clone()).await?,
                },
                () = app.wait_for_end() => return Err(Refusal::ShuttingDown.into()),
            }
        },
        // It has ended meanwhile.
        None => view_job(app, job.id.clone()).await?,
    };
    awaited.has_ended = ended.state.is_end();
    let status = match ended.state {
        JobState::Done => return Ok(ended),
        JobState::Cancelled => StatusCode::CONFLICT,
        JobState::Expired => StatusCode::GATEWAY_TIMEOUT,
        // Values that no type holds come of those that were sent.
        JobState::Failed if has_unsound_result(app, &ended.id).await? => StatusCode::UNPROCESSABLE_ENTITY,
        JobState::Queued | JobState::Running | JobState::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let why = ended.error.map_or_else(String::new, |error| format!(": {error}"));
    Err(Problem::new(status, format!("the job {} is {}{why}", ended.id, ended.state.name())))
}

/// True if a job's last attempt made values that are NaN or infinite.
async fn has_unsound_result(app: &App, id: &str) -> ApiResult<bool> {
    let id = id.to_owned();
    app.blocking(move |app| {
        let record = app.server.jobs.store.record(&id)?;
        let record = record.and_then(|text| serde_json::from_str::<Record>(&text).ok());
        let last = record.as_ref().and_then(|record| record.attempts.last());
        Ok(last.is_some_and(|attempt| matches!(attempt.failure, Failure::NonFinite { .. })))
    })
    .await
}

/// The first result of a job, as it is.
async fn answer_file(app: &App, job: &Job) -> ApiResult<Response> {
    let paths = app.server.jobs.files.results(&job.id, job.format.ending(), job.batch);
    let gone = || Problem::new(StatusCode::GONE, "the result is no longer there");
    let answer = serve_file(paths.first().ok_or_else(gone)?, None).await;
    match answer.status() {
        StatusCode::OK => Ok(([(header::CONTENT_TYPE, job.format.content_type())], answer).into_response()),
        _ => Err(gone()),
    }
}

/// A tensor of a job's result, piece by piece.
async fn answer_tensor(
    app: &App,
    job: &Job,
    name: &'static str,
    arrangement: Arrangement,
    element: Element,
) -> ApiResult<Response> {
    let paths = app.server.jobs.files.results(&job.id, job.format.ending(), job.batch);
    let values = app.blocking(move |_| {
        let gone = || Problem::new(StatusCode::GONE, "the result is no longer there");
        let file = Checkpoint::open(paths.first().ok_or_else(gone)?).map_err(|_| gone())?;
        let values = Values::new(file, name, arrangement, element).ok_or_else(gone)?;
        match values.overflows() {
            false => Ok(values),
            true => {
                Err(Problem::invalid(format!("the latents don't fit in {}: send a tensor in float32", element.name())))
            }
        }
    });
    let values = values.await?;
    let shape = serde_json::to_string(&values.shape()).map_err(|error| Problem::internal(&error))?;
    let headers = [
        ("content-type", TENSOR.to_owned()),
        ("content-length", values.bytes().to_string()),
        ("shape", shape),
        ("dtype", values.element().name().to_owned()),
    ];
    let pieces = stream::try_unfold(values, |mut values| async {
        let made = tokio::task::spawn_blocking(move || (values.next(), values)).await;
        let (piece, values) = made.map_err(io::Error::other)?;
        Ok::<_, io::Error>(piece.map(|piece| (Bytes::from(piece), values)))
    });
    Ok((axum::response::AppendHeaders(headers), Body::from_stream(pieces)).into_response())
}
