//! Samples: latents along sigmas, by the velocities of one denoiser or of two that take turns.

mod costs;
mod gauge;
mod job;
mod passes;
mod reuse;
mod shape;
mod steps;
mod written;

use std::sync::Arc;

use tch::Tensor;
use tilewright_models::{DenoiserConfig, DenoiserFile, Error as ModelError, Lora, LoraFit};
use tilewright_plan::{DenoiserModel, StoredType};
use tilewright_sampling::{ModelSampling, Sampler};

use crate::{Budget, Error, Result, WeightStore};

pub(crate) use costs::EXPANDED_TRAVERSALS;
pub use job::{Begun, DenoiseJob, DenoiseQuote, Sampled};
pub use shape::{PromptShape, SampleShape};
pub use steps::SampleState;
pub use written::{DenoiserFacts, LoraFacts, SamplingFacts};

/// One denoiser, or two that take turns.
#[derive(Debug)]
pub struct Denoiser {
    experts: Vec<Arc<DenoiserFile>>,
    boundary: f64,
    /// The store that loaded weights are leased from.
    weights: WeightStore,
}

impl Denoiser {
    /// A denoiser for all sigmas.
    pub fn single(file: DenoiserFile) -> Self {
        Self { experts: vec![Arc::new(file)], boundary: 0.0, weights: WeightStore::new(Budget::Last) }
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
        let weights = WeightStore::new(Budget::Last);
        Ok(Self { experts: vec![Arc::new(high), Arc::new(low)], boundary, weights })
    }

    /// The same without LoRAs. Both share the files.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        let experts = self.experts.iter().map(|file| Arc::new(file.without_loras())).collect();
        Self { experts, boundary: self.boundary, weights: self.weights.clone() }
    }

    /// Leases weights from this store, which other models may share, instead of from one of its
    /// own.
    #[must_use]
    pub fn sharing(self, weights: &WeightStore) -> Self {
        Self { weights: weights.clone(), ..self }
    }

    /// The files that it is made of, as a capture names them.
    pub(crate) fn written(&self) -> DenoiserFacts {
        let paths = self.experts.iter().map(|file| file.file().file().path().to_owned()).collect();
        let loras = self.experts.iter().enumerate().flat_map(|(expert, file)| {
            let of = |lora: &Lora| LoraFacts { path: lora.file().path().to_owned(), strength: lora.strength, expert };
            file.file().loras().iter().map(of).collect::<Vec<_>>()
        });
        let boundary = (self.experts.len() > 1).then_some(self.boundary);
        DenoiserFacts { paths, boundary, loras: loras.collect() }
    }

    /// Frees the weights that no task uses.
    pub fn release(&self) {
        self.experts.iter().for_each(|file| self.weights.forget(file.file().file().id()));
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
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        Ok(self.experts.iter().try_for_each(|file| file.file().check_unchanged())?)
    }

    /// True if the files, and those of LoRAs, are as they were, and are still in their places.
    pub fn is_current(&self) -> bool {
        self.experts.iter().all(|file| file.file().is_current())
    }

    /// The index of the expert for a sigma.
    pub(crate) fn expert(&self, sigma: f64) -> usize {
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

/// Conditioning as it stands in its file: f32, in host memory. One row serves any batch.
#[derive(Debug)]
pub struct ConditioningTensors {
    /// [N, tokens, width]
    pub text: Tensor,
    /// [N, width]
    pub pooled: Option<Tensor>,
    /// [N, tokens, width]
    pub image: Option<Tensor>,
}

/// A conditioning for a part of the way.
#[derive(Debug)]
pub struct Prompt {
    /// Conditioning.
    pub tensors: ConditioningTensors,
    /// The sigmas from and down to which it counts.
    pub within: [f64; 2],
}

impl Prompt {
    /// A conditioning for the whole way.
    pub fn whole(tensors: ConditioningTensors) -> Self {
        Self { tensors, within: [f64::INFINITY, 0.0] }
    }

    /// True if it counts at a sigma.
    pub fn counts(&self, sigma: f64) -> bool {
        let [from, to] = self.within.map(|sigma| sigma as f32);
        from >= sigma as f32 && sigma as f32 >= to
    }

    fn is_whole(&self) -> bool {
        self.within == [f64::INFINITY, 0.0]
    }
}

/// The part of latents that is kept.
#[derive(Debug)]
pub struct Kept {
    /// [N, C, (T,) h, w] in the model's own space.
    pub latents: Tensor,
    /// [1, 1, (T,) h, w]: 1 where latents are made again.
    pub mask: Tensor,
    /// Kept latents go in as they are, and their frames have no noise; else they get the noise of
    /// each step.
    pub clean: bool,
}

/// Settings and tensors of a sample.
#[derive(Debug)]
pub struct Sampling {
    /// [N, C, h, w] or [N, C, T, h, w]: latents with the noise of the first sigma, in the model's
    /// own space, f32, in host memory.
    pub latents: Tensor,
    /// The noise of kept latents, of the same shape.
    pub noise: Option<Tensor>,
    /// Conditionings; those that count at a sigma are averaged. There is at least one.
    pub positive: Vec<Prompt>,
    /// The conditionings that guidance leads away from.
    pub negative: Vec<Prompt>,
    /// Channels behind the latents': a mask's and a latent's.
    pub condition: Option<Tensor>,
    /// The part of the latents that is kept.
    pub kept: Option<Kept>,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f32>,
    /// The factor of the way from the negative conditioning's velocity to the other's.
    pub cfg: f64,
    /// Sigmas, one more than steps.
    pub sigmas: Vec<f64>,
    /// The sampler.
    pub sampler: Sampler,
    /// The model's sigmas, and the quantity that its network predicts.
    pub model: ModelSampling,
    /// The network is given timesteps cut to whole numbers, as some schedulers of diffusers do.
    pub whole_timesteps: bool,
    /// The change of the network's output, over its size, up to which the last output may serve
    /// once more; none if each is to be computed.
    pub reuse: Option<f64>,
    /// The seeds of the noise that the sampler adds: one for the batch, or one for each sample.
    pub seeds: Vec<u64>,
}

/// The input of a sampling job: a denoiser and its sampling.
#[derive(Clone, Copy, Debug)]
pub struct SampleInput<'a> {
    denoiser: &'a Denoiser,
    sampling: &'a Sampling,
}

impl Sampling {
    /// The conditionings, the positive ones first: guidance of 1 leaves the negative ones out,
    /// unless the sampler reads them on their own.
    pub(crate) fn prompts(&self) -> Vec<&Prompt> {
        let guides = self.cfg != 1.0 || self.sampler.needs_negative();
        self.positive.iter().chain(self.negative.iter().filter(|_| guides)).collect()
    }

    pub(crate) fn has_clean_frames(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.clean)
    }
}

/// Frames, height and width of latents as a network with such patches has them: sides are padded to
/// whole patches.
pub(crate) fn padded_extents(size: &[i64], patch: i64) -> [i64; 3] {
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
