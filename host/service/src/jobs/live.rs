//! What is seen of jobs while they are at work: their plan, how far they are, and who follows them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use tilewright_plan::{Decision, Failure, Plan, Request, Space, Time};
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use super::Job;

/// Updates that a slow follower may lag behind by; it is told the newest after that.
const BEHIND: usize = 256;

/// How a plan divides the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct GridFacts {
    /// Of tiles, or bands.
    pub rows: u32,
    /// Of tiles.
    pub columns: u32,
    /// Parts that are done one after the other: tiles, bands, chunks or passes, all samples together.
    pub total: u32,
    /// What a part is.
    pub unit: Unit,
}

/// What work is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Tiles that fade into each other.
    Tile,
    /// Exact bands.
    Band,
    /// Chunks of a clip's frames.
    Chunk,
    /// A sample in one piece.
    Pass,
}

impl GridFacts {
    /// What a plan makes of a request.
    pub fn of(request: &Request, plan: &Plan) -> Self {
        let (rows, columns, unit) = match plan.space {
            Space::Whole => (1, 1, Unit::Pass),
            Space::Exact(tile) => (request.height.div_ceil(tile.height.max(1)), 1, Unit::Band),
            Space::Blended(tile) => {
                let along = |extent, tile| tilewright_engine::Axis::count(extent, tile, plan_overlap(plan));
                (along(request.height, tile.height), along(request.width, tile.width), Unit::Tile)
            }
        };
        let samples = request.batch.max(1);
        match plan.time {
            // The first latent frame gives one frame, each other one a whole chunk.
            Time::Carried { frames } if request.frames > 1 => {
                let chunks = 1 + (request.frames - 1).div_ceil(frames.max(1));
                Self { rows, columns, total: samples.saturating_mul(chunks), unit: Unit::Chunk }
            }
            _ => Self { rows, columns, total: samples.saturating_mul(rows).saturating_mul(columns), unit },
        }
    }

    /// Parts that are done at a share of the work.
    pub fn done(&self, share: f64) -> u32 {
        (share.clamp(0.0, 1.0) * f64::from(self.total) + 1e-6) as u32
    }
}

fn plan_overlap(plan: &Plan) -> u32 {
    plan.space.tile().map_or(0, |tile| tile.overlap)
}

/// A plan that is about to be carried out.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    /// As records have it.
    pub plan: Plan,
    /// How it divides the work.
    pub grid: GridFacts,
    /// Who decided.
    pub policy: String,
    /// Its revision.
    pub revision: u64,
    /// Counted from 1 since the work began.
    pub attempt: u32,
}

/// How far a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Progress {
    /// The attempt that it is of; within one it never goes back.
    pub attempt: u32,
    /// 0 to 1.
    pub share: f64,
    /// Parts.
    pub done: u32,
    /// Parts.
    pub total: u32,
    /// What a part is.
    pub unit: Unit,
}

impl Progress {
    fn of(attempt: u32, grid: GridFacts, share: f64) -> Self {
        Self { attempt, share, done: grid.done(share), total: grid.total, unit: grid.unit }
    }
}

/// A plan that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// Which attempt it was.
    pub attempt: u32,
    /// The plan.
    pub plan: Plan,
    /// Why.
    pub failure: Failure,
}

/// What followers hear.
#[derive(Clone, Debug)]
pub enum Update {
    /// The job has come further.
    Job(Box<Job>),
    /// A plan is about to be carried out.
    Plan(Box<Planned>),
    /// It has come further.
    Progress(Progress),
    /// It failed, and another follows.
    Failed(Box<Failed>),
    /// The job has ended.
    End(Box<Job>),
}

/// A job that has not ended.
#[derive(Debug)]
pub struct Seen {
    sender: broadcast::Sender<Update>,
    cancelled: AtomicBool,
    now: Mutex<Now>,
}

