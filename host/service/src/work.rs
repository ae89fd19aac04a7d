//! The loop of a device's thread: one job after the other, each brought to its one end, even if the
//! code for it panics.

mod decode;
mod encode;
mod executed;
mod generate;
mod held;
mod observer;
mod profiling;
mod results;
mod sample;
mod stages;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tilewright_engine::Machine;
use tilewright_pipeline::{HistoryFault, Trials};
use tilewright_plan::{Denoise, Exchange, Record, Vae, VariantOf};
use tilewright_profile::ProfileSummary;
use tilewright_rollout::{Assignment, Decider};
use tilewright_service_api::{JobStage, JobState};

use self::{
    executed::{Executed, Execution, JobOutcome, Turn},
    observer::{JobObserver, StopSignal},
};
pub use self::{observer::Followed, stages::split_stages};
use crate::{
    clock,
    device::DeviceState,
    disk_check::LEAST_FREE,
    error::one_line,
    job_traces::JobTrace,
    jobs::{StoredJob, deadline, live::JobUpdate},
    state::ServerState,
};

/// If the server crashes this many times while a job is at work, the job is taken for the cause and
/// fails.
const MOST_CRASHES: u32 = 3;

/// The most times that work on a job begins, for whatever reason the server ended, so that no job
/// is retried for ever.
const MOST_STARTS: u32 = 1000;

/// The time between two checks for room.
const ROOM_CHECK: Duration = Duration::from_millis(100);

/// The pauses before work is carried out again for which there was no room.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The environment variable by which tests name the tag of jobs that crash the server.
#[cfg(debug_assertions)]
const CRASH: &str = "TILEWRIGHT_CRASH_AT";

/// The environment variable by which tests name the tag of jobs that are at work until somebody
/// ends them: how long real work takes is nothing to rely on.
#[cfg(debug_assertions)]
const HOLD: &str = "TILEWRIGHT_HOLD_AT";

/// The reason that there is no result.
pub(crate) enum JobEnd {
    Failed(String),
    /// The device is lost: the job begins again after the next start.
    LostDevice(String),
    Cancelled,
    Expired,
    /// The disk was full: the job is done again when there is room.
    Unwritten(String),
}

impl JobEnd {
    /// The state of a job that ended so during some work, and the reason.
    fn state(self, during: &str) -> (JobState, Option<String>) {
        match self {
            JobEnd::Failed(error) | JobEnd::Unwritten(error) | JobEnd::LostDevice(error) => {
                (JobState::Failed, Some(error))
            }
            JobEnd::Cancelled => (JobState::Cancelled, None),
            JobEnd::Expired => (JobState::Expired, Some(format!("its deadline passed during the {during}"))),
        }
    }
}

/// Works until the queue is closed.
pub fn run_worker(server: &Arc<ServerState>, device: &DeviceState) {
    let mut history = open_history(server, &device.machine);
    // Each later job on a lost device would fail in the same way.
    while let Some(id) = device.queue.next().filter(|_| server.lost.reason().is_none()) {
        let started = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| load_and_run(server, device, &mut history, &id)));
        if done.is_err() {
            // The panic's message is in the log.
            fail_job(server, &id, "the server failed during this job: see the server's log");
        }
        device.refresh_memory();
        device.queue.record_duration(started.elapsed());
        server.jobs.live.notify_change();
    }
}

