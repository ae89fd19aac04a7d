//! The description of a prompt's picture or clip, in its texts: ComfyUI's workflow, A1111's
//! parameters, and the recipe that `--like` reads.

use std::path::Path;

use tilewright_engine::Sampling;
use tilewright_media::{Rate, Texts};
use tilewright_plan::DenoisePlan;

use crate::{
    LoraIdentity, LoraRequest, ModelIdentity, PARAMETERS_KEYWORD, Parts, Recipe, Result, SampleModel, SampleRequest,
    Settings, Steps, workflow::Workflow,
};

/// All that a picture or clip of a prompt follows from.
#[derive(Clone, Debug)]
pub struct Description<'a> {
    /// The model's files.
    pub parts: &'a Parts,
    /// The identity of the model.
    pub identity: &'a ModelIdentity,
    /// Changes of the transformer's weights, with the identities of their files.
    pub loras: Vec<(&'a LoraRequest, LoraIdentity)>,
    /// The sigma at which two experts change, if it is asked for.
    pub boundary: Option<f64>,
    /// The prompts: the negative one comes second, if it counts.
    pub prompts: &'a [String],
    /// The tokens of the text encoder without positions, if they are asked for.
    pub text_tokens: Option<u32>,
    /// True if prompts may name embeddings.
    pub has_embeddings: bool,
    /// Settings of the text stage that were asked for.
    pub text_settings: Vec<(String, String)>,
    /// The picture that it began from.
    pub image: Option<&'a Path>,
    /// The mask of the part of that picture that was made again.
    pub mask: Option<&'a Path>,
    /// The model that sampled.
    pub model: &'a SampleModel,
    /// The request for the sample.
    pub request: &'a SampleRequest,
    /// The input of the job that was made of it.
    pub sampling: &'a Sampling,
    /// The plan of the sample.
    pub plan: &'a DenoisePlan,
    /// Frames per second of a clip.
    pub rate: Option<Rate>,
}

impl Description<'_> {
    /// The graph with which ComfyUI makes the same.
    fn workflow(&self) -> Result<Workflow<'_>> {
        Ok(Workflow {
            parts: self.parts,
            loras: self.loras.iter().map(|(request, _)| *request).collect(),
            prompts: self.prompts,
            model: self.model,
            request: self.request,
            sampling: self.sampling,
            size: self.size(),
            rate: self.rate.map(Rate::per_second),
            text_tokens: self.model.text_tokens_of(self.text_tokens, self.request.convention)?,
            image: self.image,
            mask: self.mask,
        })
    }

    /// Width, height and frames.
    fn size(&self) -> [u32; 3] {
        let [frames, height, width] = self.model.extents(&self.sampling.latents.size());
        [width, height, frames]
    }

    fn recipe(&self) -> Result<Recipe> {
        let &Self { prompts, request, image, mask, .. } = self;
        let [width, height, frames] = self.size();
        let of_sample = self.plan.settings().into_iter().map(|(key, value)| (format!("denoise.{key}"), value));
        let (steps, sigmas, scheduler, strength) = match &request.steps {
            Steps::Sigmas(sigmas) => (None, Some(sigmas.clone()), None, 1.0),
            Steps::Count { steps, strength, scheduler, .. } => (*steps, None, *scheduler, *strength),
        };
        Ok(Recipe {
            prompt: prompts.first().cloned().unwrap_or_default(),
            negative: prompts.get(1).cloned(),
            width,
            height,
            frames,
            fps: self.rate.map(|rate| rate.to_string()),
            seeds: request.seeds.clone(),
            batch: request.batch,
            steps,
            sigmas,
            sampler: request.sampler.map(|sampler| sampler.to_string()),
            scheduler: scheduler.map(|scheduler| scheduler.to_string()),
            shift: request.shift,
            guidance: request.guidance,
            cfg: request.cfg,
            convention: request.convention.to_string(),
            image: image.is_some(),
            mask: mask.is_some(),
            denoise: (strength < 1.0).then_some(strength),
            text_tokens: self.model.text_tokens_in(self.text_tokens)?,
            embeddings: self.has_embeddings,
            reuse: request.reuse,
            boundary: self.boundary,
            settings: self.text_settings.iter().cloned().chain(of_sample).collect(),
            model: Some(self.identity.clone()),
            loras: self.loras.iter().map(|(_, identity)| identity.clone()).collect(),
        })
    }

    /// The settings, each with its value.
    ///
    /// # Errors
    /// They make no sense.
    pub fn settings(&self) -> Result<Settings> {
        self.model.settings(self.request, &self.sampling.latents.size())
    }

    /// The texts, ComfyUI's first: programs take the first that they know.
    ///
    /// # Errors
    /// The settings make no sense, or the description of the model's pipeline is damaged.
    pub fn texts(&self) -> Result<Texts> {
        let recipe = self.recipe()?;
        let mut texts = self.workflow()?.texts();
        texts.extend([(PARAMETERS_KEYWORD.to_owned(), recipe.parameters(&self.settings()?)), recipe.text()]);
        Ok(texts)
    }
}
