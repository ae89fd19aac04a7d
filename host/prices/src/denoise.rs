//! Samples: latents along sigmas, by the velocities of one denoiser or of two that take turns.

mod costs;
mod passes;
mod shape;

use std::{sync::Arc, time::Duration};

use tilewright_models::{DenoiserConfig, DenoiserFile, Error as ModelError, Lora, LoraFit};
use tilewright_plan::{
    Denoise, DenoiseCapabilities, DenoisePlan, DenoiseRequest, DenoiserModel, Objective, Precision, Products, Stage,
    StoredType,
};

pub(crate) use self::costs::EXPANDED_TRAVERSALS;
pub use self::{
    costs::{DenoisePrices, residency},
    passes::{Group, Pass, passes},
    shape::{PromptShape, SampleShape},
};
use crate::{Basis, Error, Priced, Quote, Result, USUAL_TOKENS};

/// The parts of a feed-forward layer in the plan that holds least: with more, attention holds the
/// most.
const LEAST_PARTS: u32 = 8;

/// The steps for each one that is computed, at most, if others are reused.
const MOST_REUSED: u32 = 4;

impl Priced for Denoise {
    type Prices = DenoisePrices;
}

/// One denoiser, or two that take turns.
#[derive(Clone, Debug)]
pub struct Denoiser {
    experts: Vec<Arc<DenoiserFile>>,
    boundary: f64,
}

impl Denoiser {
    /// A denoiser for all sigmas.
    pub fn single(file: DenoiserFile) -> Self {
        Self { experts: vec![Arc::new(file)], boundary: 0.0 }
    }

    /// Two denoisers of one architecture: the first for sigmas from `boundary` on, the second for
    /// those below.
    ///
    /// # Errors
    /// The architectures differ, or the boundary leaves one of them without work.
    pub fn experts(high: DenoiserFile, low: DenoiserFile, boundary: f64) -> Result<Self> {
        let refused = |reason: String| {
            let path = low.file().file().path().to_owned();
            Err(Error::Model(ModelError::Unknown { path, reason }))
        };
        if high.config != low.config {
            return refused(format!(
                "of another architecture than {}: two experts have the same",
                high.file().file().path().display()
            ));
        }
        if !(boundary > 0.0 && boundary < 1.0) {
            return refused(format!("a boundary of {boundary} leaves one expert without work: 0.875 is WAN 2.2's"));
        }
        Ok(Self { experts: vec![Arc::new(high), Arc::new(low)], boundary })
    }

    /// The same without LoRAs. Both share the files.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        let experts = self.experts.iter().map(|file| Arc::new(file.without_loras())).collect();
        Self { experts, boundary: self.boundary }
    }

    /// The sigma at which two experts change; 0 of one.
    pub fn boundary(&self) -> f64 {
        self.boundary
    }

    /// The architecture.
    pub fn config(&self) -> &DenoiserConfig {
        &self.experts[0].config
    }

    /// Adds a LoRA to an expert, by its number, and says how much of it fits.
    ///
    /// # Errors
    /// There is no such expert, or a job has it; as [`DenoiserFile::add`].
    pub fn add(&mut self, expert: usize, lora: Lora) -> Result<LoraFit> {
        let path = lora.file().path().to_owned();
        let refused = |reason: &str| Error::Model(ModelError::Unknown { path: path.clone(), reason: reason.into() });
        let file = self
            .experts
            .get_mut(expert)
            .ok_or_else(|| refused("for an expert of low noise, and there is one transformer: leave @low out"))?;
        let file = Arc::get_mut(file).ok_or_else(|| refused("a job uses the transformer: add LoRAs before"))?;
        file.add(lora).map_err(Error::Model)
    }

    /// The files.
    pub fn files(&self) -> &[Arc<DenoiserFile>] {
        &self.experts
    }

    /// Checks that the files, and those of LoRAs, are as they were when they were opened.
    ///
    /// # Errors
    /// One of them is another one now.
    pub fn check_unchanged(&self) -> Result<()> {
        Ok(self.experts.iter().try_for_each(|file| file.file().check_unchanged())?)
    }

    /// True if the files, and those of LoRAs, are as they were, and are still in their places.
    pub fn is_current(&self) -> bool {
        self.experts.iter().all(|file| file.file().is_current())
    }

    /// The index of the expert for a sigma.
    pub fn expert(&self, sigma: f64) -> usize {
        // Samplers have sigmas in f32.
        usize::from(self.experts.len() > 1 && (sigma as f32) < self.boundary as f32)
    }

    /// The facts that plans depend on.
    pub fn model(&self) -> DenoiserModel {
        let file = &self.experts[0];
        DenoiserModel {
            family: self.config().facts().family.name().to_owned(),
            parameters: file.parameters,
            stored_bytes: self.experts.iter().map(|file| file.stored_bytes).max().unwrap_or_default(),
            stored: file.stored().name().to_owned(),
            blocks: self.config().blocks() as u32,
            largest_block_bytes: file.block_bytes().into_iter().max().unwrap_or_default(),
            experts: self.experts.len() as u32,
            stored_types: {
                let types = file.stored_types.iter();
                types.map(|(stored, bytes)| StoredType { name: stored.name().to_owned(), bytes: *bytes }).collect()
            },
        }
    }
}

