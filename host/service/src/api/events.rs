//! What happened to policies.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::bodies::Asked;
use crate::{
    App,
    problem::{Outcome, Problem},
};

/// How many.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// At most so many.
    #[serde(default = "hundred")]
    #[param(minimum = 1, maximum = 500, default = 100)]
    limit: u32,
}

fn hundred() -> u32 {
    100
}

/// Something that happened.
#[derive(Serialize, ToSchema)]
pub struct EventBody {
    /// RFC 3339 in UTC.
    time: String,
    /// What: swapped, rolled-back, watchdog-rolled-back, paused, resumed, refused, promoted, canary-stopped, reloaded, reload-refused.
    what: String,
    /// The policy that it happened to.
    policy: Option<String>,
    /// The route.
    route: Option<String>,
    /// The revision that is in force since.
    revision: Option<u64>,
    /// A line for people.
    detail: String,
}

/// Events, newest first.
#[derive(Serialize, ToSchema)]
pub struct Events {
    events: Vec<EventBody>,
}

/// What happened to policies, newest first
#[utoipa::path(
    get, path = "/v1/events", operation_id = "listEvents", params(Page),
    responses(
        (status = 200, body = Events),
        (status = 400)
    )
)]
pub async fn list(State(app): State<App>, Asked(page): Asked<Page>) -> Outcome<Json<Events>> {
    if !(1..=500).contains(&page.limit) {
        return Err(Problem::new(axum::http::StatusCode::BAD_REQUEST, "limit: expected 1 to 500"));
    }
    let events = app.house.rollout.events().into_iter().take(page.limit as usize).map(|event| EventBody {
        time: event.time,
        what: serde_json::to_value(event.what)
            .ok()
            .and_then(|what| what.as_str().map(str::to_owned))
            .unwrap_or_default(),
        policy: event.policy,
        route: event.route,
        revision: event.revision,
        detail: event.detail,
    });
    Ok(Json(Events { events: events.collect() }))
}
