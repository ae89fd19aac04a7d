//! The decode of pictures and clips, from a job's latent to its results.

use std::{fs, io, path::PathBuf};

use tch::Tensor;
use tilewright_decode::{Model, RECORD_KEYWORD, frame, frames, texts};
use tilewright_engine::{ClipJob, DecodeJob, Finished, Sink, Unfinished};
use tilewright_media::{ClipWriter, Kind, Output};
use tilewright_models::Latent;
use tilewright_plan::{Objective, Record};
use tilewright_rollout::{Assignment, Decider, is_full};
use tilewright_service_api::JobResult;

use super::{
    JobEnd, JobHistory, JobOutcome, memory_limit,
    observer::JobObserver,
    quality::{FrameBuffer, fits_buffer},
};
use crate::{
    accept::{rate, shape},
    device::Worker,
    error::{decode_line, one_line},
    jobs::StoredJob,
    models::OpenModel,
    state::ServerState,
};

/// The model and latent of a job.
pub struct JobInput {
    pub model: std::sync::Arc<OpenModel>,
    pub latent: Latent,
}

/// Reads a job's latent, in its model's own space.
pub fn read_input(server: &ServerState, stored: &StoredJob) -> Result<JobInput, String> {
    let gone = || format!("model {} is no longer configured", stored.job.model);
    let model = server.models.by_name().get(&stored.job.model).cloned().ok_or_else(gone)?;
    let path = server.jobs.files.latent(&stored.job.id);
    let mut latent = Latent::read(&path, stored.request.tensor.as_deref()).map_err(|error| one_line(&error))?;
    model.model.check(&latent).map_err(|error| one_line(&error))?;
    if stored.request.scaled {
        model.model.unscale(&mut latent, &model.path).map_err(|error| one_line(&error))?;
    }
    Ok(JobInput { model, latent })
}

/// The objective of a job: its own, or its route's.
pub fn objective(stored: &StoredJob, assignment: &Assignment) -> Objective {
    stored.request.objective.or(assignment.objective).unwrap_or(Objective::Balanced)
}

/// Decodes a job and writes its results.
pub fn execute(
    server: &ServerState,
    worker: &Worker,
    history: &mut JobHistory,
    stored: &StoredJob,
    decider: &mut Decider,
    observer: &mut JobObserver<'_>,
) -> JobOutcome {
    let JobInput { model, latent } = match read_input(server, stored) {
        Ok(input) => input,
        Err(error) => return failure(error),
    };
    let compares = decider.assignment().compare.is_some() && fits_buffer(stored);
    let limit = memory_limit(worker, stored, decider.assignment());
    let objective = objective(stored, decider.assignment());
    let execution = Execution { server, stored, model: &model.model, latent: &latent, compares };
    match &model.model {
        Model::Picture(vae) => {
            let pictures = match latent.pictures() {
                Ok(pictures) => pictures,
                Err(error) => return failure(one_line(&error)),
            };
            match DecodeJob::new(&worker.device.machine, vae, &pictures, limit, objective) {
                Ok(job) => {
                    let before = history.before(job.stage(), job.request());
                    execution.decode_picture(&job.with_history(&before), decider, observer)
                }
                Err(error) => failure(one_line(&error)),
            }
        }
        Model::Clip(vae) => match ClipJob::new(&worker.device.machine, vae, &latent.values, limit, objective) {
            Ok(job) => {
                let before = history.before(job.stage(), job.request());
                execution.decode_clip(&job.with_history(&before), decider, observer)
            }
            Err(error) => failure(one_line(&error)),
        },
    }
}

fn failure(error: String) -> JobOutcome {
    JobOutcome { record: None, output: None, end: Err(JobEnd::Failed(error)) }
}

/// A job under way, and the parts that its results are made from.
struct Execution<'a> {
    server: &'a ServerState,
    stored: &'a StoredJob,
    model: &'a Model,
    latent: &'a Latent,
    /// True if the output is held, to be compared.
    compares: bool,
}

