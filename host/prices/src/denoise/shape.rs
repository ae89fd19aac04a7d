//! The shapes of a sample's input: all of it that requests, passes and prices depend on. It holds
//! no values, so that a sample has its price before anything of its size is in memory.

use tilewright_sampling::Sampler;

/// The shapes of a sample's input, and its way along sigmas.
#[derive(Clone, Debug)]
pub struct SampleShape {
    /// [N, C, h, w] or [N, C, T, h, w]
    pub latents: Vec<i64>,
    /// The shapes of the conditionings that count, the positive ones first. There is at least one.
    pub prompts: Vec<PromptShape>,
    /// The number of positive ones among them.
    pub positive: usize,
    /// Sigmas, one more than steps.
    pub sigmas: Vec<f64>,
    /// The sampler.
    pub sampler: Sampler,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f32>,
    /// Frames of a clip may differ in their sigmas: kept ones have no noise.
    pub has_clean_frames: bool,
    /// The change of the output up to which the user lets the last one serve again.
    pub reuse: Option<f64>,
}

/// The shapes of a conditioning.
#[derive(Clone, Debug)]
pub struct PromptShape {
    /// [N, tokens, width]
    pub text: Vec<i64>,
    /// [N, width]
    pub pooled: Option<Vec<i64>>,
    /// [N, tokens, width]
    pub image: Option<Vec<i64>>,
    /// It counts all the way.
    pub is_whole: bool,
}

impl SampleShape {
    /// The steps along the sigmas.
    pub fn steps(&self) -> usize {
        self.sigmas.len().saturating_sub(1)
    }
}

impl PromptShape {
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
