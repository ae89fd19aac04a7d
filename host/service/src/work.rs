//! A device's thread: one job after the other, each carried to its one end, whatever happens in it.

mod observer;
mod picture_and_clip;
mod quality;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tilewright_history::{History, Query, model_fingerprint};
use tilewright_plan::{Record, Request};
use tilewright_rollout::{Assignment, Decider, Ended};

use self::observer::{Observing, Why};
use crate::{
    clock,
    device::Worker,
    error::one_line,
    house::House,
    jobs::{JobResult, Kept, State, live::Update},
    story::Story,
};

/// The server's crashes in the middle of a job after which the job is taken for their cause.
const MOST_CRASHES: u32 = 3;

/// The most starts of work on a job, however the servers ended in the middle of it: no job goes on for ever.
const MOST_STARTS: u32 = 1000;

/// The time between two checks for room.
const LOOK: Duration = Duration::from_millis(100);

/// The environment variable by which tests name the tag of jobs that crash the server.
#[cfg(debug_assertions)]
const CRASH: &str = "TILEWRIGHT_CRASH_AT";

/// The most trials that a policy is told of in one decision.
const MOST_TRIALS: u32 = 256;

/// How a job came out.
pub(crate) struct Outcome {
    record: Option<Box<Record>>,
    /// All values, where they are to be compared.
    output: Option<tch::Tensor>,
    end: Result<Vec<JobResult>, End>,
}

/// Why there is no result.
pub(crate) enum End {
    Failed(String),
    Cancelled,
    Expired,
    /// There was no room for the result: the job is done again once there is.
    Unwritten(String),
}

/// Works until the queue is closed.
pub fn run(house: &Arc<House>, worker: &Worker) {
    let device = &worker.device;
    let mut history = Trials::open(house, &device.fingerprint);
    while let Some(id) = device.queue.next() {
        let started = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| one(house, worker, &mut history, &id)));
        if done.is_err() {
            // The panic's own words are in the log.
            ended_badly(house, &id, "the server failed in the middle of it: its log says where");
        }
        device.look();
        device.queue.took(started.elapsed());
        house.live.touch();
    }
}

fn ended_badly(house: &House, id: &str, why: &str) {
    let ended = house.persistently("a job's end", || match house.store.get(id)? {
        Some(mut kept) => house.end(&mut kept, State::Failed, Some(why.into()), None),
        None => Ok(false),
    });
    if let Err(error) = ended {
        tracing::error!(
            job = id,
            error = one_line(&error),
            "a job's end can't be written: it begins anew after a restart"
        );
    }
}

fn one(house: &Arc<House>, worker: &Worker, history: &mut Trials, id: &str) {
    let kept = match house.persistently("a job", || house.store.get(id)) {
        Ok(Some(kept)) if !kept.job.state.is_end() => kept,
        Ok(_) => return,
        Err(error) => {
            tracing::error!(job = id, error = one_line(&error), "a job can't be read: it begins anew after a restart");
            return;
        }
    };
    let span = tracing::info_span!(
        "job",
        job = id,
        model = kept.job.model,
        device = kept.job.device,
        route = kept.job.route,
        policy = kept.job.policy,
        revision = kept.job.revision,
        state = tracing::field::Empty
    );
    let _entered = span.enter();
    if let Err(error) = carried(house, worker, history, kept, &span) {
        tracing::error!(error = one_line(&error), "the job's end can't be written: it begins anew after a restart");
    }
}

