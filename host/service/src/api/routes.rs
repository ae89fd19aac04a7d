//! Models, devices, and routes with the policies on trial on them.

use axum::{Json, extract::State};
use serde::Serialize;
use tilewright_config::{Conditions, Route};
use tilewright_engine::{Budget, WeightStore};
use tilewright_plan::DenoiserModel;
use tilewright_rollout::{CanaryFacts, CanaryState, ShadowFacts};
use tilewright_service_api::{DeviceBody, JobSettings, JobStage};
use utoipa::ToSchema;

use super::extract::PathName;
use crate::{app::App, device::DeviceState, models::OpenModel, problem::ApiResult};

/// A configured model: a VAE, a transformer, or both.
#[derive(Serialize, ToSchema)]
pub struct ModelBody {
    name: String,
    /// The family that its files were recognized as.
    family: String,
    /// True if the VAE is quantized, or the transformer if there is no VAE.
    quantized: bool,
    /// Bytes of the VAE's weights, as they are stored; of the transformer's, if there is no VAE.
    parameter_bytes: u64,
    /// Pixels of the output along a side per pixel of the latent.
    spatial_scale: u32,
    /// Frames of the output per frame of the latent, the first one aside.
    temporal_scale: u32,
    /// The kinds of work that it does.
    stages: Vec<JobStage>,
    /// The transformer's properties, as policies are given them.
    #[schema(value_type = Option<Object>)]
    transformer: Option<DenoiserModel>,
    /// The LoRAs that jobs may ask for.
    loras: Vec<String>,
    /// The settings of a job from a prompt that asks for nothing, if it takes prompts.
    defaults: Option<JobSettings>,
}

impl ModelBody {
    fn of(opened: &OpenModel) -> Self {
        let transformer = opened.transformer.as_ref().map(|transformer| transformer.denoiser.model());
        let vae = opened.vae.as_ref().map(|vae| vae.model.facts());
        let [spatial_scale, temporal_scale] = match (vae, &opened.transformer) {
            (Some(facts), _) => [facts.spatial_scale, facts.temporal_scale],
            (None, Some(transformer)) => transformer.scales(),
            (None, None) => [1, 1],
        };
        let stages = [
            (JobStage::Decode, vae.is_some()),
            (JobStage::Encode, opened.vae.as_ref().is_some_and(|vae| vae.model.encoded_scale().is_ok())),
            (JobStage::Denoise, transformer.is_some()),
            (JobStage::Generate, opened.for_prompts().is_ok()),
        ];
        let is_quantized = || opened.transformer.iter().flat_map(|of| of.denoiser.files()).any(|of| of.is_quantized());
        let stored_bytes = transformer.as_ref().map_or(0, |of| of.stored_bytes);
        let family = transformer.as_ref().map_or_else(String::new, |of| of.family.clone());
        Self {
            name: opened.name.clone(),
            family: vae.map_or(family, |facts| facts.family.clone()),
            quantized: vae.map_or_else(is_quantized, |facts| facts.quantized),
            parameter_bytes: vae.map_or(stored_bytes, |facts| facts.parameter_bytes),
            spatial_scale,
            temporal_scale,
            stages: stages.into_iter().filter(|(_, has)| *has).map(|(stage, _)| stage).collect(),
            transformer,
            loras: opened.lora_names(),
            defaults: opened.usual_settings(),
        }
    }
}

/// Configured models.
#[derive(Serialize, ToSchema)]
pub struct ModelList {
    models: Vec<ModelBody>,
}

/// The configured models
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", responses((status = 200, body = ModelList)))]
pub async fn models(State(app): State<App>) -> Json<ModelList> {
    let models = app.server.models.by_name();
    Json(ModelList { models: models.values().map(|opened| ModelBody::of(opened)).collect() })
}

/// A device as the API gives it; `queue` is the most jobs that may wait.
pub fn device_body(device: &DeviceState, queue: u32, weights: &WeightStore) -> DeviceBody {
    let ((queued, running), memory) = (device.queue.load(), device.memory_use());
    DeviceBody {
        name: device.name.clone(),
        facts: device.facts.clone(),
        memory_limit_bytes: device.memory_limit,
        counts_weights: device.counts_weights,
        weights_memory_bytes: match weights.budget(device.machine.device) {
            Budget::Bytes(most) => most,
            Budget::Room { own, .. } => own,
            Budget::Last => 0,
        },
        in_use_bytes: memory.in_use,
        pooled_bytes: memory.pooled,
        queued,
        queue,
        running,
    }
}

