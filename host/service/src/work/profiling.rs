//! The profiles of a job: one stage of all jobs is profiled at a time, and kept when it ends.

use std::{
    sync::{MutexGuard, TryLockError},
    thread,
};

use tilewright_engine::Profiled;
use tilewright_profile::{Profile, ProfileSummary};

use super::{JobEnd, ROOM_CHECK, executed::Turn, observer::StopSignal};
use crate::{
    error::one_line,
    jobs::{StoredJob, files::JobFiles},
};

/// The profiles of a stage's runs so far.
pub struct StageProfiles<'a> {
    files: &'a JobFiles,
    id: String,
    /// For the history, run by run; none of a recording that makes no sense.
    summaries: Vec<Option<ProfileSummary>>,
}

impl<'a> StageProfiles<'a> {
    /// The profiles of a job's stage before its first run.
    pub fn new(files: &'a JobFiles, id: &str) -> Self {
        Self { files, id: id.to_owned(), summaries: Vec::new() }
    }

    /// Keeps the profile of a run beside the job's results. A job is worth more than its profile:
    /// one that can't be kept has a line in the log.
    pub fn keep(&mut self, Profiled { facts, recording }: Profiled) {
        let run = self.summaries.len();
        let profile = Profile::of(&recording, facts);
        self.summaries.push(profile.as_ref().ok().map(Profile::summary));
        let kept = profile.map_err(std::io::Error::other);
        let kept = kept.and_then(|profile| self.files.keep_profile(&self.id, run, profile, recording));
        if let Err(error) = kept {
            tracing::warn!(error = one_line(&error), "a profile is not kept");
        }
    }

    /// The summaries for the history, run by run.
    pub fn into_summaries(self) -> Vec<Option<ProfileSummary>> {
        self.summaries
    }
}

impl<'a> Turn<'a> {
    /// Waits until no other job is profiled, if this one is to be; none if the server ends before.
    ///
    /// # Errors
    /// The end of the job, if it has to end meanwhile.
    pub fn profiler(self, stored: &StoredJob, stop: &StopSignal) -> Result<Option<Option<MutexGuard<'a, ()>>>, JobEnd> {
        if !stored.request.profile {
            return Ok(Some(None));
        }
        loop {
            match self.server.profiler.try_lock() {
                Ok(held) => return Ok(Some(Some(held))),
                Err(TryLockError::Poisoned(held)) => return Ok(Some(Some(held.into_inner()))),
                Err(TryLockError::WouldBlock) if self.server.is_draining() => return Ok(None),
                Err(TryLockError::WouldBlock) if !stop.goes_on() => return Err(stop.end()),
                Err(TryLockError::WouldBlock) => thread::sleep(ROOM_CHECK),
            }
        }
    }

    /// Makes the trace and the page of a job that ends, of the stages that were profiled.
    pub fn finish_profile(self, id: &str) {
        if let Err(error) = self.server.jobs.files.finish_profile(id) {
            tracing::warn!(error = one_line(&error), "a trace is not kept");
        }
    }
}
