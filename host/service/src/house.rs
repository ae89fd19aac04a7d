//! Everything that the server has, in one place: what requests, workers and watchers share.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use tilewright_config::{Config, ConfigSource};
use tilewright_rollout::{Assignment, Disk, Rollout, without_error_numbers};

use crate::{
    Result, clock,
    device::Device,
    error::one_line,
    jobs::{Kept, State, files::Files, live::Live, store::Store},
    metrics::Metrics,
    models::Models,
    story::Stories,
};

/// Between two tries to write.
const AGAIN: Duration = Duration::from_millis(500);

/// What the server has.
pub struct House {
    /// Where the configuration stands.
    pub place: ConfigSource,
    /// What it says, as far as it is in force.
    pub config: ArcSwap<Config>,
    /// Policies and routes.
    pub rollout: Arc<Rollout>,
    /// Jobs.
    pub store: Store,
    /// Their files.
    pub files: Files,
    /// The writer of state, which knows of failed writes.
    pub disk: Disk,
    /// Those that have not ended.
    pub live: Live,
    /// What is known of jobs beyond their records.
    pub stories: Stories,
    /// Devices, by name.
    pub devices: Vec<Arc<Device>>,
    /// Models, by name.
    pub models: ArcSwap<Models>,
    /// What Prometheus is told.
    pub metrics: Arc<Metrics>,
    /// Who decides for the jobs that wait.
    pub assignments: Mutex<HashMap<String, Assignment>>,
    /// When which job has to have ended, in milliseconds since 1970; those that have not.
    pub deadlines: Mutex<BTreeSet<(u64, String)>>,
    /// What it said when the server was started: some of it takes a restart to change.
    pub config_at_start: Config,
    /// Where to listen was said on the command line.
    pub is_listening_elsewhere: bool,
    /// Where dumps are.
    pub dumps: PathBuf,
    /// When it was started.
    pub started: SystemTime,
    /// Held by the worker on a job in the middle of which the server has crashed.
    pub suspect: Mutex<()>,
    /// No new jobs: the server is about to end.
    pub draining: AtomicBool,
    /// What is wrong with a newer configuration, where one is.
    pub config_fault: Mutex<Option<String>>,
}

