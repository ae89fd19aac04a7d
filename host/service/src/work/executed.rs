//! The kinds of work that a device's thread carries out.

use std::sync::Arc;

use tilewright_engine::{MemoryLimit, Unfinished};
use tilewright_pipeline::{Kept, Trials};
use tilewright_plan::{Exchange, Loss, Objective, Record, Stage};
use tilewright_profile::ProfileSummary;
use tilewright_rollout::{Assignment, Decider, EndedJob, Revision, Served};
use tilewright_service_api::JobResult;

use super::{
    JobEnd,
    observer::{Followed, JobObserver, StopSignal},
};
use crate::{
    device::DeviceState,
    error::{decode_line, one_line},
    jobs::{StoredJob, live::JobHandle},
    metrics::Labels,
    models::OpenModel,
    state::ServerState,
};

/// A job's turn on a device. One model is for all stages: a job goes on with the files that it
/// began with.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub server: &'a Arc<ServerState>,
    pub device: &'a DeviceState,
    pub model: &'a Arc<OpenModel>,
    pub handle: &'a Arc<JobHandle>,
}

/// A job at work, or a stage of one, and the revision that decides on it.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    pub turn: Turn<'a>,
    pub stored: &'a StoredJob,
    pub assignment: &'a Assignment,
    pub stop: &'a StopSignal,
}

/// The outcome of a job's work.
pub struct JobOutcome<W: Executed> {
    pub record: Option<Box<Record<W::Work>>>,
    /// The result, if it is to be compared.
    pub output: Option<W::Output>,
    pub end: Result<Vec<JobResult>, JobEnd>,
}

impl<W: Executed> From<JobEnd> for JobOutcome<W> {
    fn from(end: JobEnd) -> Self {
        Self { record: None, output: None, end: Err(end) }
    }
}

/// A kind of work that jobs, or stages of them, are.
pub trait Executed: Sized {
    /// The kind of work as policies see it.
    type Work: Served + Kept + Followed;
    /// The files of a job, read.
    type Input;
    /// A result that another one can be compared with.
    type Output;

    /// The kind of work in a word, for errors.
    const NAME: &'static str;
    /// The line of the log if there is no room for what is made.
    const NO_ROOM: &'static str = "there is no room for a result: the job is done again once there is";

    /// Reads the files of a job.
    ///
    /// # Errors
    /// One line.
    fn read(turn: Turn<'_>, stored: &StoredJob) -> Result<Self::Input, String>;

    /// Carries a job out and writes its results.
    ///
    /// # Errors
    /// It ended without a result.
    fn execute<'a>(
        execution: Execution<'a>,
        history: &mut Trials,
        input: &'a Self::Input,
        decider: &mut Decider<Self::Work>,
        observer: &mut JobObserver<'a, Self::Work>,
    ) -> Result<JobOutcome<Self>, JobOutcome<Self>>;

    /// Carries a job out under the incumbent's plan and compares. Returns the incumbent's record
    /// and the PSNR in dB, infinite if nothing differs.
    ///
    /// # Errors
    /// One line.
    fn compare(
        execution: Execution<'_>,
        input: &Self::Input,
        incumbent: &Arc<Revision>,
        canarys: &Self::Output,
    ) -> Result<(Record<Self::Work>, f64), String>;
}

impl Execution<'_> {
    /// The end of work by an error.
    pub fn end_of(&self, error: tilewright_engine::Error) -> JobEnd {
        match error {
            tilewright_engine::Error::Interrupted => self.stop.end(),
            error if error.is_lost_device() => JobEnd::LostDevice(one_line(&error)),
            error @ tilewright_engine::Error::Sink(_) => self.classify_write_error(&error),
            error => JobEnd::Failed(decode_line(&error)),
        }
    }

    /// The outcome of work that ended without a result.
    pub fn describe_unfinished<W: Executed>(&self, unfinished: Unfinished<W::Work>) -> JobOutcome<W> {
        JobOutcome { record: unfinished.record, output: None, end: Err(self.end_of(unfinished.error)) }
    }

    /// The objective of the job: its own, or its route's.
    pub fn objective(&self) -> Objective {
        self.stored.request.objective.or(self.assignment.objective).unwrap_or(Objective::Balanced)
    }

    /// The most that the job may hold: the least of all limits. It counts the weights if the
    /// device's configuration or the request says so.
    pub fn memory_limit(&self) -> MemoryLimit {
        let (device, request) = (self.turn.device, &self.stored.request);
        let limits = [Some(device.memory_limit), self.assignment.memory_limit, request.memory_limit_bytes];
        let bytes = limits.into_iter().flatten().min().unwrap_or(device.memory_limit);
        MemoryLimit { bytes, counts_weights: device.counts_weights || request.count_weights }
    }

    /// True if the job, or its route, allows blended tiles and chunks where an exact plan fits.
    pub fn allows_blended(&self) -> bool {
        self.assignment.allows_blended || Loss::allows_blended(&self.stored.request.allow, Stage::Decode)
    }

    /// Counts work that ended well, and keeps its trial with the summary of its profile. Work by
    /// several plans says nothing of one.
    pub fn count<W: Followed + Kept>(
        &self,
        history: &mut Trials,
        record: &Record<W>,
        is_mixed: bool,
        profile: Option<&ProfileSummary>,
    ) {
        let Turn { server, .. } = self.turn;
        let Assignment { route, revision, canary, .. } = self.assignment;
        if !is_mixed {
            let labels = Labels { route, policy: &revision.policy, revision: revision.number, canary: *canary };
            server.metrics.record_work(&labels, &self.stored.job.device, record);
        }
        if let Some(outcome) = &record.outcome {
            server.traces.record_work_time(record.stage(), route, W::elapsed(outcome).as_secs_f64());
        }
        // A part of the work takes less time than its whole.
        if !is_mixed && record.resumed_frames == 0 {
            history.keep(record, profile);
        }
    }

    /// Gives the rollout a record to learn from. A plan is to blame if work ended without an
    /// outcome. Work that succeeded and could not be written has one.
    pub fn learn<W: Served>(
        &self,
        record: Record<W>,
        exchange: Option<Exchange<W>>,
        is_mixed: bool,
        psnr: Option<f64>,
    ) {
        let (record, is_lost) = (Record { exchange, ..record }, record.outcome.is_none());
        self.turn.server.rollout.record_result(self.assignment, EndedJob { record, is_mixed, is_lost, psnr });
    }
}
