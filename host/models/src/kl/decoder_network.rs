//! The decoder's layers.

use tilewright_nn::{
    Ops, Scope,
    layers::{Conv, Norm, Resnet},
};
use tilewright_plan::Dtype;

use super::{
    Config,
    bands::Bands,
    network::{Middle, prepare, resnets},
};
use crate::{
    Result,
    progress::{Step, Track},
};

#[derive(Debug)]
struct Up<O: Ops> {
    resnets: Vec<Resnet<O>>,
    upsample: Option<Conv<O>>,
}

/// The decoder's layers, over any operations.
#[derive(Debug)]
pub struct DecoderNetwork<O: Ops> {
    post_quant: Option<Conv<O>>,
    conv_in: Conv<O>,
    middle: Middle<O>,
    ups: Vec<Up<O>>,
    norm_out: Norm<O>,
    conv_out: Conv<O>,
    /// Pixels per latent pixel.
    scale: i64,
}

impl<O: Ops> DecoderNetwork<O> {
    /// Asks for each weight by diffusers' name.
    pub(super) fn build(root: &Scope<'_, O>, config: &Config) -> Result<Self> {
        let (scope, groups) = (root.at("decoder"), config.norm_groups as i64);
        let (latent, middle) = (config.latent_channels as i64, config.middle_channels as i64);
        let post_quant = config.post_quant.then(|| Conv::build(&root.at("post_quant_conv"), latent, latent, 1));
        let post_quant = post_quant.transpose()?;
        let conv_in = Conv::build(&scope.at("conv_in"), latent, middle, 3)?;
        let (layers, has_attention) = (config.middle_layers, config.middle_attention);
        let middle_block = Middle::build(&scope.at("mid_block"), middle, layers, has_attention, groups)?;
        let mut ups = Vec::new();
        let mut into = middle;
        for (index, block) in config.up_blocks.iter().enumerate() {
            let (scope, out) = (scope.at("up_blocks").at(index), block.channels as i64);
            let resnets = resnets(&scope, block.layers, [into, out], groups)?;
            if !resnets.is_empty() {
                into = out;
            }
            let conv = || Conv::build_upsampling(&scope.at("upsamplers.0.conv"), out, out);
            ups.push(Up { resnets, upsample: block.upsamples.then(conv).transpose()? });
        }
        let last = config.up_blocks.last().map_or(middle, |block| block.channels as i64);
        Ok(Self {
            post_quant,
            conv_in,
            middle: middle_block,
            ups,
            norm_out: Norm::build(&scope.at("conv_norm_out"), last, groups)?,
            conv_out: Conv::build(&scope.at("conv_out"), last, config.image_channels as i64, 3)?,
            scale: i64::from(config.spatial_scale()),
        })
    }

    /// Decodes latents to pictures in f32. In bands, the upsamplings for which `kept` says so hold
    /// their pictures.
    pub(super) fn forward(
        &self,
        ops: &O,
        latents: O::Tensor,
        band: Option<u32>,
        kept: &[bool],
        track: &mut Track<'_>,
    ) -> Result<O::Tensor> {
        let mut hidden = prepare(ops, latents)?;
        if let Some(conv) = &self.post_quant {
            hidden = conv.forward(ops, hidden)?;
        }
        if band.is_some() || self.conv_in.is_filtered() {
            let height = ops.extents(&hidden)?[2].saturating_mul(self.scale);
            let bands = Bands { ops, band: band.map(i64::from), height };
            let output = self.forward_bands(&bands, hidden, kept, track)?;
            return Ok(ops.to_dtype(output, Dtype::F32)?);
        }
        hidden = self.conv_in.forward(ops, hidden)?;
        track(Step::Layer)?;
        hidden = self.middle.forward(ops, hidden, track)?;
        for up in &self.ups {
            for resnet in &up.resnets {
                hidden = resnet.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
            if let Some(upsample) = &up.upsample {
                hidden = upsample.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
        }
        hidden = self.norm_out.forward_silu(ops, &hidden)?;
        hidden = self.conv_out.forward(ops, hidden)?;
        track(Step::Layer)?;
        Ok(ops.to_dtype(hidden, Dtype::F32)?)
    }

    /// From `conv_in`'s input to `conv_out`'s output, with norms and activations done inside
    /// the convolutions.
    fn forward_bands(
        &self,
        bands: &Bands<'_, O>,
        input: O::Tensor,
        kept: &[bool],
        track: &mut Track<'_>,
    ) -> Result<O::Tensor> {
        let mut picture = bands.convolve(&self.conv_in, input)?;
        track(Step::Layer)?;
        picture = bands.middle(&self.middle, picture, track)?;
        let mut kept = kept.iter();
        for up in &self.ups {
            for resnet in &up.resnets {
                picture = bands.resnet(resnet, picture, track)?;
            }
            if let Some(conv) = &up.upsample {
                let is_kept = kept.next() != Some(&false) || bands.band.is_none();
                picture = bands.upsample(conv, is_kept, picture, track)?;
            }
        }
        let output = bands.norm_and_convolve(&self.norm_out, &self.conv_out, &picture, track)?;
        track(Step::Layer)?;
        Ok(output)
    }
}
