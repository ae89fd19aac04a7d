//! The settings of a sample as they are carried out, each with its value.

use serde::Serialize;
use tilewright_sampling::{Convention, Scheduler};

use super::{Asked, SampleModel, SampleRequest, Steps};
use crate::Result;

/// The settings of a sample: what its request says, and what the model's defaults became.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Frames: 1 of a picture.
    pub frames: u32,
    /// Samples.
    pub batch: u32,
    /// The seed of the batch, or one for each sample.
    pub seeds: Vec<u64>,
    /// Steps; with a denoise strength, before it takes some away.
    pub steps: u32,
    /// Sigmas by hand.
    pub sigmas: Option<Vec<f64>>,
    /// The sampler.
    pub sampler: String,
    /// The scheduler; none for sigmas by hand, and for a scheduler of diffusers.
    pub scheduler: Option<String>,
    /// The number of the shift of sigmas; none for sigmas by hand.
    pub shift: Option<f64>,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f64>,
    /// The factor of guidance by a negative conditioning.
    pub cfg: f64,
    /// The share of the way from noise that is gone.
    pub denoise: f64,
    /// The change up to which outputs serve once more.
    pub reuse: Option<f64>,
    /// The reference that is followed.
    pub convention: Convention,
}

impl SampleModel {
    /// The settings of a request for latents of a shape [N, C, (T,) h, w].
    ///
    /// # Errors
    /// There are no such steps or shift.
    pub fn settings(&self, request: &SampleRequest, shape: &[i64]) -> Result<Settings> {
        let [frames, height, width] = self.extents(shape);
        let tokens = self.image_tokens(shape);
        let way = self.way(request, tokens)?;
        let (steps, sigmas, scheduler, denoise) = match &request.steps {
            Steps::Sigmas(sigmas) => (way.sigmas.len() as u32 - 1, Some(sigmas.clone()), None, 1.0),
            Steps::Count { steps, strength, scheduler, .. } => {
                let own = (request.convention == Convention::ComfyUi).then(Scheduler::default);
                let steps = steps.unwrap_or_else(|| self.usual_steps());
                (steps, None, scheduler.or(own).map(|scheduler| scheduler.to_string()), *strength)
            }
        };
        Ok(Settings {
            width,
            height,
            frames,
            batch: shape.first().map_or(1, |samples| u32::try_from(*samples).unwrap_or(u32::MAX)),
            seeds: request.seeds.clone(),
            steps,
            shift: sigmas.is_none().then(|| way.shift.number(tokens)),
            sigmas,
            sampler: way.sampler.to_string(),
            scheduler,
            guidance: self.guidance_of(request),
            cfg: request.cfg,
            denoise,
            reuse: request.reuse,
            convention: request.convention,
        })
    }

    /// The settings of a prompt's picture or clip that asks for nothing.
    ///
    /// # Errors
    /// The model's own defaults make no sense.
    pub fn usual_settings(&self) -> Result<Settings> {
        let request = self.choose(&Asked::default());
        let shape = request.size.map(|size| self.shape_of(size)).transpose()?.unwrap_or_default();
        self.settings(&request, &shape)
    }
}
