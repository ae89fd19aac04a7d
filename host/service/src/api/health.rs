//! Liveness, readiness and metrics.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{app::App, problem::ApiResult};

/// The answer of a server that is alive.
#[derive(Serialize, ToSchema)]
pub struct Alive {
    /// Always `alive`.
    status: &'static str,
    /// The program's version.
    version: &'static str,
}

/// The readiness of the server.
#[derive(Serialize, ToSchema)]
pub struct Ready {
    /// True if it takes work.
    ready: bool,
    /// The reason that it takes no work, or another fault, in a line.
    detail: Option<String>,
}

/// Ask if the server is alive
#[utoipa::path(get, path = "/healthz", operation_id = "isAlive", responses((status = 200, body = Alive)), security(()))]
pub async fn alive() -> Json<Alive> {
    Json(Alive { status: "alive", version: env!("CARGO_PKG_VERSION") })
}

/// Ask if the server takes work
#[utoipa::path(
    get, path = "/readyz", operation_id = "isReady", security(()),
    responses((status = 200, body = Ready), (status = 503, description = "Not now", body = Ready))
)]
pub async fn ready(State(app): State<App>) -> Response {
    let trouble = app.server.disk.trouble();
    let ready = !app.server.is_draining() && trouble.is_none();
    // Any caller may ask this, without a token: details are for the log and the dashboard.
    let fault = app.server.config.fault().is_some();
    let detail = match (ready, fault) {
        (false, _) if app.server.is_draining() => Some("the server is about to end".into()),
        (false, _) if trouble.is_some_and(|trouble| trouble.is_full) => {
            Some("there is no room on the disk: the log says where".into())
        }
        (false, _) => Some("the disk can't be written: the log says why".into()),
        (true, true) => Some("a newer configuration is not in force: the log and the dashboard say why".into()),
        (true, false) => None,
    };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Ready { ready, detail })).into_response()
}

/// Metrics, as Prometheus reads them
#[utoipa::path(
    get, path = "/metrics", operation_id = "getMetrics",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub async fn metrics(State(app): State<App>) -> ApiResult<Response> {
    let text = app.blocking(|app| {
        let policies = app.server.rollout.policies().into_iter();
        let in_force: Vec<(String, u64)> = policies.map(|policy| (policy.name, policy.in_force.number)).collect();
        Ok(app.server.metrics.render(&app.server.devices, app.server.models.weights(), &in_force))
    });
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.await?).into_response())
}
