//! The network's layers in the order that they run, and which upsampled pictures are held.

use super::{Config, EncoderConfig};

/// A layer in the order that they run: channels in and out, and its side relative to the picture's.
#[derive(Clone, Copy)]
pub struct Layer {
    pub into: f64,
    pub out: f64,
    /// Pixels of this layer's output per pixel of the picture.
    pub pixels: f64,
    pub kind: LayerKind,
    /// In bands its input is computed where it is needed, from so many channels at half the side.
    pub from_low: Option<f64>,
    /// In bands its output is not held.
    pub passing: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum LayerKind {
    ConvIn,
    Resnet,
    Attention,
    Upsample,
    Downsample,
    Out,
}

impl Config {
    /// The layers, with their sizes.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let scale = f64::from(self.spatial_scale());
        let mut pixels = 1.0 / (scale * scale);
        let kept = self.upsampled_kept();
        let mut kept = kept.into_iter();
        let mut layers: Vec<Layer> = Vec::new();
        let mut layer = |into: usize, out: usize, pixels: f64, kind, passing: bool| {
            let from_low = layers.last().filter(|before| before.passing).map(|before| before.into);
            layers.push(Layer { into: into as f64, out: out as f64, pixels, kind, from_low, passing });
        };
        let middle = self.middle_channels;
        layer(self.latent_channels, middle, pixels, LayerKind::ConvIn, false);
        for index in 0..self.middle_layers {
            layer(middle, middle, pixels, LayerKind::Resnet, false);
            if index == 0 && self.middle_attention {
                layer(middle, middle, pixels, LayerKind::Attention, false);
            }
        }
        let mut into = middle;
        for block in &self.up_blocks {
            for _ in 0..block.layers {
                layer(into, block.channels, pixels, LayerKind::Resnet, false);
                into = block.channels;
            }
            if block.upsamples {
                pixels *= 4.0;
                layer(into, into, pixels, LayerKind::Upsample, kept.next() == Some(false));
            }
        }
        layer(into, self.image_channels, pixels, LayerKind::Out, false);
        layers
    }

    /// For each upsampling, whether a decode in bands holds the picture that comes out. It does unless that would be its peak:
    /// what is not held is computed twice.
    pub(in crate::kl) fn upsampled_kept(&self) -> Vec<bool> {
        let last = self.up_blocks.len().saturating_sub(1);
        let mut pixels = 1.0;
        // What is held after each upsampling, by the layer that follows: with the upsampled picture and without it.
        let mut held = Vec::new();
        let mut least: f64 = 0.0;
        for (index, block) in self.up_blocks.iter().enumerate() {
            least = least.max(2.0 * block.channels as f64 * pixels);
            if !block.upsamples {
                continue;
            }
            pixels *= 4.0;
            let next = self.up_blocks.get(index + 1);
            let follows = next.filter(|next| next.layers > 0).map_or(0.0, |next| {
                let tensors = if next.channels == block.channels { 1.0 } else { 2.0 };
                tensors * next.channels as f64
            });
            let with = (block.channels as f64 + follows) * pixels;
            // Without a residual layer of its own width to hold the sum, that takes a picture more.
            let own =
                if next.is_some_and(|next| next.channels == block.channels) { block.channels as f64 } else { 0.0 };
            let without = block.channels as f64 * pixels / 4.0 + (follows + own) * pixels;
            held.push((with, without, index < last && next.is_some_and(|next| next.layers > 0)));
        }
        for (with, without, recomputable) in &held {
            least = least.max(if *recomputable { with.min(*without) } else { *with });
        }
        held.into_iter().map(|(with, _, recomputable)| !recomputable || with <= least).collect()
    }
}

impl EncoderConfig {
    /// The layers, with their sizes.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let mut layers = Vec::new();
        let mut layer = |into: usize, out: usize, pixels: f64, kind| {
            layers.push(Layer { into: into as f64, out: out as f64, pixels, kind, from_low: None, passing: false });
        };
        let mut pixels = 1.0;
        layer(self.image_channels, self.first_channels, pixels, LayerKind::ConvIn);
        let mut into = self.first_channels;
        for block in &self.down_blocks {
            for _ in 0..block.layers {
                layer(into, block.channels, pixels, LayerKind::Resnet);
                into = block.channels;
            }
            if block.downsamples {
                pixels /= 4.0;
                layer(into, into, pixels, LayerKind::Downsample);
            }
        }
        let middle = self.middle_channels;
        for index in 0..self.middle_layers {
            layer(middle, middle, pixels, LayerKind::Resnet);
            if index == 0 && self.middle_attention {
                layer(middle, middle, pixels, LayerKind::Attention);
            }
        }
        layer(middle, 2 * self.latent_channels, pixels, LayerKind::Out);
        layers
    }
}
