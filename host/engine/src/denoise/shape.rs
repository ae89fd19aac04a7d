//! The shapes of a sample's input that is present.

use tch::Tensor;
use tilewright_prices::{PromptShape, SampleShape};

use super::{Prompt, Sampling};

impl From<&Sampling> for SampleShape {
    fn from(sampling: &Sampling) -> Self {
        Self {
            latents: sampling.latents.size(),
            prompts: sampling.prompts().into_iter().map(PromptShape::from).collect(),
            positive: sampling.positive.len(),
            sigmas: sampling.sigmas.clone(),
            sampler: sampling.sampler,
            guidance: sampling.guidance,
            has_clean_frames: sampling.has_clean_frames(),
            reuse: sampling.reuse,
        }
    }
}

impl From<&Prompt> for PromptShape {
    fn from(prompt: &Prompt) -> Self {
        let given = &prompt.tensors;
        Self {
            text: given.text.size(),
            pooled: given.pooled.as_ref().map(Tensor::size),
            image: given.image.as_ref().map(Tensor::size),
            is_whole: prompt.is_whole(),
        }
    }
}
