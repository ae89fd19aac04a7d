//! The encoder's layers.

use tilewright_nn::{
    Ops, Scope,
    layers::{Conv, Downsample, Norm, Resnet},
};
use tilewright_plan::Dtype;

use super::{
    EncoderConfig,
    bands::Bands,
    network::{Middle, prepare, resnets},
};
use crate::{
    Result,
    progress::{Step, Track},
};

#[derive(Debug)]
struct Down<O: Ops> {
    resnets: Vec<Resnet<O>>,
    downsample: Option<Downsample<O>>,
}

/// The encoder's layers, over any operations.
#[derive(Debug)]
pub struct EncoderNetwork<O: Ops> {
    conv_in: Conv<O>,
    downs: Vec<Down<O>>,
    middle: Middle<O>,
    norm_out: Norm<O>,
    conv_out: Conv<O>,
    quant: Option<Conv<O>>,
    latent_channels: i64,
}

impl<O: Ops> EncoderNetwork<O> {
    /// Asks for each weight by diffusers' name.
    pub(super) fn build(root: &Scope<'_, O>, config: &EncoderConfig) -> Result<Self> {
        let (scope, groups) = (root.at("encoder"), config.norm_groups as i64);
        let (first, middle) = (config.first_channels as i64, config.middle_channels as i64);
        let latent_channels = config.latent_channels as i64;
        let conv_in = Conv::build(&scope.at("conv_in"), config.image_channels as i64, first, 3)?;
        let mut downs = Vec::new();
        let mut into = first;
        for (index, block) in config.down_blocks.iter().enumerate() {
            let (scope, out) = (scope.at("down_blocks").at(index), block.channels as i64);
            let resnets = resnets(&scope, block.layers, [into, out], groups)?;
            if !resnets.is_empty() {
                into = out;
            }
            let downsample = || Downsample::build(&scope.at("downsamplers.0.conv"), out);
            downs.push(Down { resnets, downsample: block.downsamples.then(downsample).transpose()? });
        }
        let (layers, has_attention) = (config.middle_layers, config.middle_attention);
        let middle_block = Middle::build(&scope.at("mid_block"), middle, layers, has_attention, groups)?;
        let moments = 2 * latent_channels;
        let quant = || Conv::build(&root.at("quant_conv"), moments, moments, 1);
        Ok(Self {
            conv_in,
            downs,
            middle: middle_block,
            norm_out: Norm::build(&scope.at("conv_norm_out"), middle, groups)?,
            conv_out: Conv::build(&scope.at("conv_out"), middle, moments, 3)?,
            quant: config.quant.then(quant).transpose()?,
            latent_channels,
        })
    }

    /// Encodes pictures to the means of their latents in f32.
    pub(super) fn forward(&self, ops: &O, pictures: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        let hidden = prepare(ops, pictures)?;
        let mut moments = match self.conv_in.is_filtered() {
            true => self.forward_fused(ops, hidden, track)?,
            false => self.layers(ops, hidden, track)?,
        };
        if let Some(quant) = &self.quant {
            moments = quant.forward(ops, moments)?;
        }
        // The other half is the variance's logarithm, which only sampling needs.
        let means = ops.contiguous(&ops.narrow(&moments, 1, 0, self.latent_channels)?)?;
        Ok(ops.to_dtype(means, Dtype::F32)?)
    }

    /// Layer by layer, from `conv_in`'s input to `conv_out`'s output.
    fn layers(&self, ops: &O, input: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        let mut hidden = self.conv_in.forward(ops, input)?;
        track(Step::Layer)?;
        for down in &self.downs {
            for resnet in &down.resnets {
                hidden = resnet.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
            if let Some(downsample) = &down.downsample {
                hidden = downsample.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
        }
        hidden = self.middle.forward(ops, hidden, track)?;
        hidden = self.norm_out.forward_silu(ops, &hidden)?;
        hidden = self.conv_out.forward(ops, hidden)?;
        track(Step::Layer)?;
        Ok(hidden)
    }

    /// The same with norms and activations done inside the convolutions.
    fn forward_fused(&self, ops: &O, input: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        let whole = Bands { ops, band: None, height: ops.extents(&input)?[2] };
        let mut picture = whole.convolve(&self.conv_in, input)?;
        track(Step::Layer)?;
        for down in &self.downs {
            for resnet in &down.resnets {
                picture = whole.resnet(resnet, picture, track)?;
            }
            if let Some(downsample) = &down.downsample {
                picture = whole.downsample(downsample, picture)?;
                track(Step::Layer)?;
            }
        }
        picture = whole.middle(&self.middle, picture, track)?;
        let moments = whole.norm_and_convolve(&self.norm_out, &self.conv_out, &picture, track)?;
        track(Step::Layer)?;
        Ok(moments)
    }
}
