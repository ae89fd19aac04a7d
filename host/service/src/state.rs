//! The state that requests, workers and watchers share.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tilewright_rollout::{Disk, Rollout};
use tokio::sync::Notify;

use crate::{
    Result, clock, config_state::ConfigState, device::Devices, error::one_line, job_traces::JobTraces, jobs::Jobs,
    metrics::Metrics, models::Models,
};

/// The pause between two tries to write.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The parts of a server. Each guards its own data, and none calls back into this one.
pub struct ServerState {
    /// The configuration.
    pub config: ConfigState,
    /// Policies and routes.
    pub rollout: Arc<Rollout>,
    /// Jobs, from their acceptance on.
    pub jobs: Jobs,
    /// Decisions of the last jobs, beyond their records.
    pub traces: JobTraces,
    /// Devices and their queues.
    pub devices: Devices,
    /// Models.
    pub models: Models,
    /// The writer of state, which knows of failed writes.
    pub disk: Disk,
    /// Metrics for Prometheus.
    pub metrics: Arc<Metrics>,
    /// Held while a stage is profiled: the profiler records one at a time, and work beside it would
    /// be in its way.
    pub profiler: Mutex<()>,
    /// The time of the start.
    pub started: Instant,
    /// True when the server is about to end: no new jobs are accepted. Set once, never cleared.
    pub draining: AtomicBool,
    /// The device that was lost, if one was.
    pub lost: LostDevice,
}

/// A device that can't be used any more by this process. The first one counts.
#[derive(Debug, Default)]
pub struct LostDevice {
    reason: OnceLock<String>,
    told: Notify,
}

impl LostDevice {
    /// Takes a device for lost: the server ends, so that a supervisor starts it again.
    pub fn report(&self, device: &str, reason: &str) {
        tracing::error!(
            device,
            reason,
            "the device is lost: the server ends, and its jobs begin anew after the next start"
        );
        let _ = self.reason.set(format!("device {device}: {reason}"));
        self.told.notify_one();
    }

    /// The device and the reason, if one is lost.
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Waits until a device is lost.
    pub async fn wait(&self) {
        self.told.notified().await;
    }
}

impl ServerState {
    /// True if no new jobs are accepted because the server is about to end.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Makes the server accept no new jobs.
    pub fn begin_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Writes, and tries again until it works: a full disk may be emptied, and until then a worker
    /// has nothing better to do. `what` is what is written, for the log.
    ///
    /// # Errors
    /// The write still fails when the server ends; the job begins again after the next start then.
    pub fn retry_until_written<T>(&self, what: &str, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        let mut is_logged = false;
        loop {
            match write() {
                Err(error) if !self.is_draining() => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::error!(error = one_line(&error), "{what} can't be kept: trying until it can");
                    }
                    thread::sleep(RETRY_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Removes results past their time, files that belong to no job, and modules that nothing
    /// needs.
    ///
    /// # Errors
    /// The store can't be read or written.
    pub fn clean_up(&self) -> Result<()> {
        let started = Instant::now();
        let keep = self.config.in_force().server.limits.keep_results.as_millis() as u64;
        self.jobs.forget_ended_before(clock::steady_ms().saturating_sub(keep))?;
        self.rollout.forget_modules(|| {
            let unfinished = self.jobs.store.unfinished_jobs()?;
            let pins = unfinished.iter().flat_map(|(stored, _)| stored.pins());
            Ok::<_, crate::Error>(pins.map(|pinned| pinned.digest().to_owned()).collect())
        })?;
        tracing::debug!(elapsed_ms = started.elapsed().as_millis() as u64, "cleaned");
        Ok(())
    }
}
