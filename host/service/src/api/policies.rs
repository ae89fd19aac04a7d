//! Policies: listed, uploaded, checked, swapped, rolled back, paused.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::to_bytes,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tilewright_config::Source;
use tilewright_files::digest::is_sha256;
use tilewright_gate::Verdict;
use tilewright_policy::Limits;
use tilewright_rollout::{Replacement, Revision, Rollout, SlotFacts};
use tilewright_service_api::{PolicyBody, RefusedBody, RevisionBody};
use tokio::{sync::SemaphorePermit, time::timeout};
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{JsonBody, PathName, QueryParams, body_problem, check_length, check_names, is_media},
    spool::Spool,
};
use crate::{
    app::App,
    problem::{ApiResult, Problem},
    state::ServerState,
};

/// Bytes of a signature's file.
const SIGNATURE: usize = 4096;

/// The longest wait for a turn to compile and check.
const TURN: Duration = Duration::from_secs(20);

/// Characters of a source, and of a setting.
const TEXT: usize = 1024;

/// Settings of a policy.
const SETTINGS: usize = 64;

/// A revision as the API gives it.
fn revision_body(revision: &Revision) -> RevisionBody {
    let (identity, tally) = (&revision.identity, revision.tally());
    RevisionBody {
        number: revision.number,
        name: identity.name.clone(),
        version: identity.version.clone(),
        digest: identity.digest.clone(),
        settings: identity.settings.clone(),
        origin: revision.origin.clone(),
        stages: revision.stages().to_vec(),
        since: revision.since.clone(),
        jobs: tally.jobs,
        decisions: tally.decisions,
        failures: tally.failures,
    }
}

/// A policy as the API gives it.
pub fn policy_body(rollout: &Rollout, slot: SlotFacts) -> PolicyBody {
    let warnings = rollout.unanswered(&slot).iter().map(ToString::to_string).collect();
    let refused = slot.refused.into_iter().map(|refused| {
        let tilewright_rollout::RefusedModule { time, origin, why } = refused;
        RefusedBody { time, origin, why }
    });
    PolicyBody {
        name: slot.name,
        source: slot.source,
        paused: slot.paused,
        in_force: revision_body(&slot.in_force),
        previous: slot.previous.as_deref().map(revision_body),
        draining: slot.draining.iter().map(|revision| revision_body(revision)).collect(),
        refused: refused.collect(),
        warnings,
    }
}

/// Policies in service.
#[derive(Serialize, ToSchema)]
pub struct PolicyList {
    policies: Vec<PolicyBody>,
}

/// The policies in service
#[utoipa::path(get, path = "/v1/policies", operation_id = "listPolicies", responses((status = 200, body = PolicyList)))]
pub async fn list(State(app): State<App>) -> ApiResult<Json<PolicyList>> {
    app.blocking(|App { server, .. }| {
        let policies = server.rollout.policies().into_iter().map(|slot| policy_body(&server.rollout, slot));
        Ok(Json(PolicyList { policies: policies.collect() }))
    })
    .await
}

/// One policy
#[utoipa::path(
    get, path = "/v1/policies/{name}", operation_id = "getPolicy", params(("name" = String, Path, description = "The policy's name in the configuration")),
    responses(
        (status = 200, body = PolicyBody),
        (status = 404)
    )
)]
pub async fn get(State(app): State<App>, PathName(name): PathName) -> ApiResult<Json<PolicyBody>> {
    app.blocking(move |App { server, .. }| Ok(Json(policy_body(&server.rollout, server.rollout.policy(&name)?)))).await
}

/// A module's file.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[allow(dead_code, reason = "describes a body of bytes")]
pub struct ModuleFile(Vec<u8>);

/// A module that is stored now.
#[derive(Serialize, ToSchema)]
pub struct ModuleBody {
    pub digest: String,
    /// As the module describes itself.
    name: String,
    /// As the module describes itself.
    version: String,
    /// Everything that the load gate found, as `tilewright policy check --json` prints it.
    #[schema(value_type = Object)]
    verdict: Verdict,
}

/// The use that a module is uploaded for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UploadQuery {
    /// The policy that it may be swapped into: it is checked with what that one may use.
    #[param(max_length = 64)]
    policy: Option<String>,
}