/// What a job is at.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// The plan that is carried out.
    pub planned: Option<Planned>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// When it began, in milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// The attempt under way, or the last one; 0 before the first.
    pub attempt: u32,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is at.
    pub fn now(&self) -> Now {
        self.lock().clone()
    }

    /// What it is at, and everything from here on.
    pub fn follow(&self) -> (Now, broadcast::Receiver<Update>) {
        let now = self.lock();
        (now.clone(), self.sender.subscribe())
    }

    /// Work begins.
    pub fn started(&self, at_ms: u64) {
        self.lock().started_ms = Some(at_ms);
    }

    /// A plan is about to be carried out: in another attempt or, where it `goes_on`, in the one
    /// under way, from where that is.
    pub fn planned(&self, request: &Request, decision: &Decision, policy: &str, revision: u64, goes_on: bool) {
        let grid = GridFacts::of(request, &decision.plan);
        self.begun(&decision.plan, grid, (policy, revision), goes_on);
    }

    fn begun(&self, plan: &Plan, grid: GridFacts, (policy, revision): (&str, u64), goes_on: bool) {
        let mut now = self.lock();
        let attempt = now.attempt + u32::from(!goes_on);
        let share = now.progress.filter(|_| goes_on).map(|progress| progress.share);
        let planned = Planned { plan: plan.clone(), grid, policy: policy.into(), revision, attempt };
        now.attempt = attempt;
        now.planned = Some(planned.clone());
        now.progress = share.map(|share| Progress::of(attempt, grid, share));
        // Nobody may follow.
        let _ = self.sender.send(Update::Plan(Box::new(planned)));
    }

    /// The attempt under way has failed.
    pub fn failed(&self, plan: &Plan, failure: Failure) {
        let attempt = self.lock().attempt;
        self.tell(Update::Failed(Box::new(Failed { attempt, plan: plan.clone(), failure })));
    }

    /// The plan has come further; told where another part is done. Whether it was.
    pub fn progress(&self, share: f64) -> bool {
        let mut now = self.lock();
        let Some((attempt, grid)) = now.planned.as_ref().map(|planned| (planned.attempt, planned.grid)) else {
            return false;
        };
        // A clip's is worked out anew with each chunk: it may seem to go back.
        let share = now.progress.map_or(share, |known| share.max(known.share));
        let progress = Progress::of(attempt, grid, share);
        let further = now.progress.is_none_or(|known| known.done != progress.done || share - known.share >= 0.02);
        if further {
            now.progress = Some(progress);
            let _ = self.sender.send(Update::Progress(progress));
        }
        further
    }

    /// Tells followers.
    pub fn tell(&self, update: Update) {
        let _ = self.sender.send(update);
    }

    /// Asks for the job's end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Somebody asked for the job's end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// Every job that has not ended.
#[derive(Debug)]
pub struct Live {
    jobs: Mutex<HashMap<String, Arc<Seen>>>,
    /// Counts changes of anything that can be seen.
    pulse: watch::Sender<u64>,
}

impl Default for Live {
    fn default() -> Self {
        Self { jobs: Mutex::default(), pulse: watch::Sender::new(0) }
    }
}

impl Live {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Seen>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job was accepted.
    pub fn add(&self, id: &str) -> Arc<Seen> {
        let seen = Arc::new(Seen {
            sender: broadcast::Sender::new(BEHIND),
            cancelled: AtomicBool::new(false),
            now: Mutex::default(),
        });
        self.lock().insert(id.to_owned(), seen.clone());
        self.touch();
        seen
    }

    /// One of them.
    pub fn get(&self, id: &str) -> Option<Arc<Seen>> {
        self.lock().get(id).cloned()
    }

    /// A job was not accepted after all.
    pub fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    /// A job has ended: followers are told, and it is no longer among these.
    pub fn end(&self, job: &Job) {
        if let Some(seen) = self.lock().remove(&job.id) {
            seen.tell(Update::End(Box::new(job.clone())));
        }
        self.touch();
    }

    /// Something that can be seen has changed.
    pub fn touch(&self) {
        self.pulse.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Hears of changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Dtype, Layout, Precision, Release};

    use super::*;

    #[test]
    fn progress_goes_back_with_another_attempt_alone() {
        let plan = Plan {
            space: Space::Whole,
            time: Time::Carried { frames: 1 },
            batch: 1,
            precision: Precision::Uniform(Dtype::F32),
            layout: Layout::ChannelsFirst,
            release: Release::EachStep,
            offload: false,
            prefetch: 0,
            reason: String::new(),
        };
        let seen = Live::default().add("job");
        let begun = |total, goes_on| {
            seen.begun(&plan, GridFacts { rows: 1, columns: 1, total, unit: Unit::Chunk }, ("own", 1), goes_on);
        };
        let at = || seen.now().progress.map(|progress| (progress.attempt, progress.done, progress.total));
        assert!(!seen.progress(0.5), "nothing is under way");
        begun(4, false);
        assert_eq!((at(), seen.now().attempt), (None, 1));
        seen.progress(0.5);
        seen.progress(0.25);
        assert_eq!(at(), Some((1, 2, 4)));
        // Another revision takes over in the middle of a clip.
        begun(8, true);
        assert_eq!(at(), Some((1, 4, 8)));
        seen.progress(0.3);
        assert_eq!(at(), Some((1, 4, 8)));
        begun(4, false);
        assert_eq!((at(), seen.now().attempt), (None, 2));
        seen.progress(0.25);
        assert_eq!(at(), Some((2, 1, 4)));
    }
}
