//! Jobs, from their acceptance to their end: stored in a database, their files in a folder each, in
//! turn for a device, and followed while they are at work.

pub mod deadline;
pub mod files;
pub mod idempotency;
pub mod inputs;
mod latents;
pub mod live;
mod profiles;
pub mod queue;
pub mod store;
mod stored_job;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tilewright_rollout::Assignment;
use tilewright_service_api::{Job, JobState};

pub use self::stored_job::StoredJob;
use self::{files::JobFiles, latents::WaitingLatents, live::LiveJobs, store::JobStore};
use crate::{Result, clock, device::Devices, error::one_line, metrics::Metrics};

/// Accepted jobs. The database says which there are; everything else here can be made again from it
/// after a restart.
///
/// The mutexes are std's: each is held for a look-up or a change of its own map, never across an
/// await or a write to the database, and no two at once. `suspect` alone is held for long.
pub struct Jobs {
    /// Jobs in the database.
    pub store: JobStore,
    /// The files that jobs read, and their results.
    pub files: JobFiles,
    /// Handles of the jobs that have not ended.
    pub live: LiveJobs,
    /// The latents of waiting jobs, as they were read when the jobs were accepted.
    pub latents: WaitingLatents,
    devices: Devices,
    metrics: Arc<Metrics>,
    /// The revision that decides, for each accepted job that has not ended. A job restored after a
    /// restart has none: its revision is opened again when its turn comes.
    assignments: Mutex<HashMap<String, Assignment>>,
    /// The deadlines of unfinished jobs by the steady clock, in milliseconds since 1970, soonest
    /// first.
    deadlines: Mutex<BTreeSet<(u64, String)>>,
    /// The time when this server started by the steady clock, in milliseconds since 1970.
    started_ms: u64,
    /// Held by the worker on a job in the middle of which the server has crashed, so that two of
    /// them are never at work at once.
    suspect: Mutex<()>,
}

