//! Jobs while they are at work: their plan, their progress, and their followers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use tilewright_plan::{AnyPlan, Failure, Plan, Request, Space, Time};
use tilewright_service_api::{GridUnit, Job, PlanGrid, SamplingProgress};
use tokio::sync::{broadcast, watch};

/// Updates that a slow follower may lag behind by. It misses the oldest after that.
const MOST_LAG: usize = 256;

/// The steps of a sample.
pub const fn step_grid(steps: u32) -> PlanGrid {
    PlanGrid { rows: 1, columns: 1, total: steps, unit: GridUnit::Step }
}

/// The division of a request's work by a plan.
pub fn plan_grid(request: &Request, plan: &Plan) -> PlanGrid {
    let (rows, columns, unit) = match plan.space {
        Space::Whole => (1, 1, GridUnit::Pass),
        Space::Exact(tile) => (request.height.div_ceil(tile.height.max(1)), 1, GridUnit::Band),
        Space::Blended(tile) => {
            let count = |extent, side| tilewright_engine::Axis::count(extent, side, tile.overlap);
            (count(request.height, tile.height), count(request.width, tile.width), GridUnit::Tile)
        }
    };
    let samples = request.batch.max(1);
    match plan.time {
        // The first latent frame gives one frame, each later one a whole chunk.
        Time::Carried { frames } if request.frames > 1 => {
            let chunks = 1 + (request.frames - 1).div_ceil(frames.max(1));
            PlanGrid { rows, columns, total: samples.saturating_mul(chunks), unit: GridUnit::Chunk }
        }
        _ => PlanGrid { rows, columns, total: samples.saturating_mul(rows).saturating_mul(columns), unit },
    }
}

/// A plan that is about to be carried out.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedAttempt {
    /// The plan, as records have it.
    pub plan: AnyPlan,
    /// The parts that it divides the work into.
    pub grid: PlanGrid,
    /// The policy that decided.
    pub policy: String,
    /// The number of the policy's revision.
    pub revision: u64,
    /// The number of the attempt, from 1 since the work began.
    pub attempt: u32,
}

/// The progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JobProgress {
    /// The number of the attempt; progress never goes back within one.
    pub attempt: u32,
    /// The share of the work that is done, 0 to 1.
    pub share: f64,
    /// Parts.
    pub done: u32,
    /// Parts.
    pub total: u32,
    /// The kind of part.
    pub unit: GridUnit,
}

impl JobProgress {
    fn of(attempt: u32, grid: PlanGrid, share: f64) -> Self {
        Self { attempt, share, done: grid.done(share), total: grid.total, unit: grid.unit }
    }
}

/// The failure of an attempt.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptFailure {
    /// The number of the attempt.
    pub attempt: u32,
    /// The plan that failed.
    pub plan: AnyPlan,
    /// The failure.
    pub failure: Failure,
}

/// An update for followers.
#[derive(Clone, Debug)]
pub enum JobUpdate {
    /// The job has a new state.
    Job(Box<Job>),
    /// A plan is about to be carried out.
    Plan(Box<PlannedAttempt>),
    /// The plan has come further.
    Progress(JobProgress),
    /// A step of a sample is done.
    Step(SamplingProgress),
    /// The plan failed, and another attempt follows.
    Failed(Box<AttemptFailure>),
    /// The job has ended.
    End(Box<Job>),
}

/// The handle of a job that has not ended. It is shared by the worker, which reports, and by
/// followers.
#[derive(Debug)]
pub struct JobHandle {
    sender: broadcast::Sender<JobUpdate>,
    cancelled: AtomicBool,
    activity: Mutex<JobActivity>,
}

/// The activity of a job at one moment.
#[derive(Clone, Debug, Default)]
pub struct JobActivity {
    /// The plan being carried out.
    pub planned: Option<PlannedAttempt>,
    /// The progress of that plan.
    pub progress: Option<JobProgress>,
    /// The time when work began, in milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// The attempt under way or the last one; 0 before the first.
    pub attempt: u32,
    /// The share of the weights that is loaded, 0 to 1, while they load.
    pub loading: Option<f64>,
    /// The steps of a sample.
    pub sampling: Option<SamplingProgress>,
}

impl JobHandle {
    fn lock(&self) -> MutexGuard<'_, JobActivity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The activity now.
    pub fn activity(&self) -> JobActivity {
        self.lock().clone()
    }

    /// The activity now, and a receiver of every later update. The lock is held for both, so that
    /// none falls in between.
    pub fn follow(&self) -> (JobActivity, broadcast::Receiver<JobUpdate>) {
        let activity = self.lock();
        (activity.clone(), self.sender.subscribe())
    }

    /// Notes that work begins.
    pub fn set_started(&self, at_ms: u64) {
        self.lock().started_ms = Some(at_ms);
    }

    /// Notes a plan that is about to be carried out, with the policy and the revision that decided.
    /// It begins another attempt or, if it `goes_on`, continues the one under way.
    pub fn begin_plan(&self, plan: AnyPlan, grid: PlanGrid, (policy, revision): (&str, u64), goes_on: bool) {
        let mut activity = self.lock();
        let attempt = activity.attempt + u32::from(!goes_on);
        let share = activity.progress.filter(|_| goes_on).map(|progress| progress.share);
        let planned = PlannedAttempt { plan, grid, policy: policy.into(), revision, attempt };
        activity.attempt = attempt;
        activity.planned = Some(planned.clone());
        activity.loading = None;
        activity.progress = share.map(|share| JobProgress::of(attempt, grid, share));
        // There may be no follower.
        let _ = self.sender.send(JobUpdate::Plan(Box::new(planned)));
    }

