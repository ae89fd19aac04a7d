//! Decisions, as records.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use utoipa::{IntoParams, ToSchema};

use super::{
    bodies::{Asked, Named, check_before, check_names},
    jobs::{no_job, page},
};
use crate::{
    App,
    jobs::store::Filter,
    problem::{Outcome, Problem},
};

/// A job's decision record
#[utoipa::path(
    get, path = "/v1/jobs/{id}/decision", operation_id = "getDecision", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The record, as `tilewright decode --json` prints it", body = Object),
        (status = 404, description = "No such job, or nothing was decided for it yet")
    )
)]
pub async fn of_job(State(app): State<App>, Named(id): Named) -> Outcome<Response> {
    let record = spawn_blocking(move || {
        let known = app.house.store.get(&id)?.is_some();
        Ok::<_, crate::Error>((known, app.house.store.record(&id)?))
    });
    match record.await?? {
        (false, _) => Err(no_job()),
        (true, None) => Err(Problem::not_found("nothing was decided for this job yet")),
        (true, Some(record)) => Ok(([(header::CONTENT_TYPE, "application/json")], record).into_response()),
    }
}

/// Which decisions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Decided {
    /// By this policy.
    #[param(max_length = 64)]
    policy: Option<String>,
    /// On this route.
    #[param(max_length = 64)]
    route: Option<String>,
    /// At most so many.
    #[serde(default = "twenty")]
    #[param(minimum = 1, maximum = 500, default = 20)]
    limit: u32,
    /// Of jobs before this one: `next` of the page before.
    #[param(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    before: Option<String>,
}

fn twenty() -> u32 {
    20
}

/// A decision and its job.
#[derive(Serialize, ToSchema)]
pub struct DecisionBody {
    /// The job's id.
    job: String,
    /// When the job was accepted.
    time: String,
    route: String,
    policy: String,
    revision: u64,
    canary: bool,
    /// The record, as `tilewright decode --json` prints it.
    #[schema(value_type = Object)]
    record: serde_json::Value,
}

/// Decisions, newest first.
#[derive(Serialize, ToSchema)]
pub struct Decisions {
    decisions: Vec<DecisionBody>,
    /// Where the next page begins; null on the last.
    next: Option<String>,
}

/// Decisions, newest first
#[utoipa::path(
    get, path = "/v1/decisions", operation_id = "listDecisions", params(Decided),
    responses(
        (status = 200, body = Decisions),
        (status = 400)
    )
)]
pub async fn list(State(app): State<App>, Asked(decided): Asked<Decided>) -> Outcome<Json<Decisions>> {
    let Decided { policy, route, limit, before } = decided;
    let limit = page(limit)?;
    check_names(&[("policy", &policy), ("route", &route)])?;
    check_before(before.as_deref())?;
    let filter = Filter { policy, route, limit, before, decided: true, ..Filter::default() };
    let decisions = spawn_blocking(move || {
        let found = app.house.store.list(&filter)?.into_iter().filter_map(|(kept, record)| {
            let job = kept.job;
            let record = serde_json::from_str(record.as_deref()?).ok()?;
            let (time, route, policy, revision, canary) =
                (job.created, job.route, job.policy, job.revision, job.canary);
            Some(DecisionBody { job: job.id, time, route, policy, revision, canary, record })
        });
        Ok::<Vec<DecisionBody>, crate::Error>(found.collect())
    });
    let decisions = decisions.await??;
    let next = decisions.last().filter(|_| decisions.len() == limit as usize).map(|decision| decision.job.clone());
    Ok(Json(Decisions { decisions, next }))
}
