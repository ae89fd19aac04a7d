//! The decode itself, of pictures and of clips, from a job's latent to its results.

use std::{fs, io, path::PathBuf};

use tch::Tensor;
use tilewright_decode::{Model, RECORD_KEYWORD, frame, frames, texts};
use tilewright_engine::{ClipJob, DecodeJob, Finished, Sink, Unfinished};
use tilewright_media::{ClipWriter, Kind, Output};
use tilewright_models::Latent;
use tilewright_plan::{Objective, Record};
use tilewright_rollout::{Assignment, Decider, is_full};

use super::{
    End, Outcome, Trials, memory_limit,
    observer::Observing,
    quality::{Held, is_held},
};
use crate::{
    accept::{rate, shape},
    device::Worker,
    error::{decode_line, one_line},
    house::House,
    jobs::{JobResult, Kept},
    models::Opened,
};

/// What a job is decoded from.
pub struct Input {
    pub model: std::sync::Arc<Opened>,
    pub latent: Latent,
}

/// Reads a job's latent, in its model's own space.
pub fn input(house: &House, kept: &Kept) -> Result<Input, String> {
    let gone = || format!("model {} is no longer configured", kept.job.model);
    let model = house.models.load().get(&kept.job.model).cloned().ok_or_else(gone)?;
    let path = house.files.latent(&kept.job.id);
    let mut latent = Latent::read(&path, kept.request.tensor.as_deref()).map_err(|error| one_line(&error))?;
    model.model.check(&latent).map_err(|error| one_line(&error))?;
    if kept.request.scaled {
        model.model.unscale(&mut latent, &model.path).map_err(|error| one_line(&error))?;
    }
    Ok(Input { model, latent })
}

/// What matters most: what the job says, or its route.
pub fn objective(kept: &Kept, assignment: &Assignment) -> Objective {
    kept.request.objective.or(assignment.objective).unwrap_or(Objective::Balanced)
}

/// Decodes a job and writes its results.
pub fn decoded(
    house: &House,
    worker: &Worker,
    history: &mut Trials,
    kept: &Kept,
    decider: &mut Decider,
    observing: &mut Observing<'_>,
) -> Outcome {
    let Input { model, latent } = match input(house, kept) {
        Ok(input) => input,
        Err(error) => return failed(error),
    };
    let compares = decider.assignment().compare.is_some() && is_held(kept);
    let limit = memory_limit(worker, kept, decider.assignment());
    let objective = objective(kept, decider.assignment());
    let work = Work { house, kept, model: &model.model, latent: &latent, compares };
    match &model.model {
        Model::Picture(vae) => {
            let pictures = match latent.pictures() {
                Ok(pictures) => pictures,
                Err(error) => return failed(one_line(&error)),
            };
            match DecodeJob::new(&worker.device.machine, vae, &pictures, limit, objective) {
                Ok(job) => {
                    let before = history.before(job.stage(), job.request());
                    work.picture(&job.with_history(&before), decider, observing)
                }
                Err(error) => failed(one_line(&error)),
            }
        }
        Model::Clip(vae) => match ClipJob::new(&worker.device.machine, vae, &latent.values, limit, objective) {
            Ok(job) => {
                let before = history.before(job.stage(), job.request());
                work.clip(&job.with_history(&before), decider, observing)
            }
            Err(error) => failed(one_line(&error)),
        },
    }
}

fn failed(error: String) -> Outcome {
    Outcome { record: None, output: None, end: Err(End::Failed(error)) }
}

/// A job and what its results are made from.
struct Work<'a> {
    house: &'a House,
    kept: &'a Kept,
    model: &'a Model,
    latent: &'a Latent,
    /// The output is held, to be compared.
    compares: bool,
}

