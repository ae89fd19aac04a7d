//! A job, and how far it is.

use std::time::SystemTime;

use tilewright_plan::Plan;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits for its device.
    Queued,
    /// Is being decoded.
    Running,
    /// Its results are there, or were.
    Done,
    /// Ended without a result.
    Failed,
    /// Somebody stopped it.
    Cancelled,
    /// Its deadline passed.
    Expired,
}

impl State {
    /// Whether it can still be cancelled.
    pub const fn is_open(self) -> bool {
        matches!(self, State::Queued | State::Running)
    }
}

/// A job, in lists and on its own page.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// As in its address.
    pub id: String,
    /// Where it stands.
    pub state: State,
    /// The configured model.
    pub model: String,
    /// The configured device.
    pub device: String,
    /// What the caller called it.
    pub tag: Option<String>,
    /// The route that it took; none before it is decided.
    pub route: Option<String>,
    /// The policy that decided.
    pub policy: Option<String>,
    /// The policy's revision that decided.
    pub revision: Option<u64>,
    /// The revision's digest, `sha256:…`.
    pub digest: Option<String>,
    /// It fell into the canary's share.
    pub canary: bool,
    /// `png`, `mp4`, …
    pub format: String,
    /// Samples.
    pub batch: u32,
    /// Output frames; 1 for pictures, 0 where not known yet.
    pub frames: u32,
    /// Output pixels; 0 where not known yet.
    pub height: u32,
    /// Output pixels; 0 where not known yet.
    pub width: u32,
    /// When it was accepted.
    pub created: SystemTime,
    /// When it began to run.
    pub started: Option<SystemTime>,
    /// When it ended.
    pub finished: Option<SystemTime>,
    /// In the queue, from 1.
    pub position: Option<u32>,
    /// Of the whole work, from 0 to 1.
    pub progress: Option<f64>,
    /// Why it failed, in one line.
    pub error: Option<String>,
    /// The plan that it runs or ran by.
    pub plan: Option<Plan>,
    /// Its pieces, where a plan is being carried out or was.
    pub grid: Option<Grid>,
    /// What came out and is still kept.
    pub results: Vec<File>,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Which of the batch, from 0.
    pub sample: u32,
    /// Its size.
    pub bytes: u64,
    /// `image/png`, `video/mp4`, …
    pub content_type: String,
}

/// The pieces that a plan divides its work into, and how many of them are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Tiles or bands from top to bottom; 1 where the area is not divided.
    pub rows: u32,
    /// Tiles from left to right; 1 where the area is not divided.
    pub columns: u32,
    /// How often the area is gone through: chunks of a clip, or batches; 1 for a single picture.
    pub steps: u32,
    /// What `done` and `total` count.
    pub unit: Unit,
    /// Pieces that are done.
    pub done: u32,
    /// All pieces.
    pub total: u32,
    /// Pieces that run together.
    pub together: u32,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Tiles of the picture.
    Tile,
    /// Bands across the picture.
    Band,
    /// Chunks of a clip.
    Chunk,
    /// Whole passes.
    Pass,
}
