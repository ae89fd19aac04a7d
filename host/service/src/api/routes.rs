//! Models, devices, and routes with what is on trial on them.

use axum::{Json, extract::State};
use serde::Serialize;
use tilewright_config::{Conditions, Route};
use tilewright_rollout::{CanaryFacts, CanaryState, ShadowFacts};
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::bodies::Named;
use crate::{App, problem::Outcome};

/// A configured model.
#[derive(Serialize, ToSchema)]
pub struct ModelBody {
    name: String,
    /// What it was read to be.
    family: String,
    quantized: bool,
    /// Of its weights, as they are stored.
    parameter_bytes: u64,
    /// Pixels of the output along a side per pixel of the latent.
    spatial_scale: u32,
    /// Frames of the output per frame of the latent, the first one aside.
    temporal_scale: u32,
}

/// Configured models.
#[derive(Serialize, ToSchema)]
pub struct ModelList {
    models: Vec<ModelBody>,
}

/// The configured models
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", responses((status = 200, body = ModelList)))]
pub async fn models(State(app): State<App>) -> Json<ModelList> {
    let models = app.house.models.load();
    let bodies = models.values().map(|opened| {
        let facts = opened.model.facts();
        ModelBody {
            name: opened.name.clone(),
            family: facts.family.clone(),
            quantized: facts.quantized,
            parameter_bytes: facts.parameter_bytes,
            spatial_scale: facts.spatial_scale,
            temporal_scale: facts.temporal_scale,
        }
    });
    Json(ModelList { models: bodies.collect() })
}

/// A device at work.
#[derive(Serialize, ToSchema)]
pub struct DeviceBody {
    name: String,
    /// What it is, as policies are told.
    #[schema(value_type = Object)]
    facts: tilewright_plan::Device,
    /// The most that a job may hold, weights aside.
    memory_limit_bytes: u64,
    /// Handed out at the last look, weights included.
    in_use_bytes: u64,
    /// Kept for the next allocations.
    pooled_bytes: u64,
    /// Jobs that wait.
    queued: usize,
    /// The most that may.
    queue: u32,
    /// Whether a job is at work.
    running: bool,
}

/// Devices at work.
#[derive(Serialize, ToSchema)]
pub struct DeviceList {
    devices: Vec<DeviceBody>,
}

/// The devices, their memory and their queues
#[utoipa::path(get, path = "/v1/devices", operation_id = "listDevices", responses((status = 200, body = DeviceList)))]
pub async fn devices(State(app): State<App>) -> Json<DeviceList> {
    let queue = app.house.config.load().server.limits.queue;
    let bodies = app.house.devices.iter().map(|device| {
        let ((queued, running), held) = (device.queue.load(), device.held());
        DeviceBody {
            name: device.name.clone(),
            facts: device.facts.clone(),
            memory_limit_bytes: device.memory_limit,
            in_use_bytes: held.in_use,
            pooled_bytes: held.pooled,
            queued,
            queue,
            running,
        }
    });
    Json(DeviceList { devices: bodies.collect() })
}

/// A route and what is on trial on it.
#[derive(Serialize, ToSchema)]
pub struct RouteBody {
    name: String,
    /// What it takes: everything that is left out may be anything.
    #[schema(value_type = Object)]
    conditions: Conditions,
    /// The policy that decides.
    policy: String,
    /// `next-job`, or `next-chunk` where a clip takes a new revision in the middle.
    take_over: String,
    /// How the shadow compares, where there is one.
    #[schema(value_type = Option<Object>)]
    shadow: Option<ShadowFacts>,
    /// How far the canary's trial is, where there is one.
    #[schema(value_type = Option<Object>)]
    canary: Option<CanaryFacts>,
    /// Of the route's jobs, where there is a canary.
    canary_share: Option<f64>,
}

/// Routes in order.
#[derive(Serialize, ToSchema)]
pub struct RouteList {
    routes: Vec<RouteBody>,
}

fn body((route, shadow, canary): (Route, Option<ShadowFacts>, Option<CanaryFacts>)) -> RouteBody {
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
    Json(RouteList { routes: app.house.rollout.routes().into_iter().map(body).collect() })
}

/// How a trial ended.
#[derive(Serialize, ToSchema)]
pub struct TrialBody {
    route: String,
    /// `promoted` or `stopped`.
    #[schema(value_type = String)]
    state: CanaryState,
    /// The revision of the route's policy that is in force since, where the canary was promoted.
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
pub async fn promote(State(app): State<App>, Named(route): Named) -> Outcome<Json<TrialBody>> {
    let name = route.clone();
    let change = spawn_blocking(move || app.house.rollout.promote(&name)).await??;
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
pub async fn stop(State(app): State<App>, Named(route): Named) -> Outcome<Json<TrialBody>> {
    let name = route.clone();
    spawn_blocking(move || app.house.rollout.stop(&name)).await??;
    Ok(Json(TrialBody { route, state: CanaryState::Stopped, revision: None }))
}