impl Execution<'_> {
    fn describe_unfinished(&self, unfinished: Unfinished, observer: &JobObserver<'_>) -> JobOutcome {
        let end = match unfinished.error {
            tilewright_engine::Error::Interrupted => observer.stop().end(),
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

    fn decode_picture(&self, job: &DecodeJob<'_>, decider: &mut Decider, observer: &mut JobObserver<'_>) -> JobOutcome {
        observer.request = Some(job.request().clone());
        let finished = tracing::info_span!("decode").in_scope(|| job.run(decider, observer));
        let Finished { output: pictures, record, .. } = match finished {
            Ok(finished) => finished,
            Err(unfinished) => return self.describe_unfinished(unfinished, observer),
        };
        let written = tracing::info_span!("write").in_scope(|| self.write_pictures(&pictures, &record));
        let output = self.compares.then_some(pictures);
        JobOutcome { record: Some(Box::new(record)), output, end: written }
    }

    fn decode_clip(&self, job: &ClipJob<'_>, decider: &mut Decider, observer: &mut JobObserver<'_>) -> JobOutcome {
        observer.request = Some(job.request().clone());
        let mut delivery = match self.begin_clip() {
            Ok(delivery) => delivery,
            Err(end) => return JobOutcome { record: None, output: None, end: Err(end) },
        };
        let none_done = vec![0; self.stored.job.batch as usize];
        let finished = tracing::info_span!("decode").in_scope(|| job.run(decider, observer, &mut delivery, &none_done));
        let record = match finished {
            Ok(finished) => Some(Box::new(finished.record)),
            Err(unfinished) => return self.describe_unfinished(unfinished, observer),
        };
        let FrameDelivery { writer, buffer } = delivery;
        let written = writer
            .finish()
            .map_err(|error| self.classify_write_error(&error))
            .and_then(|files| self.sync_results(&files));
        JobOutcome { record, output: buffer.and_then(|buffer| buffer.all().ok()), end: written }
    }

    fn output(&self, kind: Kind) -> Result<Output, JobEnd> {
        let name = format!("result.{}", self.stored.job.format.ending());
        self.server.disk.step().map_err(|error| self.classify_write_error(&error))?;
        Output::new(&self.server.jobs.files.job_folder(&self.stored.job.id).join(name), kind).map_err(|error| {
            match error {
                tilewright_media::Error::Folder { cause, .. } => self.classify_write_error(&cause),
                error => JobEnd::Failed(one_line(&error)),
            }
        })
    }

    fn write_pictures(&self, pictures: &Tensor, record: &Record) -> Result<Vec<JobResult>, JobEnd> {
        let output = self.output(Kind::Picture)?;
        let mut texts = texts(self.latent);
        let record = serde_json::to_string(record).map_err(|error| JobEnd::Failed(error.to_string()))?;
        texts.push((RECORD_KEYWORD.into(), record));
        let frames = frames(pictures).map_err(|error| JobEnd::Failed(one_line(&error)))?;
        self.sync_results(&output.write(&frames, &texts).map_err(|error| self.classify_write_error(&error))?)
    }

    fn begin_clip(&self) -> Result<FrameDelivery, JobEnd> {
        let output = self.output(Kind::Clip)?;
        let rate = rate(self.stored.request.fps.as_deref(), &self.model.facts().family).map_err(JobEnd::Failed)?;
        let writer = ClipWriter::begin(&output, shape(&self.model.size(self.latent)), rate, &texts(self.latent));
        let writer = writer.map_err(|error| self.classify_write_error(&error))?;
        Ok(FrameDelivery { writer, buffer: self.compares.then(FrameBuffer::default) })
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
            let bytes =
                found.map_err(|error| JobEnd::Failed(format!("the result can't be found again: {error}")))?.len();
            Ok(JobResult { sample: sample as u32, bytes, content_type: content_type.into() })
        });
        results.collect()
    }
}

/// Frames on their way into the output.
struct FrameDelivery {
    writer: ClipWriter,
    buffer: Option<FrameBuffer>,
}

impl Sink for FrameDelivery {
    fn frames(
        &mut self,
        sample: u32,
        first: u32,
        frames: &Tensor,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for index in 0..frames.size()[0] {
            let frame = frame(&frames.f_get(index)?)?;
            self.writer.frame(sample as usize, first as usize + index as usize, &frame)?;
        }
        match &mut self.buffer {
            Some(buffer) => buffer.frames(sample, first, frames),
            None => Ok(()),
        }
    }
}
