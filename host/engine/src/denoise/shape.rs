//! The shapes of a sample's input: all of it that passes and prices depend on.

use tch::Tensor;

use super::{Prompt, Sampling};

/// The shapes of a sample's input.
#[derive(Clone, Debug)]
pub(super) struct SampleShape {
    /// [N, C, h, w] or [N, C, T, h, w]
    pub latents: Vec<i64>,
    /// The shapes of the conditionings, the positive ones first.
    pub prompts: Vec<PromptShape>,
    /// The positive ones among them.
    pub positive: usize,
    pub steps: usize,
    pub guidance: Option<f32>,
    /// Latents that the sampler keeps from earlier steps.
    pub remembered: u32,
    /// Frames of a clip may differ in their sigmas: kept ones have no noise.
    pub has_clean_frames: bool,
    /// The change of the output up to which the user lets the last one serve again.
    pub reuse: Option<f64>,
}

/// The shapes of a conditioning.
#[derive(Clone, Debug)]
pub(super) struct PromptShape {
    pub text: Vec<i64>,
    pub pooled: Option<Vec<i64>>,
    pub image: Option<Vec<i64>>,
    /// It counts all the way.
    pub is_whole: bool,
}

impl SampleShape {
    pub fn of(sampling: &Sampling) -> Self {
        Self {
            latents: sampling.latents.size(),
            prompts: sampling.prompts().into_iter().map(PromptShape::of).collect(),
            positive: sampling.positive.len(),
            steps: sampling.sigmas.len().saturating_sub(1),
            guidance: sampling.guidance,
            remembered: sampling.sampler.remembered(),
            has_clean_frames: sampling.has_clean_frames(),
            reuse: sampling.reuse,
        }
    }
}

impl PromptShape {
    pub fn of(prompt: &Prompt) -> Self {
        let given = &prompt.tensors;
        Self {
            text: given.text.size(),
            pooled: given.pooled.as_ref().map(Tensor::size),
            image: given.image.as_ref().map(Tensor::size),
            is_whole: prompt.is_whole(),
        }
    }

    /// Tokens of the text.
    pub fn tokens(&self) -> i64 {
        self.text.get(1).copied().unwrap_or_default()
    }

    /// True if one row serves any batch.
    pub fn has_one_row(&self) -> bool {
        let all = [Some(&self.text), self.pooled.as_ref(), self.image.as_ref()];
        all.into_iter().flatten().all(|shape| shape.first() == Some(&1))
    }
}
