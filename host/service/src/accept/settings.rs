//! The settings of a job that samples, as callers see them.

use tilewright_pipeline::{Error, SampleModel, SampleRequest, Settings};
use tilewright_service_api::{JobRequest, JobSettings, ModelPart};

use crate::models::{OpenLora, OpenModel};

/// The settings of a request, and the latents' shape.
///
/// # Errors
/// They make no sense, or a file of the model can't be read.
pub fn settings_of(
    model: &OpenModel,
    transformer: &SampleModel,
    request: &JobRequest,
    (asked, shape): (&SampleRequest, &[i64]),
) -> Result<JobSettings, Error> {
    let fields = request.sample.as_deref().cloned().unwrap_or_default();
    let mut settings = body_of(transformer.settings(asked, shape)?);
    settings.prompt = request.prompt.clone();
    settings.negative_prompt = request.negative_prompt.clone();
    let has_latent = asked.latent.is_some() || asked.size.is_none();
    let has_values = fields.sigmas.is_some();
    let fields = [
        ("width", fields.width.is_some() || has_latent),
        ("height", fields.height.is_some() || has_latent),
        ("frames", fields.frames.is_some() || has_latent),
        ("batch", fields.batch.is_some() || settings.batch > 1),
        ("seeds", fields.seed.is_some()),
        ("steps", fields.steps.is_some() || has_values),
        ("sampler", fields.sampler.is_some()),
        ("scheduler", fields.scheduler.is_some() || settings.scheduler.is_none()),
        ("cfg", fields.cfg.is_some()),
        ("guidance", fields.guidance.is_some() || settings.guidance.is_none()),
        ("shift", fields.shift.is_some() || settings.shift.is_none()),
        ("denoise", fields.denoise.is_some() || has_values),
        ("text_tokens", request.text_tokens.is_some() || request.prompt.is_none()),
        ("as", fields.convention.is_some()),
        ("fps", request.fps.is_some() || request.prompt.is_none() || !transformer.denoiser.config().facts().is_video),
    ];
    let missing = fields.iter().filter(|(_, is_given)| !is_given);
    settings.defaults = missing.map(|(name, _)| (*name).to_owned()).collect();
    settings.loras = model.loras.iter().map(OpenLora::setting).collect();
    settings.parts = model
        .identity()?
        .parts()
        .filter(|(what, _)| request.prompt.is_some() || *what == "transformer")
        .map(|(what, part)| ModelPart {
            part: what.to_owned(),
            name: part.name.clone(),
            bytes: part.bytes,
            digest: part.digest.clone(),
        })
        .collect();
    Ok(settings)
}

/// Settings in the names of the interface.
pub fn body_of(settings: Settings) -> JobSettings {
    let Settings { width, height, frames, batch, seeds, steps, sigmas, sampler, scheduler, .. } = settings;
    let Settings { shift, guidance, cfg, denoise, reuse, convention, .. } = settings;
    JobSettings {
        width,
        height,
        frames,
        batch,
        seeds,
        steps,
        sigmas,
        sampler,
        scheduler,
        cfg,
        guidance,
        shift,
        denoise,
        reuse,
        convention: convention.to_string(),
        ..JobSettings::default()
    }
}
