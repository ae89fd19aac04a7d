//! Sampling, from a job's conditioning and noise to a latent. Each finished step is kept, so that
//! the job goes on from it after an end of the server.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use tilewright_engine::{Begun, DenoiseJob, Finished, Sampled, Sampling};
use tilewright_media::{Preview, Texts};
use tilewright_pipeline::{Description, KeptSample, LatentKind, LatentOutput, SampleModel, SampleRequest, Trials};
use tilewright_plan::{Denoise, Record};
use tilewright_rollout::{Decider, Revision, UntrackedPlanner};
use tilewright_service_api::{JobResult, JobStage};
use tilewright_torch::psnr;

use super::{
    JobEnd,
    executed::{Executed, Execution, JobOutcome, Turn},
    observer::{CancelOnly, JobObserver, Previewing},
};
use crate::{
    accept,
    error::one_line,
    jobs::{StoredJob, inputs::Input},
    state::ServerState,
};

/// The files of a sample, read, and the request that they were prepared from.
pub struct SampleInput {
    request: SampleRequest,
    sampling: Sampling,
}

impl<'a> Turn<'a> {
    fn transformer(self) -> Result<&'a SampleModel, String> {
        let Turn { model, .. } = self;
        model.transformer.as_ref().ok_or_else(|| format!("model {} no longer has a transformer", model.name))
    }
}

/// The file that a sample reads. The latent of a prompt's is that of its picture.
fn place_of(server: &ServerState, stored: &StoredJob, input: Input) -> PathBuf {
    match (stored.job.stage, input) {
        (JobStage::Generate, Input::Latent) => server.jobs.files.start(&stored.job.id),
        _ => server.jobs.files.input(&stored.job.id, input),
    }
}

impl Executed for Denoise {
    type Work = Self;
    type Input = SampleInput;
    type Output = tch::Tensor;

    const NAME: &'static str = "sampling";

    fn read(turn: Turn<'_>, stored: &StoredJob) -> Result<SampleInput, String> {
        let transformer = turn.transformer()?;
        let path = |input: Input| Some(place_of(turn.server, stored, input)).filter(|path| path.is_file());
        let mut fields = accept::fields_of(&stored.request, stored.job.request.as_deref(), transformer)?;
        if stored.job.stage == JobStage::Generate && path(Input::Latent).is_some() {
            fields = accept::from_latent(fields);
        }
        let request = accept::sample_request(transformer, &fields, path)?;
        let sampling = transformer.prepare(&request).map_err(|error| accept::describe(&error, turn.model, path))?;
        Ok(SampleInput { request, sampling })
    }

    fn execute<'a>(
        execution: Execution<'a>,
        history: &mut Trials,
        input: &'a SampleInput,
        decider: &mut Decider<Self>,
        observer: &mut JobObserver<'a, Self>,
    ) -> Result<JobOutcome<Self>, JobOutcome<Self>> {
        let transformer = execution.turn.transformer().map_err(JobEnd::Failed)?;
        let job = execution.sample_job(input).map_err(JobEnd::Failed)?;
        let job = history.remind(job);
        observer.request = Some(job.request().clone());
        let (output, kept, begun) = execution.begin_sample(transformer, &input.sampling)?;
        observer.kept = kept;
        observer.previewing = execution.preview();
        let sampled = tracing::info_span!("sample").in_scope(|| job.run(decider, begun, observer));
        let sampled = sampled.map_err(|unfinished| execution.describe_unfinished::<Self>(unfinished))?;
        let end =
            tracing::info_span!("write").in_scope(|| execution.finish_sample(transformer, input, &output, &sampled));
        let Finished { output, record, .. } = sampled;
        let compares = execution.assignment.compare.is_some();
        Ok(JobOutcome { record: Some(Box::new(record)), output: compares.then_some(output.latents), end })
    }

    fn compare(
        execution: Execution<'_>,
        input: &SampleInput,
        incumbent: &Arc<Revision>,
        canarys: &tch::Tensor,
    ) -> Result<(Record<Self>, f64), String> {
        let job = execution.sample_job(input)?;
        let mut planner = UntrackedPlanner::new(incumbent);
        let sampled = job.run(&mut planner, None, &mut CancelOnly(execution.stop));
        let Finished { output, record, .. } = sampled.map_err(|unfinished| one_line(&unfinished.error))?;
        Ok((record, psnr::over_span(canarys, &output.latents).map_err(|error| one_line(&error))?))
    }
}

/// The place of a sample's result, that of its steps, and the step that was kept there.
type BegunSample = (LatentOutput, Option<KeptSample>, Option<Begun>);