/// Upload a module
///
/// It is stored under its digest and checked; a swap can name it then. If the configuration asks
/// for signed policies, its signature comes with it and is verified before anything else. Modules
/// that nothing needs are removed after a while.
#[utoipa::path(
    post, path = "/v1/modules", operation_id = "uploadModule",
    params(UploadQuery, ("Module-Signature" = Option<String>, Header, description = "Its signature as minisign writes it, the whole file in base64", max_length = 8192, pattern = "^[A-Za-z0-9+/]+=*$")),
    request_body(content = ModuleFile, content_type = "application/wasm"),
    responses(
        (status = 201, body = ModuleBody),
        (status = 400),
        (status = 404, description = "No such policy"),
        (status = 413),
        (status = 415),
        (status = 422, description = "It is not signed where it has to be, or can't be loaded")
    )
)]
pub async fn upload(
    State(app): State<App>,
    QueryParams(UploadQuery { policy }): QueryParams<UploadQuery>,
    request: Request,
) -> ApiResult<Response> {
    check_names(&[("policy", &policy)])?;
    if !is_media(request.headers(), "application/wasm") {
        return Err(Problem::unsupported("expected Content-Type: application/wasm"));
    }
    let signature = signature(request.headers())?;
    let module = receive_module(&app, request).await?;
    let checked = store_module(&app, module, signature, policy).await?;
    Ok((StatusCode::CREATED, Json(checked)).into_response())
}

/// The signature that comes with a module.
fn signature(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get("module-signature") else { return Ok(None) };
    let wrong = || Problem::bad_request("Module-Signature: expected a .minisig file in base64, without line ends");
    let bytes = STANDARD.decode(value.as_bytes()).map_err(|_| wrong())?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() <= SIGNATURE);
    text.map(Some).ok_or_else(wrong)
}

/// The size of the largest module that is taken for any policy, in bytes.
pub fn largest_module(app: &App) -> u64 {
    let file = Limits::default().granting(tilewright_policy::Wasi::Inert, None).file_bytes as u64;
    file.min(app.server.config.in_force().server.limits.upload_bytes)
}

/// Writes an incoming module to a file as it arrives: no module is held in memory before its turn.
async fn receive_module(app: &App, request: Request) -> ApiResult<NamedTempFile> {
    let most = largest_module(app);
    check_length(request.headers(), most)?;
    let mut spool = Spool::new(app).await?;
    let mut body = http_body_util::Limited::new(request.into_body(), usize::try_from(most).unwrap_or(usize::MAX));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| body_problem(&axum::Error::new(error), most))?;
        if let Ok(chunk) = frame.into_data() {
            spool.write(&chunk).await?;
        }
    }
    spool.finish().await
}

/// Waits for a turn to compile and check.
async fn acquire_gate(app: &App) -> ApiResult<SemaphorePermit<'_>> {
    let busy = || Problem::busy("too many modules are being checked: come again", 5);
    timeout(TURN, app.gates.acquire()).await.map_err(|_| busy())?.map_err(|_| busy())
}

/// Stores and checks a module.
pub async fn store_module(
    app: &App,
    module: NamedTempFile,
    signature: Option<String>,
    policy: Option<String>,
) -> ApiResult<ModuleBody> {
    let _gate = acquire_gate(app).await?;
    let checked = app.blocking(move |app| {
        let bytes = std::fs::read(module.path()).map_err(|error| Problem::internal(&error))?;
        Ok(app.server.rollout.upload(bytes, signature, policy.as_deref())?)
    });
    let checked = checked.await?;
    let (name, version) = (checked.verdict.name.clone(), checked.verdict.version.clone());
    Ok(ModuleBody { digest: checked.digest, name, version, verdict: checked.verdict })
}

/// Upload a module's signature, as minisign writes it
#[utoipa::path(
    put, path = "/v1/modules/{digest}/signature", operation_id = "signModule", params(("digest" = String, Path, description = "sha256: and 64 hexadecimal digits")),
    request_body(content = String, content_type = "text/plain"),
    responses(
        (status = 204, description = "Kept beside the module; whose it is counts when the module is put in force"),
        (status = 400),
        (status = 404, description = "No such module is stored"),
        (status = 413),
        (status = 422, description = "It is no signature, or not one that counts where signatures are required")
    )
)]
pub async fn sign(State(app): State<App>, PathName(digest): PathName, request: Request) -> ApiResult<StatusCode> {
    check_length(request.headers(), SIGNATURE as u64)?;
    let bytes =
        to_bytes(request.into_body(), SIGNATURE).await.map_err(|error| body_problem(&error, SIGNATURE as u64))?;
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| Problem::bad_request("the signature: not UTF-8"))?;
    app.blocking(move |app| match app.server.rollout.sign(&digest, &text) {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        // The address names the module.
        Err(error @ tilewright_rollout::Error::UnknownModule { .. }) => Err(Problem::not_found(error.for_callers())),
        Err(error) => Err(error.into()),
    })
    .await
}

