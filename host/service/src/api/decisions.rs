//! Decisions, as records.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{PathName, QueryParams, check_before, check_limit, check_names},
    jobs::job_not_found,
};
use crate::{
    app::App,
    jobs::store::JobFilter,
    problem::{ApiResult, Problem},
};

/// A job's decision record
#[utoipa::path(
    get, path = "/v1/jobs/{id}/decision", operation_id = "getDecision", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The record, as `tilewright decode --json` or `sample --json` prints it", body = Object),
        (status = 404, description = "No such job, or nothing was decided for it yet")
    )
)]
pub async fn of_job(State(app): State<App>, PathName(id): PathName) -> ApiResult<Response> {
    app.blocking(move |app| {
        app.server.jobs.store.get(&id)?.ok_or_else(job_not_found)?;
        let record = app.server.jobs.store.record(&id)?;
        let record = record.ok_or_else(|| Problem::not_found("nothing was decided for this job yet"))?;
        Ok(([(header::CONTENT_TYPE, "application/json")], record).into_response())
    })
    .await
}

/// The decisions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DecisionQuery {
    /// Decisions by this policy.
    #[param(max_length = 64)]
    policy: Option<String>,
    /// Decisions on this route.
    #[param(max_length = 64)]
    route: Option<String>,
    /// The most decisions to list.
    #[serde(default = "twenty")]
    #[param(minimum = 1, maximum = 500, default = 20)]
    limit: u32,
    /// Decisions of jobs before this one: `next` of the page before.
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
    /// The time when the job was accepted.
    time: String,
    route: String,
    policy: String,
    revision: u64,
    canary: bool,
    /// The record, as `tilewright decode --json` or `sample --json` prints it.
    #[schema(value_type = Object)]
    record: serde_json::Value,
}

/// Decisions, newest first.
#[derive(Serialize, ToSchema)]
pub struct Decisions {
    decisions: Vec<DecisionBody>,
    /// The `before` of the next page; null on the last.
    next: Option<String>,
}

/// Decisions, newest first
#[utoipa::path(
    get, path = "/v1/decisions", operation_id = "listDecisions", params(DecisionQuery),
    responses(
        (status = 200, body = Decisions),
        (status = 400)
    )
)]
pub async fn list(
    State(app): State<App>,
    QueryParams(query): QueryParams<DecisionQuery>,
) -> ApiResult<Json<Decisions>> {
    let DecisionQuery { policy, route, limit, before } = query;
    let limit = check_limit(limit)?;
    check_names(&[("policy", &policy), ("route", &route)])?;
    check_before(before.as_deref())?;
    let filter = JobFilter { policy, route, limit, before, with_record: true, ..JobFilter::default() };
    let decisions = app.blocking(move |app| {
        let found = app.server.jobs.store.list(&filter)?.into_iter().filter_map(|(stored, record)| {
            let job = stored.job;
            let record = serde_json::from_str(record.as_deref()?).ok()?;
            let (time, route, policy, revision, canary) =
                (job.created, job.route, job.policy, job.revision, job.canary);
            Some(DecisionBody { job: job.id, time, route, policy, revision, canary, record })
        });
        Ok(found.collect::<Vec<_>>())
    });
    let decisions = decisions.await?;
    let next = decisions.last().filter(|_| decisions.len() == limit as usize).map(|decision| decision.job.clone());
    Ok(Json(Decisions { decisions, next }))
}
