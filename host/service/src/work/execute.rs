//! The decode of pictures and clips, from a job's latent to its results.

use std::{fs, io, path::PathBuf, sync::Arc};

use tch::Tensor;
use tilewright_engine::{Finished, Unfinished};
use tilewright_media::Output;
use tilewright_models::Latent;
use tilewright_pipeline::{Decode, Delivery, Trials, texts};
use tilewright_plan::{Objective, Record};
use tilewright_rollout::{Assignment, Decider, is_full};
use tilewright_service_api::JobResult;

use super::{JobEnd, JobOutcome, memory_limit, observer::JobObserver, quality::fits_buffer};
use crate::{
    accept::rate,
    device::Worker,
    error::{decode_line, one_line},
    jobs::StoredJob,
    models::OpenModel,
    state::ServerState,
};

/// The model and latent of a job.
pub struct JobInput {
    pub model: Arc<OpenModel>,
    pub latent: Latent,
    /// The latent's values, unscaled, in the shape that the model takes.
    pub tensor: Tensor,
}

impl JobInput {
    /// The latent of a job in its model's own space: as it was read when the job was accepted, or
    /// read again after a restart.
    ///
    /// # Errors
    /// One line.
    pub fn read(server: &ServerState, stored: &StoredJob) -> Result<Self, String> {
        let gone = || format!("model {} is no longer configured", stored.job.model);
        let model = server.models.by_name().get(&stored.job.model).cloned().ok_or_else(gone)?;
        let read = || -> tilewright_pipeline::Result<(Latent, Tensor)> {
            let path = server.jobs.files.latent(&stored.job.id);
            let waiting = server.jobs.latents.take(&stored.job.id);
            // A reload may have given the name to another model meanwhile.
            let waiting = waiting.filter(|latent| model.model.check(latent).is_ok());
            let mut latent = match waiting {
                Some(latent) => latent,
                None => model.model.open_latent(&path, stored.request.tensor.as_deref())?.read()?,
            };
            if stored.request.scaled {
                model.model.unscale(&mut latent, &model.path)?;
            }
            let tensor = model.model.tensor(&latent)?;
            Ok((latent, tensor))
        };
        let (latent, tensor) = read().map_err(|error| one_line(&error))?;
        Ok(Self { model, latent, tensor })
    }
}

/// The objective of a job: its own, or its route's.
pub fn objective(stored: &StoredJob, assignment: &Assignment) -> Objective {
    stored.request.objective.or(assignment.objective).unwrap_or(Objective::Balanced)
}

/// Decodes a job and writes its results.
pub fn execute(
    server: &ServerState,
    worker: &Worker,
    history: &mut Trials,
    stored: &StoredJob,
    input: &JobInput,
    decider: &mut Decider,
    observer: &mut JobObserver<'_>,
) -> JobOutcome {
    let failed = |end| JobOutcome { record: None, output: None, end: Err(end) };
    let (model, assignment) = (&input.model.model, decider.assignment());
    let compares = assignment.compare.is_some() && fits_buffer(stored);
    let (limit, objective) = (memory_limit(worker, stored, assignment), objective(stored, assignment));
    let job = match Decode::new(&worker.device.machine, model, &input.tensor, limit, objective) {
        Ok(job) => job,
        Err(error) => return failed(JobEnd::Failed(one_line(&error))),
    };
    let before = history.before(job.stage(), job.request());
    let job = job.with_history(&before);
    observer.request = Some(job.request().clone());
    let execution = Execution { server, stored };
    let mut delivery = match execution.begin(input, compares) {
        Ok(delivery) => delivery,
        Err(end) => return failed(end),
    };
    let done = delivery.done().to_vec();
    let decoded = tracing::info_span!("decode").in_scope(|| job.run(decider, observer, &mut delivery, &done));
    let Finished { record, .. } = match decoded {
        Ok(finished) => finished,
        Err(unfinished) => return execution.describe_unfinished(unfinished, observer),
    };
    let end = tracing::info_span!("write").in_scope(|| execution.finish(&mut delivery, &record));
    JobOutcome { record: Some(Box::new(record)), output: delivery.into_store(), end }
}

