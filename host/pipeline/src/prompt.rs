//! A prompt's picture or clip before any stage has run, by the extents of what each will make.

use std::time::Duration;

use tch::Tensor;
use tilewright_engine::{Machine, Quote};
use tilewright_plan::{Denoise, Objective};
use tilewright_torch::scalar;

use crate::{Decode, Encode, EncodeInput, Foreseen, Model, Result, SampleModel, SampleOutline, SampleRequest};

/// The stages behind the text of a prompt's picture or clip, none of which has run.
#[derive(Debug)]
pub struct PromptOutline<'a> {
    /// The model that samples.
    pub model: &'a SampleModel,
    /// The VAE.
    pub vae: &'a Model,
    /// The sample.
    pub sample: SampleOutline,
    /// The zeros that stand for the sample's latents; they take no memory.
    pub latents: Tensor,
    /// The input that stands for the picture that is begun with, if one is.
    pub picture: Option<EncodeInput>,
}

/// The least that a prompt's stages take, each on its own.
#[derive(Clone, Copy, Debug)]
pub struct PromptPrice {
    /// The bytes that the largest stage holds by its leanest plan, weights included.
    pub bytes: u64,
    /// The shortest time of sample and decode, in whatever memory; none if no plan has a price.
    pub time: Option<Duration>,
}

impl<'a> PromptOutline<'a> {
    /// Outlines the stages of a request that has its size, and no files yet but the mask.
    ///
    /// # Errors
    /// The size can't be sampled; a setting makes no sense.
    pub fn new(model: &'a SampleModel, vae: &'a Model, request: &SampleRequest, foreseen: Foreseen) -> Result<Self> {
        let sample = model.outline_foreseen(request, foreseen)?;
        let picture = foreseen.start.zip(request.size).map(|(start, size)| EncodeInput::of_start(vae, start, size));
        let latents = scalar::stand_in(&sample.shape.latents)?;
        Ok(Self { model, vae, latents, picture: picture.transpose()?, sample })
    }

    /// The sample, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn denoise(&self, machine: &'a Machine, limit: u64, objective: Objective) -> Result<Quote<Denoise>> {
        Ok(Quote::denoise(&machine.basis(), &self.model.denoiser, &self.sample.shape, limit, objective)?)
    }

    /// The least that the stages take.
    ///
    /// # Errors
    /// A stage can't be carried out in whatever memory.
    pub fn least(&self, machine: &'a Machine) -> Result<PromptPrice> {
        let denoise = self.denoise(machine, u64::MAX, Objective::Fastest)?;
        let latents = &self.sample.shape.latents;
        let decode = Decode::least_bytes(machine, self.vae, latents, true)?;
        let encode = self.picture.as_ref().map(|picture| Encode::least_bytes(machine, self.vae, picture, true));
        let bytes = [denoise.least_bytes(), Some(decode), encode.transpose()?].into_iter().flatten().max();
        // Encoders take little time next to the rest.
        let times = [denoise.fastest(), Decode::shortest(machine, self.vae, latents)?];
        let time = times.into_iter().flatten().reduce(Duration::saturating_add);
        Ok(PromptPrice { bytes: bytes.unwrap_or_default(), time })
    }
}
