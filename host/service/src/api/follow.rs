//! A job as it goes on, as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;

use super::{extract::PathName, jobs::view_job};
use crate::{
    app::App,
    jobs::live::{JobActivity, JobUpdate},
    problem::ApiResult,
};

/// Keeps proxies in between from taking the connection for dead.
const ALIVE: Duration = Duration::from_secs(15);

fn event(name: &str, data: &impl Serialize) -> Event {
    // Plain data: JSON can hold all of it.
    Event::default().event(name).json_data(data).unwrap_or_default()
}

fn to_event(update: &JobUpdate) -> Event {
    match update {
        JobUpdate::Job(job) => event("job", job),
        JobUpdate::Plan(planned) => event("plan", planned),
        JobUpdate::Progress(progress) => event("progress", progress),
        JobUpdate::Step(sampling) => event("step", sampling),
        JobUpdate::Failed(failed) => event("failed", failed),
        JobUpdate::End(job) => event("end", job),
    }
}

/// An event as it is sent.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes what the stream is made of")]
pub struct FollowEvent {
    /// `job`, `plan`, `progress`, `step`, `failed` or `end`.
    #[schema(pattern = "^(job|plan|progress|step|failed|end)$")]
    event: String,
    /// JSON, by the event.
    data: String,
}

/// Follow a job
///
/// Server-sent events: `job` (the job), `plan` (what is carried out, and how it divides the work),
/// `progress` (tiles, bands, chunks, passes or steps done), `step` (of a sample: steps done, the
/// time of one and the time left), `failed` (an attempt; another follows), `end` (the job; the
/// last).
/// `plan`, `progress` and `failed` have the number of the `attempt`, from 1: progress begins again
/// with each and goes back within none. A stream without `end` was ended by the server's own end,
/// and the job goes on after its next start; or by the end of the caller's token.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", operation_id = "followJob", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The events", body = FollowEvent, content_type = "text/event-stream"),
        (status = 404)
    )
)]
pub async fn events(
    State(app): State<App>,
    PathName(id): PathName,
    headers: HeaderMap,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    // Subscribed before the job is read: no update is missed in between.
    let follow = |id: &str| app.server.jobs.live.get(id).map(|handle| handle.follow());
    let followed = follow(&id);
    let job = view_job(&app, id.clone()).await?;
    // The job may have been accepted between the two reads.
    let followed = followed.or_else(|| follow(&id));
    let follower = app.server.metrics.track_follower();
    let (first, updates) = match followed {
        Some((now, updates)) if !job.state.is_end() => {
            let JobActivity { planned, progress, sampling, .. } = now;
            let mut first = vec![event("job", &job)];
            first.extend(planned.map(|planned| event("plan", &planned)));
            first.extend(progress.map(|progress| event("progress", &progress)));
            first.extend(sampling.map(|sampling| event("step", &sampling)));
            (first, Some(updates))
        }
        _ if job.state.is_end() => (vec![event("end", &job)], None),
        _ => (vec![event("job", &job)], None),
    };
    // The caller, who may lose its token meanwhile.
    let changes = app.server.jobs.live.subscribe();
    let rest = stream::unfold((app, updates, (headers, changes, follower)), |(app, updates, caller)| async move {
        let (mut updates, mut caller) = (updates?, caller);
        loop {
            let update = tokio::select! {
                update = updates.recv() => Some(update),
                changed = caller.1.changed() => changed.ok().map(|()| None)?,
                // The job goes on after the next start, and the follower has to connect again.
                () = app.wait_for_end() => return None,
            };
            app.auth.callers.identify(&caller.0)?;
            match update {
                None => {}
                Some(Ok(update)) => {
                    let ends = matches!(update, JobUpdate::End(_));
                    return Some((to_event(&update), (app, (!ends).then_some(updates), caller)));
                }
                // A follower that lags is sent the newest updates.
                Some(Err(RecvError::Lagged(_))) => {}
                Some(Err(RecvError::Closed)) => return None,
            }
        }
    });
    let events = stream::iter(first).chain(rest).map(Ok);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)))
}
