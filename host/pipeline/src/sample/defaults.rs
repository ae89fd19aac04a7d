//! The settings that a model is run with where nobody says others: its pipeline's own, or else
//! those of ComfyUI's published workflows. Nobody else knows any.

use std::hash::{BuildHasher, Hasher, RandomState};

use tilewright_models::Usual;
use tilewright_sampling::{Convention, Sampler, Shift, Span};

use super::{Asked, SampleModel, SampleRequest, Size, Steps, saved};
use crate::Result;

/// A seed that nobody chooses, of 32 bits: short enough to be typed again.
pub fn random_seed() -> u64 {
    // The standard library's hashers are keyed at random, each differently.
    u64::from(RandomState::new().build_hasher().finish() as u32)
}

impl SampleModel {
    fn usual(&self) -> &'static Usual {
        let published = self.config().facts().published;
        let of_experts = published.usual_of_experts.as_ref().filter(|_| self.denoiser.files().len() > 1);
        of_experts.unwrap_or(&published.usual)
    }

    /// The frames that are usual for the model: 1 of a picture.
    pub fn usual_frames(&self) -> u32 {
        if self.config().facts().is_video { self.defaults.frames.unwrap_or(self.usual().frames) } else { 1 }
    }

    /// The size in pixels that is usual for the model.
    pub fn usual_size(&self) -> [u32; 2] {
        self.defaults.size.unwrap_or(self.usual().size)
    }

    /// The steps that are usual for the model.
    pub(super) fn usual_steps(&self) -> u32 {
        self.defaults.steps.unwrap_or(self.usual().steps)
    }

    /// The way from times to sigmas: ComfyUI's defaults for a model, or those of the published
    /// pipelines.
    pub(crate) fn shift(&self, convention: Convention) -> Shift {
        self.usual().shifts[usize::from(convention == Convention::Diffusers)]
    }

    /// The guidance of a request, if the network has it as an input.
    pub(super) fn guidance_of(&self, request: &SampleRequest) -> Option<f64> {
        self.config().facts().guidance.map(|usual| request.guidance.unwrap_or(usual))
    }

    /// The tokens that the model's text encoder without positions reads, if its pipeline says so.
    ///
    /// # Errors
    /// The pipeline's description is damaged.
    pub fn text_tokens(&self) -> Result<Option<u32>> {
        self.pipeline.as_deref().map_or(Ok(None), saved::text_tokens)
    }

    /// The same, unless others are asked for.
    ///
    /// # Errors
    /// As [`Self::text_tokens`].
    pub fn text_tokens_in(&self, asked: Option<u32>) -> Result<Option<u32>> {
        asked.map_or_else(|| self.text_tokens(), |asked| Ok(Some(asked)))
    }

    /// The tokens that the text encoder without positions reads: those asked for, the pipeline's,
    /// or else those of the reference.
    ///
    /// # Errors
    /// As [`Self::text_tokens`].
    pub fn text_tokens_of(&self, asked: Option<u32>, convention: Convention) -> Result<u32> {
        let usual = self.config().facts().published.text_tokens[usize::from(convention == Convention::Diffusers)];
        Ok(self.text_tokens_in(asked)?.unwrap_or(usual))
    }

    /// The request for a picture or clip of a prompt, without its files: what is asked for, and the
    /// model's defaults.
    pub fn choose(&self, asked: &Asked) -> SampleRequest {
        let [width, height] = asked.size.unwrap_or_else(|| self.usual_size());
        let frames = asked.frames.unwrap_or_else(|| self.usual_frames());
        let usual_sampler = || -> Option<Sampler> {
            // A saved pipeline's scheduler names that of diffusers.
            if asked.convention == Convention::ComfyUi { self.usual().sampler.parse().ok() } else { None }
        };
        SampleRequest {
            batch: asked.batch,
            seeds: if asked.seeds.is_empty() { vec![0] } else { asked.seeds.clone() },
            sampler: asked.sampler.or_else(usual_sampler),
            steps: match &asked.sigmas {
                Some(sigmas) => Steps::Sigmas(sigmas.clone()),
                None => Steps::Count {
                    steps: Some(asked.steps.unwrap_or_else(|| self.usual_steps())),
                    strength: asked.denoise.unwrap_or(1.0),
                    scheduler: asked.scheduler,
                    span: Span::default(),
                },
            },
            shift: asked.shift,
            guidance: asked.guidance,
            cfg: asked.cfg.or(self.defaults.cfg).unwrap_or(self.usual().cfg),
            reuse: asked.reuse,
            convention: asked.convention,
            ..SampleRequest::plain(Vec::new(), Size { width, height, frames }, 0)
        }
    }
}
