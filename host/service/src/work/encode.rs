//! The encode of a picture or clip, from a job's file to its latent.

use std::{path::PathBuf, sync::Arc};

use tch::Tensor;
use tilewright_engine::Finished;
use tilewright_media::read_texts;
use tilewright_pipeline::{
    Encode, EncodeInput, EncodeSource, Encoded, LatentOutput, Trials, check_scaling, without_file_texts,
};
use tilewright_plan::{Planner, Record, Vae};
use tilewright_rollout::{Decider, Revision, UntrackedPlanner};
use tilewright_service_api::JobResult;
use tilewright_torch::psnr;

use super::{
    JobEnd,
    executed::{Executed, Execution, JobOutcome, Turn},
    observer::{CancelOnly, JobObserver},
};
use crate::{
    accept::{IMAGE, of_image},
    error::one_line,
    jobs::{StoredJob, inputs::Input},
    models::OpenVae,
};

/// The encode that a job is.
pub struct EncodeWork;

/// The autoencoder of an encode, and its picture's or clip's file.
pub struct EncodeFile {
    vae: Arc<OpenVae>,
    path: PathBuf,
}

impl EncodeFile {
    fn open(&self, stored: &StoredJob) -> tilewright_pipeline::Result<(EncodeSource, EncodeInput)> {
        let most = stored.request.encode.as_ref().and_then(|fields| fields.frames);
        let mut source = EncodeSource::open(&self.path, most)?;
        let input = EncodeInput::of(&self.vae.model, &mut source, IMAGE, &mut |_| {})?;
        Ok((source, input))
    }
}

impl Executed for EncodeWork {
    type Work = Vae;
    type Input = EncodeFile;
    type Output = Tensor;

    const NAME: &'static str = "encode";

    fn read(Turn { server, model, .. }: Turn<'_>, stored: &StoredJob) -> Result<EncodeFile, String> {
        let vae = model.vae.clone().ok_or_else(|| format!("model {} no longer has a vae", model.name))?;
        Ok(EncodeFile { vae, path: server.jobs.files.input(&stored.job.id, Input::Image) })
    }

    fn execute<'a>(
        execution: Execution<'a>,
        history: &mut Trials,
        file: &'a EncodeFile,
        decider: &mut Decider,
        observer: &mut JobObserver<'a, Vae>,
    ) -> Result<JobOutcome<Self>, JobOutcome<Self>> {
        let opened = file.open(execution.stored);
        let (mut source, input) = opened.map_err(|error| JobEnd::Failed(of_image(&error, &file.path)))?;
        let job = execution.encode_job(&file.vae, &input).map_err(JobEnd::Failed)?.with_trials(history);
        observer.request = Some(job.request().clone());
        let encoded = tracing::info_span!("encode").in_scope(|| job.run(decider, observer, &mut source));
        let encoded = encoded.map_err(|unfinished| execution.describe_unfinished::<Self>(unfinished))?;
        let end = tracing::info_span!("write").in_scope(|| execution.finish_encode(file, &encoded));
        let Finished { output, record, .. } = encoded;
        let compares = execution.assignment.compare.is_some();
        Ok(JobOutcome { record: Some(Box::new(record)), output: compares.then_some(output.latents), end })
    }

    fn compare(
        execution: Execution<'_>,
        file: &EncodeFile,
        incumbent: &Arc<Revision>,
        canarys: &Tensor,
    ) -> Result<(Record, f64), String> {
        let (mut source, input) = file.open(execution.stored).map_err(|error| of_image(&error, &file.path))?;
        let job = execution.encode_job(&file.vae, &input)?;
        let planner: &mut dyn Planner = &mut UntrackedPlanner::new(incumbent);
        let encoded = job.run(planner, &mut CancelOnly(execution.stop), &mut source);
        let Finished { output, record, .. } = encoded.map_err(|unfinished| one_line(&unfinished.error))?;
        Ok((record, psnr::over_span(canarys, &output.latents).map_err(|error| one_line(&error))?))
    }
}

impl<'a> Execution<'a> {
    /// The encode of an input within the job's limits.
    pub fn encode_job<'i>(&self, vae: &'i OpenVae, input: &'i EncodeInput) -> Result<Encode<'i>, String>
    where
        'a: 'i,
    {
        let (machine, limit) = (&self.turn.device.machine, self.memory_limit());
        let job = Encode::new(machine, &vae.model, input, limit, self.objective());
        Ok(job.map_err(|error| one_line(&error))?.allowing_blended(self.allows_blended()))
    }

    /// Writes the latent of an encode, with the texts that the picture carries.
    fn finish_encode(&self, file: &EncodeFile, encoded: &Finished<Encoded>) -> Result<Vec<JobResult>, JobEnd> {
        let unwritten = |error: tilewright_pipeline::Error| self.classify_write_error(&error);
        let output = LatentOutput::new(&self.output()?, None, false, false).map_err(unwritten)?;
        let model = &file.vae.model;
        let write = || {
            let texts = without_file_texts(read_texts(&file.path));
            let latents = &encoded.output.latents;
            if !self.stored.request.scaled {
                return output.write(latents, &texts, &encoded.record);
            }
            let scaling = check_scaling(model.scaling(), model.is_video(), &file.vae.path)?;
            output.write(&scaling.apply(latents)?, &texts, &encoded.record)
        };
        self.sync_results(&[write().map_err(unwritten)?])
    }
}
