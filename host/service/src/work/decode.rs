//! The decode of pictures and clips, from a job's latent to its results.

use std::sync::Arc;

use tch::Tensor;
use tilewright_engine::Finished;
use tilewright_media::Output;
use tilewright_models::Latent;
use tilewright_pipeline::{Decode, Delivery, FrameStore, Trials, texts};
use tilewright_plan::{Record, Vae};
use tilewright_rollout::{Decider, Revision, UntrackedPlanner};
use tilewright_service_api::JobResult;
use tilewright_torch::{psnr, scalar};

use super::{
    JobEnd,
    executed::{Executed, Execution, JobOutcome, Turn},
    observer::{CancelOnly, JobObserver},
};
use crate::{
    accept::rate,
    error::one_line,
    jobs::{StoredJob, inputs::Input},
    models::OpenVae,
};

/// The most bytes of frames that are held to compare; larger clips are not compared.
const MOST_HELD: u64 = 2 << 30;

/// The autoencoder and latent of a decode.
pub struct DecodeInput {
    vae: Arc<OpenVae>,
    latent: Latent,
    /// The latent's values, unscaled, in the shape that the model takes.
    tensor: Tensor,
}

impl Executed for Vae {
    type Work = Self;
    type Input = DecodeInput;
    type Output = FrameStore;

    const NAME: &'static str = "decode";

    /// The latent of a job in its model's own space: as it was read when the job was accepted, or
    /// read again after a restart. A model may have lost its autoencoder by a reload.
    fn read(Turn { server, model, .. }: Turn<'_>, stored: &StoredJob) -> Result<DecodeInput, String> {
        let vae = model.vae.clone().ok_or_else(|| format!("model {} no longer has a vae", model.name))?;
        let read = || -> tilewright_pipeline::Result<(Latent, Tensor)> {
            let path = server.jobs.files.input(&stored.job.id, Input::Latent);
            let waiting = server.jobs.latents.take(&stored.job.id);
            // A reload may have given the name to another model meanwhile.
            let waiting = waiting.filter(|latent| vae.model.check(latent).is_ok());
            let mut latent = match waiting {
                Some(latent) => latent,
                None => vae.model.open_latent(&path, stored.request.tensor.as_deref())?.read()?,
            };
            if stored.request.scaled {
                vae.model.unscale(&mut latent, &vae.path)?;
            }
            let tensor = vae.model.tensor(&latent)?;
            Ok((latent, tensor))
        };
        let (latent, tensor) = read().map_err(|error| one_line(&error))?;
        Ok(DecodeInput { vae, latent, tensor })
    }

    fn execute<'a>(
        execution: Execution<'a>,
        history: &mut Trials,
        input: &'a DecodeInput,
        decider: &mut Decider,
        observer: &mut JobObserver<'a, Vae>,
    ) -> Result<JobOutcome<Vae>, JobOutcome<Vae>> {
        let compares = execution.assignment.compare.is_some() && fits_buffer(execution.stored);
        let job = execution.decode_job(input).map_err(JobEnd::Failed)?;
        let job = job.with_trials(history);
        observer.request = Some(job.request().clone());
        let mut delivery = execution.begin(input, compares)?;
        let done = delivery.done().to_vec();
        let decoded = tracing::info_span!("decode").in_scope(|| job.run(decider, observer, &mut delivery, &done));
        let Finished { record, .. } =
            decoded.map_err(|unfinished| execution.describe_unfinished::<Self>(unfinished))?;
        let end = tracing::info_span!("write").in_scope(|| execution.finish(&mut delivery, &record));
        Ok(JobOutcome { record: Some(Box::new(record)), output: delivery.into_store(), end })
    }

    fn compare(
        execution: Execution<'_>,
        input: &DecodeInput,
        incumbent: &Arc<Revision>,
        canarys: &FrameStore,
    ) -> Result<(Record, f64), String> {
        let job = execution.decode_job(input)?;
        let mut incumbents = FrameStore::new(true);
        let done = vec![0; execution.stored.job.batch as usize];
        let mut planner = UntrackedPlanner::new(incumbent);
        let finished = job.run(&mut planner, &mut CancelOnly(execution.stop), &mut incumbents, &done);
        let record = finished.map_err(|unfinished| one_line(&unfinished.error))?.record;
        let compared = || -> tilewright_pipeline::Result<f64> {
            let shown = |store: &FrameStore| scalar::clamp(&store.tensor()?, -1.0, 1.0).map_err(Into::into);
            let [canarys, incumbents]: [tilewright_pipeline::Result<Tensor>; 2] = [canarys, &incumbents].map(shown);
            // The values span −1…1.
            Ok(psnr::over(&canarys?, &incumbents?, 2.0)?)
        };
        Ok((record, compared().map_err(|error| one_line(&error))?))
    }
}

/// True if a job's output is small enough to be held.
fn fits_buffer(stored: &StoredJob) -> bool {
    let job = &stored.job;
    let sides = [job.batch, job.frames, job.height, job.width].map(u64::from);
    // Two outputs, three or four channels, four bytes each.
    sides.iter().product::<u64>().saturating_mul(2 * 4 * 4) <= MOST_HELD
}

impl<'a> Execution<'a> {
    /// The decode that the job asks for.
    fn decode_job(&self, input: &'a DecodeInput) -> Result<Decode<'a>, String> {
        let (machine, limit) = (&self.turn.device.machine, self.memory_limit());
        let job = Decode::new(machine, &input.vae.model, &input.tensor, limit, self.objective());
        Ok(job.map_err(|error| one_line(&error))?.allowing_blended(self.allows_blended()))
    }

    /// Begins the output of a decode.
    fn begin(&self, DecodeInput { vae, latent, .. }: &DecodeInput, compares: bool) -> Result<Delivery, JobEnd> {
        let path = self.output()?;
        let model = &vae.model;
        let output = Output::new(&path, model.kind()).map_err(|error| match error {
            tilewright_media::Error::Folder { cause, .. } => self.classify_write_error(&cause),
            error => JobEnd::Failed(one_line(&error)),
        })?;
        let rate = rate(self.stored.request.fps.as_deref(), &model.facts().family).map_err(JobEnd::Failed)?;
        let rate = model.is_video().then_some(rate);
        let mut delivery = Delivery::new(&output, model.shape(latent), rate, texts(latent)).with_store(compares);
        delivery.begin(&mut |_| {}).map_err(|error| self.classify_write_error(&error))?;
        Ok(delivery)
    }

    /// Gives the results of a decode their names.
    fn finish(&self, delivery: &mut Delivery, record: &Record) -> Result<Vec<JobResult>, JobEnd> {
        let files = delivery.finish(record, &mut |_| {}).map_err(|error| self.classify_write_error(&error))?;
        self.sync_results(&files)
    }
}