    /// Notes that the attempt under way has failed.
    pub fn report_failure(&self, plan: AnyPlan, failure: Failure) {
        let attempt = self.lock().attempt;
        self.send(JobUpdate::Failed(Box::new(AttemptFailure { attempt, plan, failure })));
    }

    /// Notes the steps of a sample.
    pub fn update_sampling(&self, sampling: SamplingProgress) {
        let mut activity = self.lock();
        activity.sampling = Some(sampling);
        let _ = self.sender.send(JobUpdate::Step(sampling));
    }

    /// Notes the plan's progress. Followers are sent it when another part is done; true if they
    /// were.
    pub fn update_progress(&self, share: f64) -> bool {
        let mut activity = self.lock();
        let Some((attempt, grid)) = activity.planned.as_ref().map(|planned| (planned.attempt, planned.grid)) else {
            return false;
        };
        // The share of a clip is computed again with each chunk and may seem to go back.
        let share = activity.progress.map_or(share, |known| share.max(known.share));
        let progress = JobProgress::of(attempt, grid, share);
        let further = activity.progress.is_none_or(|known| known.done != progress.done || share - known.share >= 0.02);
        if further {
            activity.progress = Some(progress);
            let _ = self.sender.send(JobUpdate::Progress(progress));
        }
        further
    }

    /// Notes the share of the weights that is loaded; true if it is another hundredth.
    pub fn update_loading(&self, share: f64) -> bool {
        let mut activity = self.lock();
        let further = activity.loading.is_none_or(|known| share - known >= 0.01);
        if further {
            activity.loading = Some(share);
        }
        further
    }

    /// Notes that the weights are there.
    pub fn end_loading(&self) {
        self.lock().loading = None;
    }

    /// Sends an update to followers.
    pub fn send(&self, update: JobUpdate) {
        let _ = self.sender.send(update);
    }

    /// Asks for the job's end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// True if a caller has asked for the job's end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// The handles of all jobs that have not ended.
#[derive(Debug)]
pub struct LiveJobs {
    jobs: Mutex<HashMap<String, Arc<JobHandle>>>,
    /// A count of changes to anything that pages show.
    pulse: watch::Sender<u64>,
}

impl Default for LiveJobs {
    fn default() -> Self {
        Self { jobs: Mutex::default(), pulse: watch::Sender::new(0) }
    }
}

impl LiveJobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<JobHandle>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job that is accepted.
    pub fn add(&self, id: &str) -> Arc<JobHandle> {
        let handle = Arc::new(JobHandle {
            sender: broadcast::Sender::new(MOST_LAG),
            cancelled: AtomicBool::new(false),
            activity: Mutex::default(),
        });
        self.lock().insert(id.to_owned(), handle.clone());
        self.notify_change();
        handle
    }

    /// The handle of a job.
    pub fn get(&self, id: &str) -> Option<Arc<JobHandle>> {
        self.lock().get(id).cloned()
    }

    /// Removes a job that was not accepted after all.
    pub fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    /// Removes a job that has ended, and sends its followers the end.
    pub fn end(&self, job: &Job) {
        if let Some(handle) = self.lock().remove(&job.id) {
            handle.send(JobUpdate::End(Box::new(job.clone())));
        }
        self.notify_change();
    }

    /// Notes a change to something that pages show.
    pub fn notify_change(&self) {
        self.pulse.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A receiver of changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::Release;

    use super::*;

    #[test]
    fn progress_goes_back_with_another_attempt_alone() {
        let plan = Plan { time: Time::Carried { frames: 1 }, release: Release::EachStep, ..Plan::plain() };
        let handle = LiveJobs::default().add("job");
        let begin_attempt = |total, goes_on| {
            handle.begin_plan(
                plan.clone().into(),
                PlanGrid { rows: 1, columns: 1, total, unit: GridUnit::Chunk },
                ("own", 1),
                goes_on,
            );
        };
        let at = || handle.activity().progress.map(|progress| (progress.attempt, progress.done, progress.total));
        assert!(!handle.update_progress(0.5), "nothing is under way");
        begin_attempt(4, false);
        assert_eq!((at(), handle.activity().attempt), (None, 1));
        handle.update_progress(0.5);
        handle.update_progress(0.25);
        assert_eq!(at(), Some((1, 2, 4)));
        // Another revision takes over in the middle of a clip.
        begin_attempt(8, true);
        assert_eq!(at(), Some((1, 4, 8)));
        handle.update_progress(0.3);
        assert_eq!(at(), Some((1, 4, 8)));
        begin_attempt(4, false);
        assert_eq!((at(), handle.activity().attempt), (None, 2));
        handle.update_progress(0.25);
        assert_eq!(at(), Some((2, 1, 4)));
        assert!(handle.update_loading(0.0) && handle.update_loading(0.5) && !handle.update_loading(0.505));
        assert_eq!(handle.activity().loading, Some(0.5));
        begin_attempt(4, false);
        assert_eq!(handle.activity().loading, None, "another attempt may have other weights");
    }
}