impl House {
    /// Nothing new is accepted.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// One of the devices.
    pub fn device(&self, name: &str) -> Option<&Arc<Device>> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Who decides for the jobs that wait.
    pub fn assignments(&self) -> MutexGuard<'_, HashMap<String, Assignment>> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When which job has to have ended.
    pub fn deadlines(&self) -> MutexGuard<'_, BTreeSet<(u64, String)>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong with a newer configuration.
    pub fn config_fault(&self) -> MutexGuard<'_, Option<String>> {
        self.config_fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what has to be written, again and again where it can't be: a full disk may be emptied, and until then there is nothing better to do.
    ///
    /// # Errors
    /// It still can't be written when the server ends; the job begins anew after the next start then.
    pub fn persistently<T>(&self, what: &str, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        let mut said = false;
        loop {
            match write() {
                Err(error) if !self.is_draining() => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::error!(error = one_line(&error), "{what} can't be kept: trying until it can");
                    }
                    thread::sleep(AGAIN);
                }
                outcome => return outcome,
            }
        }
    }

    /// A line without the paths of the server's own folder, which are nobody's business, and
    /// without the system's numbers of errors.
    pub fn plain(&self, line: &str) -> String {
        let data = format!("{}/", self.files.data().display());
        without_error_numbers(&line.replace(&data, ""))
    }

    /// Ends a job that has not ended: written, told, and counted once, whoever says it first.
    ///
    /// # Errors
    /// It can't be written; the job has not ended then, and ends after a restart.
    pub fn end(&self, kept: &mut Kept, state: State, error: Option<String>, record: Option<&str>) -> Result<bool> {
        let now = clock::now_ms();
        kept.job.state = state;
        kept.job.error = error.map(|line| self.plain(&line));
        kept.job.finished = Some(clock::text(now));
        (kept.job.position, kept.job.progress) = (None, None);
        let first = self.store.update(kept, record, Some(now))?;
        self.assignments().remove(&kept.job.id);
        self.deadlines().remove(&(kept.deadline_ms, kept.job.id.clone()));
        if first {
            self.metrics.ended(state);
            self.files.forget_latent(&kept.job.id);
            self.live.end(&kept.job);
            tracing::info!(job = kept.job.id, state = state.name(), error = kept.job.error, "the job ended");
        }
        Ok(first)
    }

    /// Puts jobs that had not ended with the previous server back into their queues. `crash` says how that server
    /// crashed, if it did: a job that was at work then may be the cause.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn restore(&self, crash: Option<&str>) -> Result<()> {
        if let Some(crash) = crash {
            tracing::error!("the server before this one crashed {crash}");
        }
        for (mut kept, is_cancelled) in self.store.unfinished()? {
            let id = kept.job.id.clone();
            let Some(device) = self.device(&kept.job.device).or(self.devices.first()) else { continue };
            let was_running = kept.job.state == State::Running;
            if kept.job.device != device.name || was_running {
                kept.job.device = device.name.clone();
                kept.job.state = State::Queued;
                kept.crashes += u32::from(was_running && crash.is_some());
                if let Err(error) = self.store.update(&kept, None, None) {
                    // A full disk does not keep the server from starting.
                    tracing::error!(job = id, error = one_line(&error), "a job waits again, which can't be written");
                }
            }
            let seen = self.live.add(&id);
            if is_cancelled {
                seen.cancel();
            }
            self.deadlines().insert((kept.deadline_ms, id.clone()));
            device.queue.restore(kept.job.tag.as_deref().unwrap_or_default(), &id);
        }
        Ok(())
    }

    /// Removes what is no longer kept: results past their time, files of nobody, modules that nothing needs.
    ///
    /// # Errors
    /// The store can't be read or written.
    pub fn clean(&self) -> Result<()> {
        let started = Instant::now();
        let keep = self.config.load().server.limits.keep_results.as_millis() as u64;
        // The files first: where the disk is full, nothing else can be written.
        let old = self.store.ended_before(clock::now_ms().saturating_sub(keep))?;
        old.iter().for_each(|id| self.files.forget(id));
        self.store.forget(&old)?;
        self.rollout.forget_modules(|| {
            let waiting = self.store.unfinished()?;
            Ok::<_, crate::Error>(waiting.iter().map(|(kept, _)| kept.pinned.digest().to_owned()).collect())
        })?;
        tracing::debug!(elapsed_ms = started.elapsed().as_millis() as u64, "cleaned");
        Ok(())
    }

    /// Ends jobs whose deadline passes while they wait.
    ///
    /// # Errors
    /// An end can't be written; it is tried again the next time.
    pub fn expire(&self) -> Result<()> {
        let now = clock::now_ms();
        loop {
            let due = self.deadlines().first().filter(|(deadline, _)| *deadline <= now).cloned();
            let Some((deadline, id)) = due else { return Ok(()) };
            if let Some(mut kept) = self.store.get(&id)?
                && let Some(device) = self.device(&kept.job.device)
                && device.queue.remove(&id)
                && let Err(error) =
                    self.end(&mut kept, State::Expired, Some("its deadline passed while it waited".into()), None)
            {
                device.queue.restore(kept.job.tag.as_deref().unwrap_or_default(), &id);
                return Err(error);
            }
            // One at work looks at the clock itself.
            self.deadlines().remove(&(deadline, id));
        }
    }

    /// Removes folders of jobs that were never accepted; only before any job can be.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn forget_strays(&self) -> Result<()> {
        let known: std::collections::HashSet<String> = self.store.ids()?.into_iter().collect();
        self.files.ids().iter().filter(|id| !known.contains(*id)).for_each(|id| self.files.forget(id));
        Ok(())
    }
}
