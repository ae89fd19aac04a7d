//! The kinds of work that a device's thread carries out.

use std::sync::Arc;

use tilewright_engine::Unfinished;
use tilewright_pipeline::{Kept, Trials};
use tilewright_plan::{Loss, Objective, Record, Stage};
use tilewright_rollout::{Assignment, Decider, Revision, Served};
use tilewright_service_api::JobResult;

use super::{
    JobEnd,
    observer::{JobObserver, StopSignal},
};
use crate::{
    device::Worker,
    error::{decode_line, one_line},
    job_traces::{AnyJobTrace, JobTrace},
    jobs::StoredJob,
    metrics::Labels,
    models::OpenModel,
    state::ServerState,
};

/// A job at work, and its surroundings.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    pub server: &'a ServerState,
    pub worker: &'a Worker,
    pub stored: &'a StoredJob,
}

/// The outcome of a job's work.
pub struct JobOutcome<W: Executed> {
    pub record: Option<Box<Record<W>>>,
    /// The result, if it is to be compared.
    pub output: Option<W::Output>,
    pub end: Result<Vec<JobResult>, JobEnd>,
}

/// A kind of work that jobs are.
pub trait Executed: Served + Kept {
    /// The files of a job, read.
    type Input;
    /// A result that another one can be compared with.
    type Output;

    /// Reads the files of a job.
    ///
    /// # Errors
    /// One line.
    fn read(server: &ServerState, stored: &StoredJob, model: &Arc<OpenModel>) -> Result<Self::Input, String>;

    /// Carries a job out and writes its results.
    fn execute<'a>(
        execution: Execution<'a>,
        history: &mut Trials,
        input: &'a Self::Input,
        decider: &mut Decider<Self>,
        observer: &mut JobObserver<'a, Self>,
    ) -> JobOutcome<Self>;

    /// Carries a job out under the incumbent's plan and compares. Returns the incumbent's record
    /// and the PSNR in dB, infinite if nothing differs.
    ///
    /// # Errors
    /// One line.
    fn compare(
        execution: Execution<'_>,
        input: &Self::Input,
        assignment: &Assignment,
        incumbent: &Arc<Revision>,
        canarys: &Self::Output,
        stop: &StopSignal,
    ) -> Result<(Record<Self>, f64), String>;

    /// Counts work that ended well.
    fn count(server: &ServerState, labels: &Labels<'_>, device: &str, record: &Record<Self>);

    /// A trace among those of all kinds.
    fn trace(trace: JobTrace<Self>) -> AnyJobTrace;

    /// The kind of work in a word, for errors.
    const NAME: &'static str;
}

impl Execution<'_> {
    /// The outcome of work that ended without a result.
    pub fn describe_unfinished<W: Executed>(
        &self,
        unfinished: Unfinished<W>,
        observer: &JobObserver<'_, W>,
    ) -> JobOutcome<W> {
        let end = match unfinished.error {
            tilewright_engine::Error::Interrupted => observer.stop().end(),
            error if error.is_lost_device() => JobEnd::LostDevice(one_line(&error)),
            error @ tilewright_engine::Error::Sink(_) => self.classify_write_error(&error),
            error => JobEnd::Failed(decode_line(&error)),
        };
        JobOutcome { record: unfinished.record, output: None, end: Err(end) }
    }

    /// The objective of the job: its own, or its route's.
    pub fn objective(&self, assignment: &Assignment) -> Objective {
        self.stored.request.objective.or(assignment.objective).unwrap_or(Objective::Balanced)
    }

    /// True if the job, or its route, allows blended tiles and chunks where an exact plan fits.
    pub fn allows_blended(&self, assignment: &Assignment) -> bool {
        assignment.allows_blended || Loss::allows_blended(&self.stored.request.allow, Stage::Decode)
    }
}
