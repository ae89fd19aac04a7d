//! Work that tests hold up in the middle of an operation, until somebody ends it: how long real
//! work takes is nothing to rely on.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use tilewright_plan::Stage;
use tilewright_service_api::JobStage;

use crate::jobs::StoredJob;

/// The environment variable that says at which look at its wish, within a stage, work is held up.
/// The jobs are those with the tag `within-STAGE`.
const HOLD_WITHIN: &str = "TILEWRIGHT_HOLD_WITHIN";

/// The time between two looks of work that is held up.
const PAUSE: Duration = Duration::from_millis(10);

/// The looks of a stage.
#[derive(Debug, Default)]
pub struct Held {
    /// The look at which it is held up.
    at: Option<u32>,
    looks: AtomicU32,
}

impl Held {
    /// The looks of the stage that a job is about to begin.
    pub fn of(stored: &StoredJob) -> Self {
        let of_one = match stored.job.stage {
            JobStage::Decode => Some(Stage::Decode),
            JobStage::Encode => Some(Stage::Encode),
            JobStage::Denoise => Some(Stage::Denoise),
            JobStage::Generate => None,
        };
        let stage = stored.job.at.or(of_one).map(|at| at.name());
        let meant = stored.job.tag.as_deref().and_then(|tag| tag.strip_prefix("within-"));
        let is_meant = cfg!(debug_assertions) && meant.is_some() && meant == stage;
        let at = is_meant.then(|| std::env::var(HOLD_WITHIN).ok()).flatten();
        Self { at: at.and_then(|text| text.parse().ok()), looks: AtomicU32::new(0) }
    }

    /// Counts a look, and waits from the chosen one on for as long as the work may go on.
    pub fn wait_while(&self, goes_on: impl Fn() -> bool) {
        let Some(at) = self.at else { return };
        let look = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        if look == at {
            tracing::info!("the work is held up within an operation");
        }
        while look >= at && goes_on() {
            thread::sleep(PAUSE);
        }
    }
}