impl Jobs {
    /// The jobs in a database and a folder.
    pub fn new(store: JobStore, files: JobFiles, devices: Devices, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            files,
            live: LiveJobs::default(),
            latents: WaitingLatents::default(),
            devices,
            metrics,
            assignments: Mutex::default(),
            deadlines: Mutex::default(),
            started_ms: clock::steady_ms(),
            suspect: Mutex::default(),
        }
    }

    fn lock_assignments(&self) -> MutexGuard<'_, HashMap<String, Assignment>> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_deadlines(&self) -> MutexGuard<'_, BTreeSet<(u64, String)>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision that was assigned to a job by this server.
    pub fn assignment(&self, id: &str) -> Option<Assignment> {
        self.lock_assignments().get(id).cloned()
    }

    /// Makes a job known that is about to be stored: a caller who finds it can follow and cancel
    /// it.
    pub fn announce(&self, id: &str, assignment: Assignment) {
        self.lock_assignments().insert(id.to_owned(), assignment);
        self.live.add(id);
    }

    /// Takes an announcement back: the job was not stored.
    pub fn retract(&self, id: &str) {
        self.lock_assignments().remove(id);
        self.live.forget(id);
        self.files.forget(id);
    }

    /// Notes a job's deadline, so that it expires if it still waits then.
    pub fn schedule_deadline(&self, stored: &StoredJob) {
        self.lock_deadlines().insert((stored.deadline_ms, stored.job.id.clone()));
    }

    /// Waits until no other suspect of a crash is at work. The next crash then shows which it was.
    pub fn isolate_suspect(&self) -> MutexGuard<'_, ()> {
        self.suspect.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job as callers see it now, with its place in the queue or its progress.
    pub fn view(&self, mut stored: StoredJob) -> Job {
        let job = &mut stored.job;
        match job.state {
            JobState::Queued => {
                let order = self.devices.get(&job.device).map(|device| device.queue.order()).unwrap_or_default();
                job.position = order.iter().position(|id| *id == job.id).map(|place| place as u32);
            }
            JobState::Running => {
                let activity = self.live.get(&job.id).map(|handle| handle.activity()).unwrap_or_default();
                job.progress = Some(activity.progress.map_or(0.0, |progress| progress.share));
                job.attempt = (activity.attempt > 0).then_some(activity.attempt);
                (job.loading, job.sampling) = (activity.loading, activity.sampling);
            }
            _ => {}
        }
        stored.job
    }

    /// The same with the profiles of its stages, if it was to be profiled.
    pub fn view_whole(&self, stored: StoredJob) -> Job {
        let is_profiled = stored.request.profile;
        let mut job = self.view(stored);
        job.profile = is_profiled.then(|| self.files.profiles(&job.id));
        job
    }

    /// Ends a job: written, sent to followers and counted once, however many callers end it.
    /// Returns true for the first.
    ///
    /// # Errors
    /// The end can't be written; the job has not ended then, and ends after a restart.
    pub fn end(
        &self,
        stored: &mut StoredJob,
        state: JobState,
        error: Option<String>,
        record: Option<&str>,
    ) -> Result<bool> {
        let now = clock::steady_ms();
        stored.job.state = state;
        stored.job.error = error.map(|line| self.files.strip_data_folder(&line));
        stored.job.finished = Some(stored.time_of(now));
        (stored.job.position, stored.job.progress, stored.job.sampling) = (None, None, None);
        let is_first = self.store.update(stored, record, Some(now))?;
        let job = &stored.job;
        self.lock_assignments().remove(&job.id);
        self.lock_deadlines().remove(&(stored.deadline_ms, job.id.clone()));
        self.latents.take(&job.id);
        if is_first {
            self.metrics.count_ended(state);
            self.files.forget_inputs(&job.id);
            self.live.end(job);
            tracing::info!(job = job.id, state = state.name(), error = job.error, "the job ended");
        }
        Ok(is_first)
    }

    /// Ends a job because a caller asked. Returns none if there is no such job, and false if it has
    /// ended already.
    ///
    /// # Errors
    /// The end can't be written.
    pub fn cancel(&self, id: &str) -> Result<Option<(Job, bool)>> {
        let Some(mut stored) = self.store.get(id)? else { return Ok(None) };
        if stored.job.state.is_end() {
            return Ok(Some((stored.job, false)));
        }
        let device = self.devices.get(&stored.job.device);
        if let Some(device) = device.filter(|device| device.queue.remove(id)) {
            if let Err(error) = self.end(&mut stored, JobState::Cancelled, None, None) {
                // The job has not ended: it waits on.
                device.queue.restore(stored.job.tag.as_deref().unwrap_or_default(), id);
                return Err(error);
            }
        } else if let Some(handle) = self.live.get(id) {
            // Stored, so that the next start knows of it if this server ends before the job does.
            self.store.mark_cancelled(id)?;
            // The worker ends it.
            handle.cancel();
        }
        Ok(Some((self.view(stored), true)))
    }

    /// Puts the jobs that the previous server left unfinished back into their queues. `crash` says
    /// how that server crashed, if it did: a job that was at work then may be the cause.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn restore(&self, crash: Option<&str>) -> Result<()> {
        if let Some(crash) = crash {
            tracing::error!("the server before this one crashed {crash}");
        }
        for (mut stored, is_cancelled) in self.store.unfinished_jobs()? {
            let id = stored.job.id.clone();
            let Some(device) = self.devices.get(&stored.job.device).or(self.devices.first()) else { continue };
            let was_running = stored.job.state == JobState::Running;
            if stored.job.device != device.name || was_running {
                stored.job.device = device.name.clone();
                stored.job.state = JobState::Queued;
                stored.crashes += u32::from(was_running && crash.is_some());
                if let Err(error) = self.store.update(&stored, None, None) {
                    // A full disk does not keep the server from starting.
                    tracing::error!(job = id, error = one_line(&error), "a job waits again, which can't be written");
                }
            }
            let handle = self.live.add(&id);
            if is_cancelled {
                handle.cancel();
            }
            self.schedule_deadline(&stored);
            device.queue.restore(stored.job.tag.as_deref().unwrap_or_default(), &id);
        }
        Ok(())
    }

    /// Ends a job whose deadline passed before its turn, and says what was done of it.
    ///
    /// # Errors
    /// The end can't be written.
    pub fn end_overdue(&self, stored: &mut StoredJob) -> Result<bool> {
        let steps = if stored.starts > 0 { self.files.kept_steps(&stored.job.id) } else { None };
        let why = deadline::passed(stored, steps, self.started_ms);
        self.end(stored, JobState::Expired, Some(why), None)
    }

    /// Ends the jobs whose deadlines passed while they waited.
    ///
    /// # Errors
    /// An end can't be written; it is tried again the next time.
    pub fn expire_overdue(&self) -> Result<()> {
        let now = clock::steady_ms();
        loop {
            let due = self.lock_deadlines().first().filter(|(deadline, _)| *deadline <= now).cloned();
            let Some((deadline, id)) = due else { return Ok(()) };
            if let Some(mut stored) = self.store.get(&id)?
                && let Some(device) = self.devices.get(&stored.job.device)
                && device.queue.remove(&id)
                && let Err(error) = self.end_overdue(&mut stored)
            {
                device.queue.restore(stored.job.tag.as_deref().unwrap_or_default(), &id);
                return Err(error);
            }
            // A job at work looks at the clock itself.
            self.lock_deadlines().remove(&(deadline, id));
        }
    }

    /// Removes the jobs that ended before a time by the steady clock, in milliseconds since 1970,
    /// with their files.
    ///
    /// # Errors
    /// The store can't be read or written.
    pub fn forget_ended_before(&self, ended_ms: u64) -> Result<()> {
        // The files first: with a full disk, nothing else can be written.
        let old = self.store.ended_before(ended_ms)?;
        old.iter().for_each(|id| self.files.forget(id));
        self.store.forget(&old)
    }

    /// Removes the folders of jobs that were never accepted. Call it before any job can be.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn forget_strays(&self) -> Result<()> {
        let known: HashSet<String> = self.store.ids()?.into_iter().collect();
        self.files.ids().iter().filter(|id| !known.contains(*id)).for_each(|id| self.files.forget(id));
        Ok(())
    }
}
