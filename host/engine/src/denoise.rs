//! Samples: latents along sigmas, by the velocities of one denoiser or of two that take turns.

mod gauge;
mod job;
mod passes;
mod reuse;
mod shape;
mod steps;
mod written;

use std::ops::Deref;

use tch::Tensor;
use tilewright_models::{DenoiserFile, Lora, LoraFit};
use tilewright_sampling::{ModelSampling, Sampler};

use crate::{Budget, Result, WeightStore};

pub use job::{Begun, DenoiseJob, Sampled};
pub use steps::SampleState;
pub use written::{DenoiserFacts, LoraFacts, SamplingFacts};

/// One denoiser, or two that take turns, and the store of their weights.
#[derive(Debug)]
pub struct Denoiser {
    files: tilewright_prices::Denoiser,
    /// The store that loaded weights are leased from.
    weights: WeightStore,
}

/// All that the files are known to be.
impl Deref for Denoiser {
    type Target = tilewright_prices::Denoiser;

    fn deref(&self) -> &Self::Target {
        &self.files
    }
}

impl From<tilewright_prices::Denoiser> for Denoiser {
    fn from(files: tilewright_prices::Denoiser) -> Self {
        Self { files, weights: WeightStore::new(Budget::Last) }
    }
}

impl Denoiser {
    /// A denoiser for all sigmas.
    pub fn single(file: DenoiserFile) -> Self {
        tilewright_prices::Denoiser::single(file).into()
    }

    /// Two denoisers, as [`tilewright_prices::Denoiser::experts`].
    ///
    /// # Errors
    /// The same.
    pub fn experts(high: DenoiserFile, low: DenoiserFile, boundary: f64) -> Result<Self> {
        Ok(tilewright_prices::Denoiser::experts(high, low, boundary)?.into())
    }

    /// The same without LoRAs. Both share the files.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        Self { files: self.files.without_loras(), weights: self.weights.clone() }
    }

    /// Adds a LoRA to an expert, as [`tilewright_prices::Denoiser::add`].
    ///
    /// # Errors
    /// The same.
    pub fn add(&mut self, expert: usize, lora: Lora) -> Result<LoraFit> {
        Ok(self.files.add(expert, lora)?)
    }

    /// Leases weights from this store, which other models may share, instead of from one of its
    /// own.
    #[must_use]
    pub fn sharing(self, weights: &WeightStore) -> Self {
        Self { weights: weights.clone(), ..self }
    }

    /// The files that it is made of, as a capture names them.
    pub(crate) fn written(&self) -> DenoiserFacts {
        let paths = self.files().iter().map(|file| file.file().file().path().to_owned()).collect();
        let loras = self.files().iter().enumerate().flat_map(|(expert, file)| {
            let of = |lora: &Lora| LoraFacts { path: lora.file().path().to_owned(), strength: lora.strength, expert };
            file.file().loras().iter().map(of).collect::<Vec<_>>()
        });
        let boundary = (self.files().len() > 1).then(|| self.boundary());
        DenoiserFacts { paths, boundary, loras: loras.collect() }
    }

    /// Frees the weights that no task uses.
    pub fn release(&self) {
        self.files().iter().for_each(|file| self.weights.forget(file.file().file().id()));
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
