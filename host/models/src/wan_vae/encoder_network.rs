//! The encoder's layers.

use tilewright_nn::{CausalOps, Ops, Scope};

use super::{
    EncoderConfig,
    encoder_layers::{Attention, Average, Causal, Conv, Downsample, Norm, Past, Resnet, patches},
    layers::SquareOrder,
};
use crate::{
    Result,
    progress::{Progress, Step, Track},
};

#[derive(Debug)]
struct Down<O: Ops> {
    resnets: Vec<Resnet<O>>,
    downsample: Option<Downsample<O>>,
    average: Option<Average>,
}

/// The encoder's network with its weights.
#[derive(Debug)]
pub struct EncoderNetwork<O: Ops> {
    conv_in: Causal<O>,
    downs: Vec<Down<O>>,
    before: Resnet<O>,
    attention: Attention<O>,
    after: Resnet<O>,
    norm_out: Norm<O>,
    conv_out: Causal<O>,
    /// The means' rows of `quant_conv`: the deviations are not computed.
    quant: Conv<O>,
    patch: i64,
    /// The order of a square's pixels among the first convolution's channels.
    order: SquareOrder,
}

impl<O: CausalOps> EncoderNetwork<O> {
    /// The network of an architecture with the weights that the scope gives.
    ///
    /// # Errors
    /// A weight can't be had.
    pub(super) fn build(root: &Scope<'_, O>, config: &EncoderConfig) -> Result<Self> {
        let encoder = root.at("encoder");
        let first = config.first_channels as i64;
        let conv_in = Causal::build(&encoder.at("conv_in"), config.in_channels as i64, first, 3)?;
        let mut downs = Vec::new();
        for (index, block) in config.down_blocks.iter().enumerate() {
            let scope = encoder.at("down_blocks").at(index);
            let (into, width) = (block.into as i64, block.channels as i64);
            let resnet = |layer: usize| {
                Resnet::build(&scope.at("resnets").at(layer), if layer == 0 { into } else { width }, width)
            };
            let resnets = (0..block.layers).map(resnet).collect::<Result<_>>()?;
            let is_temporal = block.downsample.is_some_and(|downsample| downsample.temporal);
            let downsample = block.downsample.map(|_| Downsample::build(&scope.at("downsampler"), width, is_temporal));
            let average = block.averaged.then(|| Average {
                channels: width,
                time: if is_temporal { 2 } else { 1 },
                space: if block.downsample.is_some() { 2 } else { 1 },
            });
            downs.push(Down { resnets, downsample: downsample.transpose()?, average });
        }
        let (middle, latent) = (config.middle_channels() as i64, config.latent_channels as i64);
        let scope = encoder.at("mid_block");
        Ok(Self {
            conv_in,
            downs,
            before: Resnet::build(&scope.at("resnets").at(0), middle, middle)?,
            attention: Attention::build(&scope.at("attentions").at(0), middle)?,
            after: Resnet::build(&scope.at("resnets").at(1), middle, middle)?,
            norm_out: Norm::build(&encoder.at("norm_out"), middle)?,
            conv_out: Causal::build(&encoder.at("conv_out"), middle, 2 * latent, 3)?,
            quant: Conv::first_half(&root.at("quant_conv"), latent)?,
            patch: config.patch as i64,
            order: config.order(),
        })
    }

    /// Frames [1, C, T, H, W] to latents [1, z, t, h, w], `at_once` frames after another. `shares`
    /// are those of each layer in the work, by which `step` hears of progress.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    pub(super) fn push(
        &self,
        ops: &O,
        past: &mut Past<O::Tensor>,
        frames: &O::Tensor,
        at_once: i64,
        shares: &[f64],
        step: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<O::Tensor> {
        let shape = ops.shape(frames);
        // [T, C, H, W]
        let frames = ops.transpose(&ops.reshape(frames, &shape[1..])?, 0, 1)?;
        let chunks = shape[2] / at_once;
        let mut latents = Vec::new();
        for index in 0..chunks {
            let part = ops.to_device(&ops.narrow(&frames, 0, index * at_once, at_once)?)?;
            let mut within = |share: f64| step((index as f64 + share) / chunks as f64);
            let mut progress = Progress::new(shares, &mut within);
            latents.push(self.forward(ops, past, &part, &mut |step| progress.track(step))?);
        }
        let latents = ops.transpose(&ops.concatenate(&latents, 0)?, 0, 1)?;
        let shape = ops.shape(&latents);
        Ok(ops.contiguous(&ops.reshape(&latents, &[&[1], &shape[..]].concat())?)?)
    }

    /// Some frames [T, C, H, W] through all layers.
    fn forward(
        &self,
        ops: &O,
        past: &mut Past<O::Tensor>,
        frames: &O::Tensor,
        track: &mut Track<'_>,
    ) -> Result<O::Tensor> {
        past.rewind();
        let frames = patches(ops, &ops.to_dtype(ops.share(frames), ops.format().layer_dtype)?, self.patch, self.order)?;
        let mut hidden = self.conv_in.forward(ops, frames, past)?;
        track(Step::Layer)?;
        for down in &self.downs {
            let shortcut = down.average.map(|average| average.forward(ops, &hidden)).transpose()?;
            for resnet in &down.resnets {
                hidden = resnet.forward(ops, hidden, past)?;
                track(Step::Layer)?;
            }
            if let Some(downsample) = &down.downsample {
                hidden = downsample.forward(ops, hidden, past)?;
                track(Step::Layer)?;
            }
            if let Some(shortcut) = shortcut {
                hidden = ops.add(&hidden, &shortcut)?;
            }
        }
        hidden = self.before.forward(ops, hidden, past)?;
        track(Step::Layer)?;
        hidden = self.attention.forward(ops, hidden)?;
        hidden = self.after.forward(ops, hidden, past)?;
        track(Step::Layer)?;
        hidden = self.norm_out.forward_silu(ops, &hidden)?;
        hidden = self.conv_out.forward(ops, hidden, past)?;
        let means = ops.in_f32(&self.quant.forward(ops, &hidden)?)?;
        track(Step::Layer)?;
        Ok(means)
    }
}