/// A job under way.
struct Execution<'a> {
    server: &'a ServerState,
    stored: &'a StoredJob,
}

impl Execution<'_> {
    fn describe_unfinished(&self, unfinished: Unfinished, observer: &JobObserver<'_>) -> JobOutcome {
        let end = match unfinished.error {
            tilewright_engine::Error::Interrupted => observer.stop().end(),
            error if error.is_lost_device() => JobEnd::LostDevice(one_line(&error)),
            error @ tilewright_engine::Error::Sink(_) => self.classify_write_error(&error),
            error => JobEnd::Failed(decode_line(&error)),
        };
        JobOutcome { record: unfinished.record, output: None, end: Err(end) }
    }

    /// The end of a job whose result could not be written. The job is done again if the disk was
    /// full; any other cause would be there again at the next try.
    fn classify_write_error(&self, error: &(dyn std::error::Error + 'static)) -> JobEnd {
        let mut line = one_line(error);
        if error.is::<io::Error>() {
            // The system's message does not name the file.
            line = format!("the result can't be written: {line}");
        }
        let causes = || std::iter::successors(Some(error), |error| error.source());
        let is_any =
            |is: fn(&io::Error) -> bool| causes().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is));
        if is_any(is_full) {
            self.server.disk.note(true, line.clone());
            return JobEnd::Unwritten(line);
        }
        if is_any(|error: &io::Error| error.kind() == io::ErrorKind::FileTooLarge) {
            let advice = "no file may be that large on the server: ask for a smaller format, or send less at once";
            return JobEnd::Failed(format!("{line}: {advice}"));
        }
        // An encoder in another process reports a full disk in its own words, so the disk is
        // probed.
        match self.server.disk.probe(&self.server.jobs.files.job_folder(&self.stored.job.id)) {
            Err(error) if is_full(&error) => JobEnd::Unwritten(line),
            _ => JobEnd::Failed(line),
        }
    }

    /// Begins the output of a job.
    fn begin(&self, JobInput { model, latent, .. }: &JobInput, compares: bool) -> Result<Delivery, JobEnd> {
        let name = format!("result.{}", self.stored.job.format.ending());
        self.server.disk.step().map_err(|error| self.classify_write_error(&error))?;
        let path = self.server.jobs.files.job_folder(&self.stored.job.id).join(name);
        let output = Output::new(&path, model.model.kind()).map_err(|error| match error {
            tilewright_media::Error::Folder { cause, .. } => self.classify_write_error(&cause),
            error => JobEnd::Failed(one_line(&error)),
        })?;
        let rate = rate(self.stored.request.fps.as_deref(), &model.model.facts().family).map_err(JobEnd::Failed)?;
        let rate = model.model.is_video().then_some(rate);
        let mut delivery = Delivery::new(&output, model.model.shape(latent), rate, texts(latent)).with_store(compares);
        delivery.begin(&mut |_| {}).map_err(|error| self.classify_write_error(&error))?;
        Ok(delivery)
    }

    /// Gives the results their names.
    fn finish(&self, delivery: &mut Delivery, record: &Record) -> Result<Vec<JobResult>, JobEnd> {
        let files = delivery.finish(record, &mut |_| {}).map_err(|error| self.classify_write_error(&error))?;
        self.sync_results(&files)
    }

    /// Syncs the results before any caller sees them, so that they survive a power failure.
    fn sync_results(&self, files: &[PathBuf]) -> Result<Vec<JobResult>, JobEnd> {
        self.server
            .jobs
            .files
            .sync_results(&self.stored.job.id, files)
            .map_err(|error| self.classify_write_error(&error))?;
        let content_type = self.stored.job.format.content_type();
        let results = files.iter().enumerate().map(|(sample, path)| {
            let found = fs::metadata(path);
            let bytes = found
                .map_err(|error| JobEnd::Failed(format!("the result's file is missing after it was written: {error}")))?
                .len();
            Ok(JobResult { sample: sample as u32, bytes, content_type: content_type.into() })
        });
        results.collect()
    }
}