fn fail_job(server: &ServerState, id: &str, why: &str) {
    let ended = server.retry_until_written("a job's end", || match server.jobs.store.get(id)? {
        Some(mut stored) => server.jobs.end(&mut stored, JobState::Failed, Some(why.into()), None),
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

fn load_and_run(server: &Arc<ServerState>, device: &DeviceState, history: &mut Trials, id: &str) {
    let stored = match server.retry_until_written("a job", || server.jobs.store.get(id)) {
        Ok(Some(stored)) if !stored.job.state.is_end() => stored,
        Ok(_) => return,
        Err(error) => {
            tracing::error!(job = id, error = one_line(&error), "a job can't be read: it begins anew after a restart");
            return;
        }
    };
    let span = tracing::info_span!(
        "job",
        job = id,
        model = stored.job.model,
        device = stored.job.device,
        route = stored.job.route,
        policy = stored.job.policy,
        revision = stored.job.revision,
        state = tracing::field::Empty
    );
    let _entered = span.enter();
    if let Err(error) = run_job(server, device, history, stored, &span) {
        tracing::error!(error = one_line(&error), "the job's end can't be written: it begins anew after a restart");
    }
}

/// Runs a job from the queue to its end.
fn run_job(
    server: &Arc<ServerState>,
    device: &DeviceState,
    history: &mut Trials,
    mut stored: StoredJob,
    span: &tracing::Span,
) -> crate::Result<()> {
    let id = stored.job.id.clone();
    let finish = |stored: &mut StoredJob, state: JobState, error: Option<String>, record: Option<&str>| {
        server.retry_until_written("a job's end", || server.jobs.end(stored, state, error.clone(), record)).map(drop)
    };
    let handle = server.jobs.live.get(&id).unwrap_or_else(|| server.jobs.live.add(&id));
    let now = clock::steady_ms();
    if handle.is_cancelled() {
        return finish(&mut stored, JobState::Cancelled, None, None);
    }
    if now >= stored.deadline_ms {
        return server.retry_until_written("a job's end", || server.jobs.end_overdue(&mut stored)).map(drop);
    }
    if let Some(why) = deadline::too_late(&stored, now) {
        return finish(&mut stored, JobState::Expired, Some(why), None);
    }
    let given_up = match (stored.crashes, stored.starts) {
        (MOST_CRASHES.., _) => {
            Some(format!("the server crashed {} times during this job, so it is not tried again", stored.crashes))
        }
        (_, MOST_STARTS..) => {
            Some(format!("the server ended {MOST_STARTS} times during this job, so it is not tried again"))
        }
        _ => None,
    };
    if let Some(why) = given_up {
        return finish(&mut stored, JobState::Failed, Some(why), None);
    }
    // Suspects are never at work beside each other, so that the next crash shows which one it was.
    let _alone = (stored.crashes > 0).then(|| server.jobs.isolate_suspect());
    let assignment = server.jobs.assignment(&id);
    let assignment = match assignment.map_or_else(|| server.rollout.revive_assignment(&stored.pinned), Ok) {
        Ok(assignment) => assignment,
        Err(error) => return finish(&mut stored, JobState::Failed, Some(error.for_callers()), None),
    };
    stored.starts += 1;
    stored.job.state = JobState::Running;
    stored.job.started = Some(stored.time_of(now));
    server.retry_until_written("a job's start", || server.jobs.store.update(&stored, None, None))?;
    handle.set_started(now);
    let waited = clock::accepted_ms(&id).map_or(0, |accepted| now.saturating_sub(accepted));
    server.metrics.record_wait(Duration::from_millis(waited));
    handle.send(JobUpdate::Job(Box::new(stored.job.clone())));
    server.jobs.live.notify_change();

    #[cfg(debug_assertions)]
    if stored.job.tag.is_some() && stored.job.tag == std::env::var(CRASH).ok() {
        std::process::abort();
    }
    #[cfg(debug_assertions)]
    if stored.job.tag.is_some() && stored.job.tag == std::env::var(HOLD).ok() {
        let stop = StopSignal::new(handle.clone(), &stored);
        while stop.goes_on() && !device.queue.is_closed() {
            thread::sleep(ROOM_CHECK / 10);
        }
    }
    let model = match server.models.of_job(&stored) {
        Ok(model) => model,
        Err(error) => return finish(&mut stored, JobState::Failed, Some(error), None),
    };
    let work = match stored.job.stage {
        JobStage::Decode => carry_out::<Vae>,
        JobStage::Encode => carry_out::<encode::EncodeWork>,
        JobStage::Denoise => carry_out::<Denoise>,
        JobStage::Generate => generate::carry_out,
    };
    let turn = Turn { server, device, model: &model, handle: &handle };
    let Some(JobEnded { state, error, record }) = work(turn, history, &mut stored, &assignment) else {
        return Ok(());
    };
    if stored.request.profile {
        turn.finish_profile(&id);
    }
    span.record("state", state.name());
    let error = error.map(|line| model.without_folders(&line));
    finish(&mut stored, state, error, record.as_deref())
}

/// The end of a job, or of a stage of one, to be written.
struct JobEnded {
    state: JobState,
    error: Option<String>,
    /// The record, as JSON.
    record: Option<String>,
}

impl JobEnded {
    /// The end of a job that could not begin.
    fn failed(line: String) -> Self {
        Self { state: JobState::Failed, error: Some(line), record: None }
    }
}

/// The things that are left of work that has ended, well or not.
struct Ended<W: Executed> {
    record: Option<Box<Record<W::Work>>>,
    output: Option<W::Output>,
    trace: JobTrace<W::Work>,
    /// True if several revisions decided.
    is_mixed: bool,
    exchange: Option<Exchange<W::Work>>,
    profile: Option<ProfileSummary>,
}

impl<W: Executed> Default for Ended<W> {
    fn default() -> Self {
        Self { record: None, output: None, trace: JobTrace::default(), is_mixed: false, exchange: None, profile: None }
    }
}

/// Carries a job out, or a stage of one; none if it begins again after the next start.
fn carry_out<W: Executed>(
    turn: Turn<'_>,
    history: &mut Trials,
    stored: &mut StoredJob,
    assignment: &Assignment,
) -> Option<JobEnded> {
    let input = match W::read(turn, stored) {
        Ok(input) => input,
        Err(error) => return Some(JobEnded::failed(error)),
    };
    let stop = StopSignal::new(turn.handle.clone(), stored);
    let (Ended { record, output, mut trace, is_mixed, exchange, profile }, end) =
        turn.insist(stored, &stop, W::NO_ROOM, |stored| {
            let mut decider = Decider::<W::Work>::new(turn.server.rollout.clone(), assignment.clone());
            let execution = Execution { turn, stored, assignment, stop: &stop };
            let mut observer = JobObserver::new(execution, &decider);
            let outcome = W::execute(execution, history, &input, &mut decider, &mut observer);
            let JobOutcome { record, output, end } = outcome.unwrap_or_else(|outcome| outcome);
            let profile = observer.profiles.and_then(|profiles| profiles.into_summaries().pop()).flatten();
            let (is_mixed, exchange) = (decider.is_mixed(), decider.exchange());
            (Ended::<W> { record, output, trace: observer.trace, is_mixed, exchange, profile }, end)
        })?;
    let (state, error, results) = match end {
        Ok(results) => (JobState::Done, None, results),
        Err(end) => {
            let (state, error) = end.state(W::NAME);
            (state, error, Vec::new())
        }
    };
    stored.job.results = results;
    let execution = Execution { turn, stored, assignment, stop: &stop };
    if state == JobState::Done
        && let Some(record) = &record
    {
        execution.count(history, record, is_mixed, profile.as_ref());
    }
    // The rollout learns the outcome before the job ends: a caller who sees the end then sees both.
    let mut psnr = None;
    if let (Some(compare), JobState::Done, Some(output)) = (&assignment.compare, state, &output) {
        match W::compare(execution, &input, compare, output) {
            Ok((record, found)) => {
                psnr = Some(found);
                trace.incumbent = Some((compare.number, Box::new(record), found));
            }
            Err(error) => tracing::warn!(error, "a canary's sample can't be compared"),
        }
    }
    let text = record.as_ref().and_then(|record| serde_json::to_string(record).ok());
    if let Some(record) = record
        && state != JobState::Cancelled
    {
        execution.learn(*record, exchange, is_mixed, psnr);
    }
    turn.server.traces.insert(&stored.job.id, W::Work::any(Box::new(trace)));
    Some(JobEnded { state, error, record: text })
}

impl Turn<'_> {
    /// Carries work out again each time that there was no room for what it makes; none if the job
    /// begins again after the next start. Work that is to be profiled waits for its turn.
    fn insist<T: Default, R>(
        self,
        stored: &mut StoredJob,
        stop: &StopSignal,
        no_room: &str,
        mut work: impl FnMut(&StoredJob) -> (T, Result<R, JobEnd>),
    ) -> Option<(T, Result<R, JobEnd>)> {
        let _profiler = match self.profiler(stored, stop) {
            Ok(Some(held)) => held,
            // The job begins anew after the next start.
            Ok(None) => return None,
            Err(end) => return Some((T::default(), Err(end))),
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let (made, end) = work(stored);
            match end {
                Err(JobEnd::LostDevice(reason)) => {
                    self.give_back(stored, &reason);
                    return None;
                }
                Err(JobEnd::Unwritten(line)) => {
                    tracing::error!(error = line, "{no_room}");
                    self.server.jobs.files.forget_results(&stored.job.id);
                    match wait_for_room(self.server, stop, pause) {
                        Ok(true) => pause = LONGEST_PAUSE.min(2 * pause),
                        // The job begins anew after the next start.
                        Ok(false) => return None,
                        Err(end) => return Some((made, Err(end))),
                    }
                }
                end => return Some((made, end)),
            }
        }
    }

    /// Leaves a job on a lost device to the next start, where it is a suspect.
    fn give_back(self, stored: &mut StoredJob, reason: &str) {
        let Turn { server, device, .. } = self;
        server.lost.report(&device.name, reason);
        server.jobs.files.forget_results(&stored.job.id);
        stored.crashes += 1;
        let kept = server.retry_until_written("a job's end", || server.jobs.store.update(stored, None, None));
        if let Err(error) = kept {
            tracing::error!(error = one_line(&error), "a job on a lost device can't be written");
        }
    }
}

/// Waits until there is room for results again; false if the server ends before. Small writes may
/// go on where a result has no room: it is tried again when more is free than now, or after a
/// pause, since the system does not say what a quota leaves.
///
/// # Errors
/// The end of the job, if it has to end meanwhile.
fn wait_for_room(server: &ServerState, stop: &StopSignal, pause: Duration) -> Result<bool, JobEnd> {
    let (begun, before) = (Instant::now(), server.free_bytes());
    let is_more = || server.free_bytes().zip(before).is_some_and(|(now, before)| now >= before + LEAST_FREE);
    while server.disk.trouble().is_some() || (begun.elapsed() < pause && !is_more()) {
        if server.is_draining() {
            return Ok(false);
        }
        if !stop.goes_on() {
            return Err(stop.end());
        }
        thread::sleep(ROOM_CHECK);
    }
    Ok(true)
}

/// The history of a device. A fault of the database is logged once, and work goes on without it.
fn open_history(server: &ServerState, machine: &Machine) -> Trials {
    Trials::open(&server.jobs.files.history(), &machine.fingerprint, true, |fault| match fault {
        HistoryFault::Unusable(error) => tracing::warn!(error = one_line(&error), "going on without history"),
        HistoryFault::NotAdded(error) => {
            tracing::warn!(error = one_line(&error), "a trial is not kept in the history");
        }
        HistoryFault::Quarantined(path) => {
            tracing::warn!(path = %path.display(), "the history was damaged and moved there; a new one has begun");
        }
    })
}