impl<'a> Execution<'a> {
    /// The sample that the job asks for.
    fn sample_job(&self, input: &'a SampleInput) -> Result<DenoiseJob<'a>, String> {
        let (machine, limit) = (&self.turn.device.machine, self.memory_limit().bytes);
        let denoiser = &self.turn.transformer()?.denoiser;
        let job = DenoiseJob::new(machine, denoiser, &input.sampling, limit, self.objective());
        job.map_err(|error| one_line(&error))
    }

    /// Finds the places of a sample's result and steps. A kept step of other weights or files is
    /// dropped: a reload may have changed the model.
    fn begin_sample(&self, transformer: &SampleModel, sampling: &Sampling) -> Result<BegunSample, JobEnd> {
        let unwritten = |error: tilewright_pipeline::Error| self.classify_write_error(&error);
        // The latent of a prompt is the input of its decode.
        let (path, kind) = match self.stored.job.stage {
            JobStage::Generate => {
                (self.turn.server.jobs.files.input(&self.stored.job.id, Input::Latent), Some(LatentKind::Safetensors))
            }
            JobStage::Decode | JobStage::Encode | JobStage::Denoise => (self.output()?, None),
        };
        let output = LatentOutput::new(&path, kind, false, false).map_err(unwritten)?;
        // Reused outputs are not kept: from a step in the middle, the bits would be others.
        if sampling.reuse.is_some() {
            return Ok((output, None, None));
        }
        let fingerprint = transformer.fingerprint(sampling, &[]).map_err(unwritten)?;
        let opened = KeptSample::open(&path, &fingerprint).or_else(|error| {
            tracing::warn!(error = one_line(&error), "the steps that were kept can't be gone on from");
            let _ = fs::remove_dir_all(KeptSample::folder_of(&path));
            KeptSample::open(&path, &fingerprint)
        });
        let (kept, begun) = opened.map_err(unwritten)?;
        Ok((output, Some(kept), begun))
    }

    /// The preview of a sample that asks for one.
    fn preview(&self) -> Option<Previewing<'a>> {
        self.stored.request.sample.as_ref().filter(|fields| fields.preview)?;
        let colours = self.turn.model.colours(&self.turn.device.machine, self.turn.device.memory_limit)?;
        let preview = Preview::new(&self.turn.server.jobs.files.preview(&self.stored.job.id)).ok()?;
        Some(Previewing { colours, preview })
    }

    /// Writes the latent. That of a prompt has the texts that its picture or clip is to carry.
    fn finish_sample(
        &self,
        transformer: &SampleModel,
        input: &SampleInput,
        output: &LatentOutput,
        sampled: &Finished<Sampled, Denoise>,
    ) -> Result<Vec<JobResult>, JobEnd> {
        let texts = match self.stored.job.stage {
            JobStage::Generate => self.describe_prompted(transformer, input, sampled).unwrap_or_else(|error| {
                tracing::warn!(error = one_line(&error), "a picture does not tell how it was made");
                Texts::new()
            }),
            JobStage::Decode | JobStage::Encode | JobStage::Denoise => Texts::new(),
        };
        let path = transformer.write(output, sampled, &texts).map_err(|error| self.classify_write_error(&error))?;
        let results = self.sync_results(&[path])?;
        Ok(if self.stored.job.stage == JobStage::Generate { Vec::new() } else { results })
    }

    /// The texts of a picture or clip of a prompt, those of the command line.
    fn describe_prompted(
        &self,
        transformer: &SampleModel,
        SampleInput { request, sampling }: &SampleInput,
        sampled: &Finished<Sampled, Denoise>,
    ) -> tilewright_pipeline::Result<Texts> {
        let (model, stored) = (self.turn.model, &self.stored.request);
        let fields = accept::fields_of(stored, self.stored.job.request.as_deref(), transformer).unwrap_or_default();
        let vae = model.vae.as_ref().map(|vae| &vae.model).filter(|vae| vae.is_video());
        let rate = vae.and_then(|vae| accept::rate(stored.fps.as_deref(), &vae.facts().family).ok());
        let description = Description {
            parts: model.parts(),
            identity: model.identity()?,
            loras: model.loras.iter().map(|lora| (&lora.request, lora.identity.clone())).collect(),
            boundary: model.boundary(),
            prompts: &accept::prompts_of(stored, &fields),
            text_tokens: stored.text_tokens,
            has_embeddings: false,
            text_settings: Vec::new(),
            // Uploads have no names of their own.
            image: request.latent.as_ref().map(|_| Path::new("image.png")),
            mask: request.mask.as_ref().map(|_| Path::new("mask.png")),
            model: transformer,
            request,
            sampling,
            plan: &sampled.record.plan,
            rate,
        };
        description.texts()
    }
}
