//! The decoder's steps in the order that they run.

use tilewright_kernels::TAPS;
use tilewright_nn::{CausalOps, End as Side, Layer, Scope, layers::Conv};

use super::{
    Config, Spread,
    clip::Piece,
    layers::{Past, SquareOrder, UnitNorm, pointwise},
    steps::{Attention, Begin, Convolve, Double, End, Step, Still},
};
use crate::{Family, Result};

/// A step at its place.
#[derive(Debug)]
pub(super) struct Placed<O: CausalOps> {
    block: Layer,
    step: Box<dyn Step<O>>,
    /// Frames of its input per latent frame.
    pub frames: u32,
}

impl<O: CausalOps> Placed<O> {
    /// Takes a piece through the step and to the next one. If it ends early, the piece and the past
    /// are such that it may be called again.
    pub fn run(
        &self,
        ops: &O,
        piece: &mut Piece<O::Tensor>,
        past: &mut Past<O::Tensor>,
        spread: &Spread,
    ) -> Result<()> {
        let _running = ops.begin(&self.block);
        ops.see(&self.block, Side::In, &piece.frames)?;
        self.step.run(ops, piece, past, spread)?;
        // The first half of a residual layer leaves its own beside the frames.
        ops.see(&self.block, Side::Out, piece.hidden.as_ref().unwrap_or(&piece.frames))?;
        (piece.done, piece.convolved) = (0, false);
        piece.layer += 1;
        Ok(())
    }
}

/// The decoder's network with its weights.
#[derive(Debug)]
pub struct Network<O: CausalOps> {
    pub(super) steps: Vec<Placed<O>>,
    /// Output frames per latent frame.
    pub(super) scale: u32,
    /// Output pixels along a side of a patch.
    pub(super) patch: i64,
    /// The order of its pixels among the last convolution's channels.
    pub(super) order: SquareOrder,
}

/// Steps as they are added.
struct Line<O: CausalOps> {
    steps: Vec<Placed<O>>,
    frames: u32,
}

impl<O: CausalOps> Line<O> {
    fn add(&mut self, scope: &Scope<'_, O>, step: impl Step<O> + 'static) {
        let (frames, copies) = (self.frames, step.copies());
        self.steps.push(Placed { block: scope.block(), step: Box::new(step), frames });
        self.frames *= copies;
    }

    fn add_residual(&mut self, scope: &Scope<'_, O>, into: i64, out: i64) -> Result<()> {
        for (part, half) in ["conv1", "conv2"].into_iter().zip(Convolve::residual(scope, into, out)?) {
            self.add(&scope.at(part), half);
        }
        Ok(())
    }
}

impl<O: CausalOps> Network<O> {
    /// The network of an architecture with the weights that the scope gives.
    ///
    /// # Errors
    /// A weight can't be had.
    pub fn build(root: &Scope<'_, O>, config: &Config) -> Result<Self> {
        let mut line = Line { steps: Vec::new(), frames: 1 };
        let (latent, middle) = (config.latent_channels as i64, config.middle_channels as i64);
        let decoder = root.at("decoder");
        let scope = root.at("post_quant_conv");
        line.add(&scope, Still(pointwise(&scope, latent, latent, 1)?));
        let scope = decoder.at("conv_in");
        line.add(&scope, Convolve::alone(&scope, None, latent, middle)?);
        let scope = decoder.at("mid_block");
        line.add_residual(&scope.at("resnets").at(0), middle, middle)?;
        let attention = scope.at("attentions").at(0);
        line.add(&attention, Attention::build(&attention, middle)?);
        line.add_residual(&scope.at("resnets").at(1), middle, middle)?;
        let mut last = middle;
        for (index, block) in config.up_blocks.iter().enumerate() {
            let scope = decoder.at("up_blocks").at(index);
            let (first, channels) = (block.into as i64, block.channels as i64);
            if block.duplicated {
                line.add(&scope.at("avg_shortcut"), Begin);
            }
            for layer in 0..block.layers {
                line.add_residual(&scope.at("resnets").at(layer), if layer == 0 { first } else { channels }, channels)?;
            }
            last = channels;
            let Some(upsample) = block.upsample else { continue };
            let (larger, shortcut) = (scope.at("upsamplers.0"), scope.at("avg_shortcut"));
            let out = upsample.channels as i64;
            let [space, time] = ["resample.1", "time_conv"].map(|part| larger.at(part));
            let doubled = Still(Conv::build_upsampling(&space, channels, out)?);
            if upsample.temporal {
                line.add(&time, Double::build(&time, channels)?);
            }
            line.add(&space, doubled);
            if block.duplicated {
                line.add(&shortcut, End::build(root.ops(), first, out, upsample.temporal)?);
            }
        }
        let norm = UnitNorm::build(&decoder.at("norm_out"), last)?;
        let (scope, out) = (decoder.at("conv_out"), config.out_channels as i64);
        line.add(&scope, Convolve::alone(&scope, Some(norm), last, out)?);
        let (scale, patch) = (config.temporal_scale().max(1), config.patch as i64);
        let order = SquareOrder::of(config.family == Family::Wan22);
        Ok(Self { steps: line.steps, scale, patch, order })
    }

    /// For each step the first frame of its input that output frames from `frame` on depend on, and
    /// last `frame` itself. Nothing that is computed of earlier ones reaches any of them.
    pub fn first_inputs(&self, frame: i64) -> Vec<i64> {
        let mut needed = vec![frame; self.steps.len() + 1];
        for (index, Placed { step, .. }) in self.steps.iter().enumerate().rev() {
            let after = needed[index + 1];
            // Frames 2j − 1 and 2j of a doubling are made of frame j.
            let own = (after + i64::from(step.copies()) - 1) / i64::from(step.copies());
            let back = if step.is_causal() { TAPS as i64 - 1 } else { 0 };
            needed[index] = (own - back).max(0);
        }
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        metered::list_weights,
        wan_vae::{UpBlock, Upsample, cost::step_products},
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
        // 14.94 TFLOP for 5 latent frames of 40×40, counted by hooks on diffusers' network, which
        // pads three taps on the first frame too.
        let config = published();
        let (network, _) = list_weights(|scope| Network::build(scope, &config)).unwrap();
        let per_frame = step_products(&config).unwrap();
        assert_eq!(per_frame.len(), network.steps.len());
        let frames = |step: &Placed<_>| f64::from(step.frames) * 4.0 + 1.0;
        let of = |(step, products): (&Placed<_>, &f64)| products * frames(step) * 1600.0;
        let products: f64 = network.steps.iter().zip(&per_frame).map(of).sum();
        assert!((2.0 * products / 14.94e12 - 1.0).abs() < 0.02, "{products}");
        assert_eq!((config.spatial_scale(), config.temporal_scale(), config.frames(5)), (8, 4, 17));
    }

    #[test]
    fn late_frames_depend_on_few_of_the_first_layers_and_of_the_last_ones() {
        let (network, _) = list_weights(|scope| Network::build(scope, &published())).unwrap();
        assert!(network.first_inputs(0).iter().all(|first| *first == 0));
        let late = network.first_inputs(4001);
        assert_eq!(late.last(), Some(&4001));
        // The last level has 7 causal convolutions.
        assert_eq!(late[late.len() - 2], 3999);
        assert!(late[0] < 1000 && late[0] > 960, "{}", late[0]);
        assert!(late.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