/// From the queue to the end.
fn carried(
    house: &Arc<House>,
    worker: &Worker,
    history: &mut Trials,
    mut kept: Kept,
    span: &tracing::Span,
) -> crate::Result<()> {
    let id = kept.job.id.clone();
    let finish = |kept: &mut Kept, state: State, error: Option<String>, record: Option<&str>| {
        house.persistently("a job's end", || house.end(kept, state, error.clone(), record)).map(drop)
    };
    let seen = house.live.get(&id).unwrap_or_else(|| house.live.add(&id));
    let now = clock::now_ms();
    if seen.is_cancelled() {
        return finish(&mut kept, State::Cancelled, None, None);
    }
    if now >= kept.deadline_ms {
        let why = "its deadline passed while it waited".to_owned();
        return finish(&mut kept, State::Expired, Some(why), None);
    }
    let given_up = match (kept.crashes, kept.starts) {
        (MOST_CRASHES.., _) => {
            Some(format!("the server crashed {} times in the middle of it: it is not tried again", kept.crashes))
        }
        (_, MOST_STARTS..) => {
            Some(format!("the server ended {MOST_STARTS} times in the middle of it: it is not tried again"))
        }
        _ => None,
    };
    if let Some(why) = given_up {
        return finish(&mut kept, State::Failed, Some(why), None);
    }
    // Jobs that may have crashed the server are never at work beside each other, so that the next crash shows which one
    // it was.
    let _alone = (kept.crashes > 0).then(|| house.suspect.lock().unwrap_or_else(PoisonError::into_inner));
    let assignment = house.assignments().get(&id).cloned();
    let assignment = match assignment.map_or_else(|| house.rollout.revive_assignment(&kept.pinned), Ok) {
        Ok(assignment) => assignment,
        Err(error) => return finish(&mut kept, State::Failed, Some(error.for_callers()), None),
    };
    kept.starts += 1;
    kept.job.state = State::Running;
    kept.job.started = Some(clock::text(now));
    house.persistently("a job's start", || house.store.update(&kept, None, None))?;
    seen.started(now);
    house.metrics.waited(Duration::from_millis(now.saturating_sub(clock::ms_of(&kept.job.created))));
    seen.tell(Update::Job(Box::new(kept.job.clone())));
    house.live.touch();

    #[cfg(debug_assertions)]
    if kept.job.tag.is_some() && kept.job.tag == std::env::var(CRASH).ok() {
        std::process::abort();
    }
    let why = Why::new(seen.clone(), kept.deadline_ms);
    let (Outcome { record, output, end }, story, is_mixed, exchange) = loop {
        let mut decider = Decider::new(house.rollout.clone(), assignment.clone());
        let mut observing = Observing::new(
            house,
            &worker.device,
            &assignment,
            seen.clone(),
            why.clone(),
            decider.successor(),
            decider.current(),
        );
        let mut outcome = picture_and_clip::decoded(house, worker, history, &kept, &mut decider, &mut observing);
        let Observing { candidates, log, .. } = observing;
        if let Err(End::Unwritten(line)) = &outcome.end {
            tracing::error!(error = line, "there is no room for a result: the job is done again once there is");
            house.files.forget_results(&id);
            match waited_for_room(house, &why) {
                Ok(true) => continue,
                // The job begins anew after the next start.
                Ok(false) => return Ok(()),
                Err(end) => outcome.end = Err(end),
            }
        }
        let story = Story { candidates, log, incumbent: None };
        break (outcome, story, decider.is_mixed(), decider.exchange());
    };
    let mut story = story;
    let (state, error, results) = match end {
        Ok(results) => (State::Done, None, results),
        Err(End::Failed(error) | End::Unwritten(error)) => (State::Failed, Some(error), Vec::new()),
        Err(End::Cancelled) => (State::Cancelled, None, Vec::new()),
        Err(End::Expired) => (State::Expired, Some("its deadline passed in the middle of it".into()), Vec::new()),
    };
    span.record("state", state.name());
    if state == State::Done
        && let Some(record) = &record
    {
        if !is_mixed {
            let (policy, revision) = (assignment.revision.policy.as_str(), assignment.revision.number);
            house.metrics.decoded(&assignment.route, policy, revision, assignment.canary, &kept.job.device, record);
        }
        if let Some(outcome) = &record.outcome {
            house.stories.decoded(&assignment.route, outcome.elapsed.as_secs_f64());
        }
        if !is_mixed {
            history.keep(record);
        }
    }
    kept.job.results = results;
    // What the job came to counts before the job is told to have ended: whoever looks then sees both.
    let mut psnr = None;
    if let (Some(compare), State::Done, Some(output)) = (&assignment.compare, state, &output) {
        match quality::compared(house, worker, &kept, &assignment, compare, output, &why) {
            Ok((record, found)) => {
                psnr = Some(found);
                story.incumbent = Some((compare.number, Box::new(record), found));
            }
            Err(error) => tracing::warn!(error, "a canary's sample can't be compared"),
        }
    }
    let text = record.as_ref().and_then(|record| serde_json::to_string(record).ok());
    if let Some(mut record) = record
        && state != State::Cancelled
    {
        record.exchange = exchange;
        // What failed to be written says nothing of the plan.
        let is_lost = record.outcome.is_none();
        house.rollout.ended(&assignment, Ended { record: *record, is_mixed, is_lost, psnr });
    }
    house.stories.keep(&id, story);
    finish(&mut kept, state, error, text.as_deref())
}

/// Waits until there is room for results again; false if the server ends before.
///
/// # Errors
/// The end of the job, if it has to end meanwhile.
fn waited_for_room(house: &House, why: &Why) -> Result<bool, End> {
    while house.disk.trouble().is_some() {
        if house.is_draining() {
            return Ok(false);
        }
        if !why.goes_on() {
            return Err(why.end());
        }
        thread::sleep(LOOK);
    }
    Ok(true)
}

/// What was measured before, for policies. Whatever is wrong with it is said once, and work goes on without.
pub(crate) struct Trials {
    history: Option<History>,
    device: String,
}

impl Trials {
    fn open(house: &House, fingerprint: &str) -> Self {
        let path = house.dumps.with_file_name("history.sqlite");
        let history = History::open(&path)
            .inspect_err(|error| tracing::warn!(error = one_line(error), "working without history"))
            .ok();
        Self { history, device: fingerprint.to_owned() }
    }

    fn before(&mut self, request: &Request) -> Vec<Record> {
        let model = model_fingerprint(&request.model);
        let query = Query { device: &self.device, model: &model, request };
        let trials = self.history.as_mut().map(|history| history.trials(&query, MOST_TRIALS));
        match trials {
            None => Vec::new(),
            Some(Ok(trials)) => trials,
            Some(Err(error)) => {
                tracing::warn!(error = one_line(&error), "going on without history");
                self.history = None;
                Vec::new()
            }
        }
    }

    fn keep(&mut self, record: &Record) {
        let kept = self.history.as_mut().map(|history| history.append(&self.device, record));
        if let Some(Err(error)) = kept {
            // The next trial may find room.
            tracing::warn!(error = one_line(&error), "a trial is not kept in the history");
        }
    }
}

/// The most that a job may hold, in bytes: the least that anybody set.
pub(crate) fn memory_limit(worker: &Worker, kept: &Kept, assignment: &Assignment) -> u64 {
    let limits = [Some(worker.device.memory_limit), assignment.memory_limit, kept.request.memory_limit_bytes];
    limits.into_iter().flatten().min().unwrap_or(worker.device.memory_limit)
}