/// The module to put in force: a stored one, or one from elsewhere.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplacementBody {
    /// A stored module, `sha256:…`; or `source`, not both. Neither: what the configuration says, as
    /// it is now.
    #[serde(default)]
    #[schema(pattern = "^sha256:[0-9a-f]{64}$")]
    digest: Option<String>,
    /// A policy that ships, by its name, or `oci://REGISTRY/NAME:TAG`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 1024)]
    source: Option<String>,
    /// Settings by name; those that are not among them take their defaults. If all are left out:
    /// those in force, for a module that describes itself by the same name; for another its
    /// defaults.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    settings: Option<BTreeMap<String, serde_json::Value>>,
}

type Settings = Vec<(String, String)>;

impl ReplacementBody {
    /// A replacement from the dashboard's form: a digest or a source, and settings as lines
    /// `name=value`. Without such a line, the settings stay as they are.
    pub fn from_form(digest: Option<String>, source: Option<String>, settings: &str) -> ApiResult<Self> {
        let line = |line: &str| {
            let (name, value) = line.split_once('=').ok_or_else(|| {
                Problem::invalid(format!("settings: '{}': expected name=value in each line", line.trim()))
            })?;
            Ok::<_, Problem>((name.trim().to_owned(), value.trim().into()))
        };
        let mut found: BTreeMap<String, serde_json::Value> = BTreeMap::new();
        for given in settings.lines().filter(|text| !text.trim().is_empty()).map(line) {
            let (name, value) = given?;
            if found.contains_key(&name) {
                return Err(Problem::invalid(format!("settings: '{name}' is given twice")));
            }
            found.insert(name, value);
        }
        Ok(Self { digest, source, settings: (!found.is_empty()).then_some(found) })
    }

    fn into_replacement(self) -> ApiResult<(Replacement, Option<Settings>)> {
        let replacement = match (self.digest, self.source) {
            (Some(_), Some(_)) => return Err(Problem::invalid("give digest or source, not both")),
            (Some(digest), None) if is_sha256(&digest) => Replacement::Stored { digest },
            (Some(_), None) => return Err(Problem::invalid("digest: expected sha256: and 64 hexadecimal digits")),
            (None, None) => Replacement::Configured,
            (None, Some(source)) => {
                if source.len() > TEXT || source.contains(char::is_control) {
                    return Err(Problem::invalid(
                        "source: expected the name of a policy that ships, or oci://REGISTRY/NAME:TAG",
                    ));
                }
                if source.starts_with("sha256:") {
                    return Err(Problem::invalid("source: a stored module is named by digest: give that instead"));
                }
                let Ok(source) = source.parse::<Source>();
                if let Source::File(_) = source {
                    // Files on the server are for its configuration to name.
                    return Err(Problem::invalid(
                        "source: files of the server are named in its configuration: upload the module to /v1/modules instead",
                    ));
                }
                Replacement::From(source)
            }
        };
        Ok((replacement, self.settings.map(settings_as_text).transpose()?))
    }
}

/// Settings as texts, as on command lines.
fn settings_as_text(settings: BTreeMap<String, serde_json::Value>) -> ApiResult<Settings> {
    if settings.len() > SETTINGS {
        return Err(Problem::invalid(format!("settings: at most {SETTINGS}")));
    }
    let text = |(name, value): (String, serde_json::Value)| {
        let text = match value {
            serde_json::Value::String(text) => text,
            plain @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_)) => plain.to_string(),
            _ => return Err(Problem::invalid("settings: expected texts, numbers, true or false")),
        };
        if name.len() > TEXT || text.len() > TEXT || name.contains(char::is_control) {
            return Err(Problem::invalid(format!("settings: names and values of at most {TEXT} characters")));
        }
        Ok((name, text))
    };
    settings.into_iter().map(text).collect()
}

