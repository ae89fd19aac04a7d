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
}

/// How far a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Progress {
    /// 0 to 1.
    pub share: f64,
    /// Parts.
    pub done: u32,
    /// Parts.
    pub total: u32,
    /// What a part is.
    pub unit: Unit,
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
    Failed(Box<(Plan, Failure)>),
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

    /// A plan is about to be carried out.
    pub fn planned(&self, request: &Request, decision: &Decision, policy: &str, revision: u64) {
        let grid = GridFacts::of(request, &decision.plan);
        let planned = Planned { plan: decision.plan.clone(), grid, policy: policy.into(), revision };
        let mut now = self.lock();
        now.planned = Some(planned.clone());
        now.progress = None;
        // Nobody may follow.
        let _ = self.sender.send(Update::Plan(Box::new(planned)));
    }

    /// The plan has come further; told where another part is done. Whether it was.
    pub fn progress(&self, share: f64) -> bool {
        let mut now = self.lock();
        let Some(grid) = now.planned.as_ref().map(|planned| planned.grid) else { return false };
        // A clip's is worked out anew with each chunk: it may seem to go back.
        let share = now.progress.map_or(share, |known| share.max(known.share));
        let progress = Progress { share, done: grid.done(share), total: grid.total, unit: grid.unit };
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
