//! A video decoder's architecture, read off the tensors' names and shapes.

use serde::Serialize;

use crate::Family;

/// How an up block ends where it is not the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Upsample {
    /// Channels of its output.
    pub channels: usize,
    /// Doubles the frames too: all but the first frame of a clip become two.
    pub temporal: bool,
}

/// One up block: so many residual layers, then twice the height and width, and perhaps twice the frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UpBlock {
    /// Channels of its input.
    pub into: usize,
    /// Channels of its residual layers.
    pub channels: usize,
    /// Residual layers.
    pub layers: usize,
    /// How it ends.
    pub upsample: Option<Upsample>,
    /// The block's input, its channels repeated and laid out in space and time, is added to its output (WAN 2.2).
    pub duplicated: bool,
}

/// A decoder's architecture and its latents' scaling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// WAN 2.1 or 2.2.
    pub family: Family,
    /// Channels of the latent.
    pub latent_channels: usize,
    /// Channels of the middle block: two residual layers with an attention between them.
    pub middle_channels: usize,
    /// From the latent to the picture.
    pub up_blocks: Vec<UpBlock>,
    /// Channels of the last convolution: those of the picture, times the patch's pixels.
    pub out_channels: usize,
    /// Side of the squares of output pixels that leave the network as channels; 1 in WAN 2.1.
    pub patch: usize,
    /// Channels of the picture.
    pub image_channels: usize,
    /// Per latent channel, undone by `z · std + mean`; none where the file is of another width than the published.
    pub latents_mean: Option<Vec<f64>>,
    /// See [`Self::latents_mean`].
    pub latents_std: Option<Vec<f64>>,
}

impl Config {
    /// Output pixels per latent pixel.
    pub fn spatial_scale(&self) -> u32 {
        self.patch as u32 * (1 << self.up_blocks.iter().filter(|block| block.upsample.is_some()).count().min(16))
    }

    /// Output frames per latent frame, the first aside, which gives one.
    pub fn temporal_scale(&self) -> u32 {
        let temporal = |block: &&UpBlock| block.upsample.is_some_and(|upsample| upsample.temporal);
        1 << self.up_blocks.iter().filter(temporal).count().min(16)
    }

    /// Output frames of so many latent frames.
    pub fn frames(&self, latent_frames: u32) -> u32 {
        1 + latent_frames.saturating_sub(1) * self.temporal_scale()
    }
}
