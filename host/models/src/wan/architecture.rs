//! The decoder's layers in the order that they run, without their weights: what loading, pricing and resuming go by.

use tilewright_torch::winograd::TAPS;

use super::Config;

/// What a layer does. A residual layer is two: up to its first convolution, and from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A 1×1 convolution of each frame.
    Pointwise,
    /// A causal convolution that stands alone, after a norm or not.
    Convolve { normed: bool },
    /// A block begins whose input is added to its output.
    Begin,
    /// Norm, SiLU and causal convolution beside the input, which stays or goes through its shortcut.
    Hide { shortcut: bool },
    /// Norm, SiLU and causal convolution of what is hidden, added to what stayed.
    Sum,
    /// Over the pixels of each frame.
    Attention,
    /// Each frame but the clip's first becomes two.
    Double,
    /// Twice the height and width by repetition, then a 3×3 convolution of each frame.
    Upsample,
    /// The block's input is added to its output.
    End { temporal: bool },
}

impl Kind {
    /// Its output depends on the two frames before.
    fn is_causal(self) -> bool {
        matches!(self, Kind::Convolve { .. } | Kind::Hide { .. } | Kind::Sum | Kind::Double)
    }
}

/// A layer and its extents.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub kind: Kind,
    /// diffusers' name of what holds its weights.
    pub name: String,
    /// Channels of its input, and of its output or, of a first half, of what is hidden.
    pub into: usize,
    pub out: usize,
    /// Frames of its input per latent frame.
    pub frames: u32,
    /// Pixels along a side of its input per latent pixel.
    pub side: u32,
}

impl Layer {
    /// A causal convolution to half as many channels or fewer keeps what its input will add to the next two frames, and not the input.
    pub fn scatters(&self) -> bool {
        matches!(self.kind, Kind::Convolve { .. } | Kind::Hide { .. }) && 2 * self.out <= self.into
    }

    /// Products per latent pixel and frame of its input.
    pub fn products(&self) -> f64 {
        let (into, out) = (self.into as f64, self.out as f64);
        let per_pixel = match self.kind {
            Kind::Pointwise => into * out,
            Kind::Convolve { .. } | Kind::Sum => 27.0 * into * out,
            Kind::Hide { shortcut } => (if shortcut { 28.0 } else { 27.0 }) * into * out,
            Kind::Attention => 4.0 * into * out,
            Kind::Double => 6.0 * into * into,
            Kind::Upsample => 36.0 * into * out,
            Kind::Begin | Kind::End { .. } => 0.0,
        };
        per_pixel * f64::from(self.side * self.side)
    }
}

impl Config {
    /// The layers.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let mut layers: Vec<Layer> = Vec::new();
        let (mut frames, mut side) = (1, 1);
        let mut add = |kind, name: String, into, out| {
            layers.push(Layer { kind, name, into, out, frames, side });
            match kind {
                Kind::Double => frames *= 2,
                Kind::Upsample => side *= 2,
                _ => {}
            }
        };
        let (latent, middle) = (self.latent_channels, self.middle_channels);
        add(Kind::Pointwise, "post_quant_conv".into(), latent, latent);
        add(Kind::Convolve { normed: false }, "decoder.conv_in".into(), latent, middle);
        let residual = |add: &mut dyn FnMut(Kind, String, usize, usize), name: &str, into: usize, out: usize| {
            add(Kind::Hide { shortcut: into != out }, name.to_owned(), into, out);
            add(Kind::Sum, name.to_owned(), out, out);
        };
        residual(&mut add, "decoder.mid_block.resnets.0", middle, middle);
        add(Kind::Attention, "decoder.mid_block.attentions.0".into(), middle, middle);
        residual(&mut add, "decoder.mid_block.resnets.1", middle, middle);
        for (index, block) in self.up_blocks.iter().enumerate() {
            let name = format!("decoder.up_blocks.{index}");
            if block.duplicated {
                add(Kind::Begin, String::new(), block.into, block.into);
            }
            let mut into = block.into;
            for layer in 0..block.layers {
                residual(&mut add, &format!("{name}.resnets.{layer}"), into, block.channels);
                into = block.channels;
            }
            let Some(upsample) = block.upsample else { continue };
            let name = if block.duplicated { format!("{name}.upsampler") } else { format!("{name}.upsamplers.0") };
            if upsample.temporal {
                add(Kind::Double, format!("{name}.time_conv"), into, into);
            }
            add(Kind::Upsample, format!("{name}.resample.1"), into, upsample.channels);
            if block.duplicated {
                add(Kind::End { temporal: upsample.temporal }, String::new(), block.into, upsample.channels);
            }
        }
        let last = self.up_blocks.last().map_or(middle, |block| block.channels);
        add(Kind::Convolve { normed: true }, "decoder.conv_out".into(), last, self.out_channels);
        layers
    }

    /// For each layer the first frame of its input that output frames from `frame` on depend on, and last `frame` itself. What is computed of earlier ones
    /// reaches none of them.
    pub(super) fn first_needed(&self, frame: i64) -> Vec<i64> {
        let layers = self.layers();
        let mut needed = vec![frame; layers.len() + 1];
        for (index, layer) in layers.iter().enumerate().rev() {
            let after = needed[index + 1];
            // Frames 2j − 1 and 2j are made of frame j.
            let own = if layer.kind == Kind::Double { (after + 1) / 2 } else { after };
            let back = if layer.kind.is_causal() { TAPS as i64 - 1 } else { 0 };
            needed[index] = (own - back).max(0);
        }
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Family,
        wan::{UpBlock, Upsample},
    };

    /// WAN 2.1 as published.
    fn published() -> Config {
        let up = |into, channels, upsample: Option<(usize, bool)>| UpBlock {
            into,
            channels,
            layers: 3,
            upsample: upsample.map(|(channels, temporal)| Upsample { channels, temporal }),
            duplicated: false,
        };
        Config {
            family: Family::Wan21,
            latent_channels: 16,
            middle_channels: 384,
            up_blocks: vec![
                up(384, 384, Some((192, true))),
                up(192, 384, Some((192, true))),
                up(192, 192, Some((96, false))),
                up(96, 96, None),
            ],
            out_channels: 3,
            patch: 1,
            image_channels: 3,
            latents_mean: None,
            latents_std: None,
        }
    }

    #[test]
    fn a_decode_of_one_frame_is_as_much_work_as_was_counted() {
        // 14.94 TFLOP for 5 latent frames of 40×40, counted by hooks on diffusers' network, which pads three taps on the first frame too.
        let config = published();
        let frames = |layer: &Layer| f64::from(layer.frames) * 4.0 + 1.0;
        let products: f64 = config.layers().iter().map(|layer| layer.products() * frames(layer) * 1600.0).sum();
        assert!((2.0 * products / 14.94e12 - 1.0).abs() < 0.02, "{products}");
        assert_eq!((config.spatial_scale(), config.temporal_scale(), config.frames(5)), (8, 4, 17));
    }

    #[test]
    fn late_frames_depend_on_few_of_the_first_layers_and_of_the_last_ones() {
        let config = published();
        assert!(config.first_needed(0).iter().all(|first| *first == 0));
        let late = config.first_needed(4001);
        assert_eq!(late.last(), Some(&4001));
        // The last level has 7 causal convolutions.
        assert_eq!(late[late.len() - 2], 3999);
        assert!(late[0] < 1000 && late[0] > 960, "{}", late[0]);
        assert!(late.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