impl Work<'_> {
    fn given_up(&self, unfinished: Unfinished, observing: &Observing<'_>) -> Outcome {
        let end = match unfinished.error {
            tilewright_engine::Error::Interrupted => observing.why().end(),
            error @ tilewright_engine::Error::Sink(_) => self.unwritten(&error),
            error => End::Failed(decode_line(&error)),
        };
        Outcome { record: unfinished.record, output: None, end: Err(end) }
    }

    /// The end of a job whose result could not be written; the job is done again if there was no
    /// room. Whatever else is the cause would be there again at the next try.
    fn unwritten(&self, error: &(dyn std::error::Error + 'static)) -> End {
        let mut line = one_line(error);
        if error.is::<io::Error>() {
            // The system's reason alone does not say of what.
            line = format!("the result can't be written: {line}");
        }
        let causes = || std::iter::successors(Some(error), |error| error.source());
        let is_any =
            |is: fn(&io::Error) -> bool| causes().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is));
        if is_any(is_full) {
            self.house.disk.note(true, line.clone());
            return End::Unwritten(line);
        }
        if is_any(|error: &io::Error| error.kind() == io::ErrorKind::FileTooLarge) {
            let advice = "no file may be that large on the server: ask for a smaller format, or send less at once";
            return End::Failed(format!("{line}: {advice}"));
        }
        // An encoder in another process reports a full disk in its own words, so the disk is probed.
        match self.house.disk.probe(&self.house.files.of(&self.kept.job.id)) {
            Err(error) if is_full(&error) => End::Unwritten(line),
            _ => End::Failed(line),
        }
    }

    fn picture(&self, job: &DecodeJob<'_>, decider: &mut Decider, observing: &mut Observing<'_>) -> Outcome {
        observing.request = Some(job.request().clone());
        let finished = tracing::info_span!("decode").in_scope(|| job.run(decider, observing));
        let Finished { output: pictures, record, .. } = match finished {
            Ok(finished) => finished,
            Err(unfinished) => return self.given_up(unfinished, observing),
        };
        let written = tracing::info_span!("write").in_scope(|| self.write(&pictures, &record));
        let output = self.compares.then_some(pictures);
        Outcome { record: Some(Box::new(record)), output, end: written }
    }

    fn clip(&self, job: &ClipJob<'_>, decider: &mut Decider, observing: &mut Observing<'_>) -> Outcome {
        observing.request = Some(job.request().clone());
        let mut delivery = match self.begin() {
            Ok(delivery) => delivery,
            Err(end) => return Outcome { record: None, output: None, end: Err(end) },
        };
        let none_done = vec![0; self.kept.job.batch as usize];
        let finished =
            tracing::info_span!("decode").in_scope(|| job.run(decider, observing, &mut delivery, &none_done));
        let record = match finished {
            Ok(finished) => Some(Box::new(finished.record)),
            Err(unfinished) => return self.given_up(unfinished, observing),
        };
        let Delivery { writer, held } = delivery;
        let written = writer.finish().map_err(|error| self.unwritten(&error)).and_then(|files| self.results(&files));
        Outcome { record, output: held.and_then(|held| held.all().ok()), end: written }
    }

    fn output(&self, kind: Kind) -> Result<Output, End> {
        let name = format!("result.{}", self.kept.job.format.ending());
        self.house.disk.step().map_err(|error| self.unwritten(&error))?;
        Output::new(&self.house.files.of(&self.kept.job.id).join(name), kind).map_err(|error| match error {
            tilewright_media::Error::Folder { cause, .. } => self.unwritten(&cause),
            error => End::Failed(one_line(&error)),
        })
    }

    fn write(&self, pictures: &Tensor, record: &Record) -> Result<Vec<JobResult>, End> {
        let output = self.output(Kind::Picture)?;
        let mut texts = texts(self.latent);
        let record = serde_json::to_string(record).map_err(|error| End::Failed(error.to_string()))?;
        texts.push((RECORD_KEYWORD.into(), record));
        let frames = frames(pictures).map_err(|error| End::Failed(one_line(&error)))?;
        self.results(&output.write(&frames, &texts).map_err(|error| self.unwritten(&error))?)
    }

    fn begin(&self) -> Result<Delivery, End> {
        let output = self.output(Kind::Clip)?;
        let rate = rate(self.kept.request.fps.as_deref(), &self.model.facts().family).map_err(End::Failed)?;
        let writer = ClipWriter::begin(&output, shape(&self.model.size(self.latent)), rate, &texts(self.latent));
        let writer = writer.map_err(|error| self.unwritten(&error))?;
        Ok(Delivery { writer, held: self.compares.then(Held::default) })
    }

    /// The results, synced before anybody is told of them, so that they survive a power failure.
    fn results(&self, files: &[PathBuf]) -> Result<Vec<JobResult>, End> {
        self.house.files.sync_results(&self.kept.job.id, files).map_err(|error| self.unwritten(&error))?;
        let content_type = self.kept.job.format.content_type();
        let results = files.iter().enumerate().map(|(sample, path)| {
            let found = fs::metadata(path);
            let bytes = found.map_err(|error| End::Failed(format!("the result can't be found again: {error}")))?.len();
            Ok(JobResult { sample: sample as u32, bytes, content_type: content_type.into() })
        });
        results.collect()
    }
}

/// Frames on their way into the output.
struct Delivery {
    writer: ClipWriter,
    held: Option<Held>,
}

impl Sink for Delivery {
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
        match &mut self.held {
            Some(held) => held.frames(sample, first, frames),
            None => Ok(()),
        }
    }
}
