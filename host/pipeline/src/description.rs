//! The description of a prompt's picture or clip, in its texts: ComfyUI's workflow, A1111's
//! parameters, and the recipe that `--like` reads.

use tilewright_media::{Rate, Texts};
use tilewright_plan::DenoisePlan;

use crate::{LoraIdentity, ModelIdentity, PARAMETERS_KEYWORD, Recipe, Result, Settings, Steps, Workflow};

/// All that a picture or clip of a prompt follows from.
#[derive(Clone, Debug)]
pub struct Description<'a> {
    /// The files and the settings.
    pub workflow: Workflow<'a>,
    /// Frames per second of a clip.
    pub rate: Option<Rate>,
    /// The identity of the model.
    pub identity: &'a ModelIdentity,
    /// The identities of its LoRAs.
    pub loras: Vec<LoraIdentity>,
    /// The tokens of the text encoder without positions, if somebody says them.
    pub text_tokens: Option<u32>,
    /// True if prompts may name embeddings.
    pub has_embeddings: bool,
    /// The sigma at which two experts change, if it is asked for.
    pub boundary: Option<f64>,
    /// Settings of the text stage that were asked for.
    pub text_settings: Vec<(String, String)>,
    /// The plan of the sample.
    pub plan: &'a DenoisePlan,
}

impl Description<'_> {
    /// The recipe.
    pub fn recipe(&self) -> Recipe {
        let Workflow { prompts, request, size: [width, height, frames], image, mask, .. } = self.workflow;
        let of_sample = self.plan.settings().into_iter().map(|(key, value)| (format!("denoise.{key}"), value));
        let (steps, sigmas, scheduler, strength) = match &request.steps {
            Steps::Sigmas(sigmas) => (None, Some(sigmas.clone()), None, 1.0),
            Steps::Count { steps, strength, scheduler, .. } => (*steps, None, *scheduler, *strength),
        };
        Recipe {
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
            text_tokens: self.text_tokens,
            embeddings: self.has_embeddings,
            reuse: request.reuse,
            boundary: self.boundary,
            settings: self.text_settings.iter().cloned().chain(of_sample).collect(),
            model: Some(self.identity.clone()),
            loras: self.loras.clone(),
        }
    }

    /// The settings, each with its value.
    ///
    /// # Errors
    /// They make no sense.
    pub fn settings(&self) -> Result<Settings> {
        let Workflow { model, request, sampling, .. } = self.workflow;
        model.settings(request, &sampling.latents.size())
    }

    /// The texts, ComfyUI's first: programs take the first that they know.
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn texts(&self) -> Result<Texts> {
        let recipe = self.recipe();
        let mut texts = self.workflow.texts();
        texts.extend([(PARAMETERS_KEYWORD.to_owned(), recipe.parameters(&self.settings()?)), recipe.text()]);
        Ok(texts)
    }
}
