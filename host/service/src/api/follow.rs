//! A job as it goes on, as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    response::{
        Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::{sync::broadcast::error::RecvError, task::spawn_blocking};
use utoipa::ToSchema;

use super::{bodies::Named, jobs::no_job};
use crate::{
    App,
    jobs::live::{Now, Update},
    problem::Outcome,
};

/// So that whoever is between does not take the connection for dead.
const ALIVE: Duration = Duration::from_secs(15);

fn event(name: &str, data: &impl Serialize) -> Event {
    // Plain data: there is nothing that JSON can't hold.
    Event::default().event(name).json_data(data).unwrap_or_default()
}

fn told(update: &Update) -> Event {
    match update {
        Update::Job(job) => event("job", job),
        Update::Plan(planned) => event("plan", planned),
        Update::Progress(progress) => event("progress", progress),
        Update::Failed(failed) => event("failed", failed),
        Update::End(job) => event("end", job),
    }
}

/// An event as it is sent.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes what the stream is made of")]
pub struct FollowEvent {
    /// `job`, `plan`, `progress`, `failed` or `end`.
    #[schema(pattern = "^(job|plan|progress|failed|end)$")]
    event: String,
    /// JSON, by the event.
    data: String,
}

/// Follow a job
///
/// Server-sent events: `job` (the job), `plan` (what is carried out, and how it divides the work),
/// `progress` (tiles, bands, chunks or passes done), `failed` (an attempt; another follows), `end`
/// (the job; the last). `plan`, `progress` and `failed` have the number of the `attempt`, from 1:
/// progress begins anew with each and goes back within none. A stream without `end` was ended by
/// the server's own end: the job goes on after its next start.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", operation_id = "followJob", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The events", body = FollowEvent, content_type = "text/event-stream"),
        (status = 404)
    )
)]
pub async fn events(
    State(app): State<App>,
    Named(id): Named,
) -> Outcome<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let house = app.house.clone();
    // Followed first and looked at afterwards: nothing is missed in between.
    let follow = |id: &str| app.house.live.get(id).map(|seen| seen.follow());
    let followed = follow(&id);
    let wanted = id.clone();
    let job = spawn_blocking(move || Ok::<_, crate::Error>(house.store.get(&wanted)?.map(|kept| house.told(kept))));
    let job = job.await??.ok_or_else(no_job)?;
    // It may have been accepted between the two looks.
    let followed = followed.or_else(|| follow(&id));
    let follower = app.house.metrics.follower();
    let (first, updates) = match followed {
        Some((now, updates)) if !job.state.is_end() => {
            let Now { planned, progress, .. } = now;
            let mut first = vec![event("job", &job)];
            first.extend(planned.map(|planned| event("plan", &planned)));
            first.extend(progress.map(|progress| event("progress", &progress)));
            (first, Some(updates))
        }
        _ if job.state.is_end() => (vec![event("end", &job)], None),
        _ => (vec![event("job", &job)], None),
    };
    let rest = stream::unfold((app, updates, follower), |(app, updates, follower)| async move {
        let mut updates = updates?;
        loop {
            let update = tokio::select! {
                update = updates.recv() => update,
                // The job goes on after the next start: whoever follows it comes again.
                () = app.ended() => return None,
            };
            match update {
                Ok(update) => {
                    let ends = matches!(update, Update::End(_));
                    return Some((told(&update), (app, (!ends).then_some(updates), follower)));
                }
                // Whoever lags is told what is newest.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let events = stream::iter(first).chain(rest).map(Ok);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)))
}