/// Ask the load gate about a replacement, with the policy's settings and grants; nothing is put in
/// force
#[utoipa::path(
    post, path = "/v1/policies/{name}/check", operation_id = "checkReplacement", params(("name" = String, Path, description = "The policy's name in the configuration")),
    request_body = ReplacementBody,
    responses(
        (status = 200, description = "The verdict, as `tilewright policy check --json` prints it", body = Object),
        (status = 400),
        (status = 404),
        (status = 413),
        (status = 415),
        (status = 422, description = "It can't be had, or not be loaded")
    )
)]
pub async fn check(
    State(app): State<App>,
    PathName(name): PathName,
    JsonBody(body): JsonBody<ReplacementBody>,
) -> ApiResult<Json<Verdict>> {
    app.server.rollout.policy(&name)?;
    let (replacement, settings) = body.into_replacement()?;
    let _gate = acquire_gate(&app).await?;
    app.blocking(move |app| Ok(Json(app.server.rollout.check(&name, &replacement, settings.as_deref())?))).await
}

/// Put another revision in force
///
/// It passes the load gate, is compiled and warmed beside the one in force, and takes over at once:
/// jobs that were accepted before keep theirs. If the gate refuses it, nothing changes.
#[utoipa::path(
    post, path = "/v1/policies/{name}/swap", operation_id = "swapPolicy", params(("name" = String, Path, description = "The policy's name in the configuration")),
    request_body = ReplacementBody,
    responses(
        (status = 200, body = PolicyBody),
        (status = 400),
        (status = 404),
        (status = 413),
        (status = 409, description = "Another swap of it is under way"),
        (status = 415),
        (status = 422, description = "The gate refuses it")
    )
)]
pub async fn swap(
    State(app): State<App>,
    PathName(name): PathName,
    JsonBody(body): JsonBody<ReplacementBody>,
) -> ApiResult<Json<PolicyBody>> {
    app.server.rollout.policy(&name)?;
    swap_policy(&app, &name, body).await.map(Json)
}

/// Swaps a policy and returns it as it is then.
pub async fn swap_policy(app: &App, name: &str, body: ReplacementBody) -> ApiResult<PolicyBody> {
    let (replacement, settings) = body.into_replacement()?;
    let _gate = acquire_gate(app).await?;
    change_policy(app, name, move |server, name| {
        let started = Instant::now();
        server.rollout.swap(name, &replacement, settings.as_deref())?;
        server.metrics.record_swap(started.elapsed());
        Ok(())
    })
    .await
}

/// Changes a policy and returns it as it is then.
pub async fn change_policy(
    app: &App,
    name: &str,
    change: impl FnOnce(&ServerState, &str) -> tilewright_rollout::Result<()> + Send + 'static,
) -> ApiResult<PolicyBody> {
    let name = name.to_owned();
    app.blocking(move |App { server, .. }| {
        change(server, &name)?;
        Ok(policy_body(&server.rollout, server.rollout.policy(&name)?))
    })
    .await
}

/// Put the previous revision in force again
#[utoipa::path(
    post, path = "/v1/policies/{name}/rollback", operation_id = "rollBackPolicy", params(("name" = String, Path, description = "The policy's name in the configuration")),
    responses(
        (status = 200, body = PolicyBody),
        (status = 404),
        (status = 409, description = "There is none")
    )
)]
pub async fn roll_back(State(app): State<App>, PathName(name): PathName) -> ApiResult<Json<PolicyBody>> {
    change_policy(&app, &name, |server, name| server.rollout.roll_back(name).map(drop)).await.map(Json)
}

/// Ask a policy no more: the native default decides in its place
#[utoipa::path(
    post, path = "/v1/policies/{name}/pause", operation_id = "pausePolicy", params(("name" = String, Path, description = "The policy's name in the configuration")),
    responses(
        (status = 200, body = PolicyBody),
        (status = 404)
    )
)]
pub async fn pause(State(app): State<App>, PathName(name): PathName) -> ApiResult<Json<PolicyBody>> {
    change_policy(&app, &name, |server, name| server.rollout.pause(name, true)).await.map(Json)
}

/// Ask a policy again
#[utoipa::path(
    post, path = "/v1/policies/{name}/resume", operation_id = "resumePolicy", params(("name" = String, Path, description = "The policy's name in the configuration")),
    responses(
        (status = 200, body = PolicyBody),
        (status = 404)
    )
)]
pub async fn resume(State(app): State<App>, PathName(name): PathName) -> ApiResult<Json<PolicyBody>> {
    change_policy(&app, &name, |server, name| server.rollout.pause(name, false)).await.map(Json)
}