/// Devices at work.
#[derive(Serialize, ToSchema)]
pub struct DeviceList {
    devices: Vec<DeviceBody>,
}

/// The devices, their memory and their queues
#[utoipa::path(get, path = "/v1/devices", operation_id = "listDevices", responses((status = 200, body = DeviceList)))]
pub async fn devices(State(app): State<App>) -> Json<DeviceList> {
    let queue = app.server.config.in_force().server.limits.queue;
    let bodies = app.server.devices.iter().map(|device| device_body(device, queue, app.server.models.weights()));
    Json(DeviceList { devices: bodies.collect() })
}

/// A route and the policies on trial on it.
#[derive(Serialize, ToSchema)]
pub struct RouteBody {
    name: String,
    /// The conditions of the jobs that it takes: a condition that is left out holds for every job.
    #[schema(value_type = Object)]
    conditions: Conditions,
    /// The policy that decides.
    policy: String,
    /// `next-job`, or `next-chunk` if a new revision takes over within a clip or between a
    /// sample's steps.
    take_over: String,
    /// The shadow's comparison, if there is one.
    #[schema(value_type = Option<Object>)]
    shadow: Option<ShadowFacts>,
    /// The state of the canary's trial, if there is one.
    #[schema(value_type = Option<Object>)]
    canary: Option<CanaryFacts>,
    /// The canary's share of the route's jobs, if there is one.
    canary_share: Option<f64>,
}

/// Routes in order.
#[derive(Serialize, ToSchema)]
pub struct RouteList {
    routes: Vec<RouteBody>,
}

fn route_body((route, shadow, canary): (Route, Option<ShadowFacts>, Option<CanaryFacts>)) -> RouteBody {
    let canary_share = route.canary.as_ref().map(|canary| canary.share);
    let take_over = match route.take_over {
        tilewright_config::TakeOver::NextJob => "next-job",
        tilewright_config::TakeOver::NextChunk => "next-chunk",
    };
    let (name, conditions, policy) = (route.name, route.conditions, route.policy);
    RouteBody { name, conditions, policy, take_over: take_over.into(), shadow, canary, canary_share }
}

/// The routes in order, with their shadows and canaries
#[utoipa::path(get, path = "/v1/routes", operation_id = "listRoutes", responses((status = 200, body = RouteList)))]
pub async fn list(State(app): State<App>) -> Json<RouteList> {
    Json(RouteList { routes: app.server.rollout.routes().into_iter().map(route_body).collect() })
}

/// The end of a trial.
#[derive(Serialize, ToSchema)]
pub struct TrialBody {
    route: String,
    /// `promoted` or `stopped`.
    #[schema(value_type = String)]
    state: CanaryState,
    /// The revision of the route's policy that is in force since, if the canary was promoted.
    revision: Option<u64>,
}

/// Promote a route's canary, whatever its trial has shown so far
#[utoipa::path(
    post, path = "/v1/routes/{name}/canary/promote", operation_id = "promoteCanary", params(("name" = String, Path, description = "The route's name")),
    responses(
        (status = 200, body = TrialBody),
        (status = 404),
        (status = 409, description = "It has no canary on trial"),
        (status = 422, description = "It can't be put in force")
    )
)]
pub async fn promote(State(app): State<App>, PathName(route): PathName) -> ApiResult<Json<TrialBody>> {
    let name = route.clone();
    let change = app.blocking(move |app| Ok(app.server.rollout.promote(&name)?)).await?;
    Ok(Json(TrialBody { route, state: CanaryState::Promoted, revision: Some(change.in_force.number) }))
}

/// Stop a route's canary: it gets no more jobs
#[utoipa::path(
    post, path = "/v1/routes/{name}/canary/stop", operation_id = "stopCanary", params(("name" = String, Path, description = "The route's name")),
    responses(
        (status = 200, body = TrialBody),
        (status = 404),
        (status = 409, description = "It has no canary on trial")
    )
)]
pub async fn stop(State(app): State<App>, PathName(route): PathName) -> ApiResult<Json<TrialBody>> {
    let name = route.clone();
    app.blocking(move |app| Ok(app.server.rollout.stop(&name)?)).await?;
    Ok(Json(TrialBody { route, state: CanaryState::Stopped, revision: None }))
}
