//! Changes of policies.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use tilewright_rollout::Event;
use tilewright_service_api::EventBody;
use utoipa::{IntoParams, ToSchema};

use super::extract::{QueryParams, check_limit};
use crate::{app::App, problem::ApiResult};

/// The number of events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// The most events to list.
    #[serde(default = "hundred")]
    #[param(minimum = 1, maximum = 500, default = 100)]
    limit: u32,
}

fn hundred() -> u32 {
    100
}

/// An event as the API gives it.
pub fn event_body(event: Event) -> EventBody {
    let Event { time, what, policy, route, revision, detail } = event;
    let what = serde_json::to_value(what).ok().and_then(|what| what.as_str().map(str::to_owned)).unwrap_or_default();
    EventBody { time, what, policy, route, revision, detail }
}

/// Events, newest first.
#[derive(Serialize, ToSchema)]
pub struct Events {
    events: Vec<EventBody>,
}

/// Policy events, newest first
#[utoipa::path(
    get, path = "/v1/events", operation_id = "listEvents", params(Page),
    responses(
        (status = 200, body = Events),
        (status = 400)
    )
)]
pub async fn list(State(app): State<App>, QueryParams(page): QueryParams<Page>) -> ApiResult<Json<Events>> {
    let limit = check_limit(page.limit)?;
    let events = app.server.rollout.events().into_iter().take(limit as usize).map(event_body);
    Ok(Json(Events { events: events.collect() }))
}