impl Quote<Denoise> {
    /// A sample of these shapes, within a limit that counts the weights.
    ///
    /// # Errors
    /// [`Error::SampleDoesNotFit`] if not even the leanest plan fits.
    pub fn denoise(
        basis: &Basis,
        denoiser: &Denoiser,
        shape: &SampleShape,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let size = &shape.latents;
        let [frames, height, width] = extents(size);
        let patch = denoiser.config().facts().patch;
        let [_, rows, columns] = padded_extents(size, patch);
        let tokens = frames * (rows / patch) * (columns / patch);
        let request = DenoiseRequest {
            model: denoiser.model(),
            batch: size.first().map_or(1, |batch| *batch as u32),
            frames: frames as u32,
            height: height as u32,
            width: width as u32,
            text_tokens: shape.prompts.first().map_or(0, |prompt| prompt.tokens() as u32),
            image_tokens: tokens as u32,
            steps: shape.steps() as u32,
            passes: shape.prompts.len() as u32,
            sampler: shape.sampler.to_string(),
            sigmas: shape.sigmas.clone(),
            reuse: shape.reuse,
            memory_limit,
            objective,
            host: basis.host,
        };
        let width = denoiser.config().head_width();
        if !basis.attention.is_known(width) {
            return Err(Error::Device(format!(
                "the device's description says nothing of attention with heads of {width} channels: write it again with `tilewright device --json`"
            )));
        }
        let prices = DenoisePrices::new(basis, denoiser, shape);
        let capabilities = prices.capabilities();
        let quote = Self::new_unchecked(basis, Stage::Denoise, request, capabilities, prices);
        match quote.least_beyond(memory_limit) {
            Some(least) => {
                let tokens = quote.request.text_tokens;
                let long_text = (i64::from(tokens) > USUAL_TOKENS).then_some(tokens);
                Err(Error::SampleDoesNotFit { limit: memory_limit, least, long_text })
            }
            None => Ok(quote),
        }
    }

    /// The bytes that the leanest plan is expected to hold, weights included; none if no plan has a
    /// price.
    pub fn least_bytes(&self) -> Option<u64> {
        self.least_beyond(0)
    }

    /// The bytes that the leanest plan is expected to hold, if that is more than a limit. Once a
    /// type fits, no other one is priced.
    fn least_beyond(&self, limit: u64) -> Option<u64> {
        let mut least = None;
        for dtype in &self.capabilities().dtypes {
            let plan = DenoisePlan {
                precision: Precision::Uniform(*dtype),
                ahead: Some(0),
                samples: Some(1),
                feed_forward: LEAST_PARTS,
                ..DenoisePlan::plain()
            };
            let Ok(cost) = self.estimate(&plan) else { continue };
            let held = cost.held_bytes();
            if held <= limit {
                return None;
            }
            least = Some(least.map_or(held, |least: u64| least.min(held)));
        }
        least
    }

    /// The shortest time that a plan is expected to take, in whatever memory; none if no plan has a
    /// price.
    pub fn fastest(&self) -> Option<Duration> {
        let DenoiseCapabilities { dtypes, fp8_products, int8_products, reuse_most, .. } = &self.capabilities;
        let offered = [(Products::Precision, true), (Products::Fp8, *fp8_products), (Products::Int8, *int8_products)];
        let products = offered.into_iter().filter(|(_, is_offered)| *is_offered);
        let plans = dtypes.iter().flat_map(|dtype| {
            let precision = Precision::Uniform(*dtype);
            products.clone().map(move |(products, _)| DenoisePlan { precision, products, ..DenoisePlan::plain() })
        });
        let step = plans.filter_map(|plan| self.estimate(&plan).ok()).map(|cost| cost.step).min()?;
        let all = step.saturating_mul(self.request.steps);
        Some(self.at_best(if *reuse_most > 0.0 { all / MOST_REUSED } else { all }))
    }
}

/// Frames, height and width of latents as a network with such patches has them: sides are padded to
/// whole patches.
pub fn padded_extents(size: &[i64], patch: i64) -> [i64; 3] {
    let [frames, height, width] = extents(size);
    let whole = |side: i64| (side + patch - 1) / patch * patch;
    [frames, whole(height), whole(width)]
}

/// Frames, height and width of latents.
pub fn extents(size: &[i64]) -> [i64; 3] {
    match *size {
        [_, _, frames, height, width] => [frames, height, width],
        [_, _, height, width] => [1, height, width],
        _ => [1, 1, 1],
    }
}
