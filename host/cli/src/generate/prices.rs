//! The prices of a prompt's stages, by the extents of what they will make: what does not fit is
//! refused before any stage runs, and by a dry run in the same words.

use tilewright_engine::Quote;
use tilewright_models::Start;
use tilewright_pipeline::{Decode, Encode, Foreseen, PromptOutline, SampleModel, SampleRequest, VisionEncoder};
use tilewright_plan::Denoise;

use super::studio::Studio;
use crate::failure::Outcome;

/// The stages of a prompt's picture or clip, none of which has run.
pub struct Prices<'a> {
    studio: &'a Studio<'a>,
    pub outline: PromptOutline<'a>,
    /// The encoder that looks at the picture.
    pub vision: Option<VisionEncoder>,
}

impl<'a> Prices<'a> {
    /// Outlines the stages of a request that has its size; `tokens` are those of the text.
    ///
    /// # Errors
    /// The size or a setting makes no sense.
    pub fn new(
        studio: &'a Studio<'a>,
        transformer: &'a SampleModel,
        request: &SampleRequest,
        tokens: u32,
    ) -> Outcome<Self> {
        let (arguments, start) = (studio.arguments, studio.start.map(|(start, _)| start));
        let foreseen = Foreseen { tokens, has_negative: studio.prompts.len() > 1, start };
        let asked = SampleRequest { mask: arguments.mask.clone(), ..request.clone() };
        let outline = PromptOutline::new(transformer, studio.vae, &asked, foreseen)?;
        let vision = match start {
            Some(Start::Condition) => VisionEncoder::of(transformer, studio.parts)?,
            _ => None,
        };
        Ok(Self { studio, outline, vision })
    }

    /// The sample, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn denoise(&self) -> Outcome<Quote<Denoise>> {
        Ok(self.outline.denoise(self.studio.machine, self.studio.limit, self.studio.objective())?)
    }

    /// The encode of the picture to begin with, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn encode(&self) -> Outcome<Option<Encode<'_>>> {
        self.outline.picture.as_ref().map(|picture| self.studio.encode(picture)).transpose()
    }

    /// The decode, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn decode(&self) -> Outcome<Decode<'_>> {
        self.studio.decode(&self.outline.latents)
    }

    /// Refuses a request of which a stage does not fit, and a mask that is unsound.
    ///
    /// # Errors
    /// The first stage that does not fit.
    pub fn check(&self) -> Outcome {
        if let Some(vision) = &self.vision {
            vision.check_fit(self.studio.machines(), self.studio.limit)?;
        }
        self.encode()?;
        self.denoise()?;
        self.decode()?;
        match &self.studio.arguments.mask {
            Some(mask) => Ok(self.outline.model.check_mask(mask, &self.outline.sample)?),
            None => Ok(()),
        }
    }
}
