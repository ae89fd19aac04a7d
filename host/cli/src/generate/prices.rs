//! The prices of a prompt's stages, by the extents of what they will make: what does not fit is
//! refused before any stage runs, and by a dry run in the same words.

use tch::Tensor;
use tilewright_engine::{DenoiseQuote, Machine};
use tilewright_models::Start;
use tilewright_pipeline::{
    Decode, Encode, EncodeInput, Foreseen, Model, SampleModel, SampleOutline, SampleRequest, VisionEncoder,
};
use tilewright_plan::{Loss, Objective, Stage};
use tilewright_torch::scalar;

use super::{conditioning::Wish, image::vision_encoder, pictures::limit};
use crate::{args::Generate, failure::Outcome};

/// Channels of the picture to begin with.
const CHANNELS: usize = 3;

/// The stages of a prompt's picture or clip, none of which has run.
pub struct Prices<'a> {
    text: &'a Wish<'a>,
    machine: &'a Machine,
    pub transformer: &'a SampleModel,
    vae: &'a Model,
    arguments: &'a Generate,
    memory_limit: u64,
    pub outline: SampleOutline,
    /// The zeros that stand for the sample's latents, and for the picture that they begin with.
    latents: Tensor,
    picture: Option<EncodeInput>,
    /// The encoder that looks at the picture.
    pub vision: Option<VisionEncoder>,
}

/// The models and the limit that stages are priced for.
pub struct On<'a> {
    /// The wish of the text stage.
    pub text: &'a Wish<'a>,
    pub transformer: &'a SampleModel,
    pub vae: &'a Model,
    /// Tokens of the text.
    pub tokens: u32,
    /// The place of a picture to begin with, if there is one.
    pub start: Option<Start>,
}

impl<'a> Prices<'a> {
    /// Outlines the stages of a request that has its size.
    ///
    /// # Errors
    /// The size or a setting makes no sense.
    pub fn new(request: &SampleRequest, on: &On<'a>) -> Outcome<Self> {
        let &On { text, transformer, vae, tokens, start } = on;
        let (arguments, machine, memory_limit) = (text.arguments, text.machine, text.memory_limit);
        let foreseen = Foreseen {
            tokens,
            has_negative: text.prompts.len() > 1,
            has_latent: matches!(start, Some(Start::Latent | Start::FirstFrame)),
            has_mask: start == Some(Start::FirstFrame) || arguments.mask.is_some(),
        };
        let asked = SampleRequest { mask: arguments.mask.clone(), ..request.clone() };
        let outline = transformer.outline_foreseen(&asked, foreseen)?;
        let picture = match (start, request.size) {
            (Some(place), Some(size)) => {
                let frames = if place == Start::Condition { size.frames } else { 1 };
                let extents = [1, frames.into(), size.height.into(), size.width.into()];
                Some(EncodeInput::foreseen(vae, extents, CHANNELS)?)
            }
            _ => None,
        };
        let vision = match start {
            Some(Start::Condition) => vision_encoder(transformer, text.parts)?,
            _ => None,
        };
        let latents = scalar::stand_in(&outline.shape.latents)?;
        Ok(Self { text, machine, transformer, vae, arguments, memory_limit, outline, latents, picture, vision })
    }

    fn objective(&self) -> Objective {
        self.arguments.run.objective()
    }

    /// The sample, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn denoise(&self) -> Outcome<DenoiseQuote<'_>> {
        let (machine, denoiser) = (self.machine, &self.transformer.denoiser);
        Ok(DenoiseQuote::new(machine, denoiser, &self.outline.shape, self.memory_limit, self.objective())?)
    }

    /// The encode of the picture to begin with, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn encode(&self) -> Outcome<Option<Encode<'_>>> {
        let Some(picture) = &self.picture else { return Ok(None) };
        let job = Encode::new(self.machine, self.vae, picture, limit(self.memory_limit), self.objective())?;
        Ok(Some(job.allowing_blended(Loss::allows_blended(&self.arguments.allow, Stage::Encode))))
    }

    /// The decode, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn decode(&self) -> Outcome<Decode<'_>> {
        let job = Decode::new(self.machine, self.vae, &self.latents, limit(self.memory_limit), self.objective())?;
        Ok(job.allowing_blended(Loss::allows_blended(&self.arguments.allow, Stage::Decode)))
    }

    /// Refuses a request of which a stage does not fit, and a mask that is unsound.
    ///
    /// # Errors
    /// The first stage that does not fit.
    pub fn check(&self) -> Outcome {
        if let Some(vision) = &self.vision {
            vision.check_fit((self.machine, self.text.host()), self.memory_limit)?;
        }
        self.encode()?;
        self.denoise()?;
        self.decode()?;
        match &self.arguments.mask {
            Some(mask) => Ok(self.transformer.check_mask(mask, &self.outline)?),
            None => Ok(()),
        }
    }
}
