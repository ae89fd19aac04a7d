//! The decoder's layers. Tensors are [N, C, H, W] in the memory order of [`Numeric::layout`]; each layer takes its input by value
//! so that memory is given back as soon as nothing needs it.

use tch::{Kind, Tensor};
use tilewright_torch::{channels_last, probe};

use super::decoder::Numeric;
use crate::Result;

/// Of every norm in these networks (diffusers' `resnet_eps`).
const EPSILON: f64 = 1e-6;

/// A convolution of stride 1 that keeps height and width.
#[derive(Debug)]
pub(super) struct Conv {
    pub weight: Tensor,
    pub bias: Tensor,
    pub padding: i64,
}

impl Conv {
    pub fn forward(&self, input: &Tensor, numeric: &Numeric) -> Result<Tensor> {
        let side = [self.padding, self.padding];
        let convert = |tensor: &Tensor| tensor.f_to_kind(numeric.convolution);
        let output = convert(input)?.f_conv2d(&self.weight, Some(&self.bias), [1, 1], side, [1, 1], 1)?;
        Ok(output.f_to_kind(numeric.rest)?)
    }
}

/// A group norm.
#[derive(Debug)]
pub(super) struct Norm {
    pub weight: Tensor,
    pub bias: Tensor,
    pub groups: i64,
}

impl Norm {
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.f_group_norm(self.groups, Some(&self.weight), Some(&self.bias), EPSILON, true)?)
    }

    /// The norm, then x · sigmoid(x) in its place.
    pub fn forward_silu(&self, input: &Tensor) -> Result<Tensor> {
        Ok(self.forward(input)?.f_silu_()?)
    }
}

/// norm, SiLU, convolution, twice, added to the input.
#[derive(Debug)]
pub(super) struct Resnet {
    pub norm1: Norm,
    pub conv1: Conv,
    pub norm2: Norm,
    pub conv2: Conv,
    pub shortcut: Option<Conv>,
}

impl Resnet {
    pub fn forward(&self, input: Tensor, numeric: &Numeric) -> Result<Tensor> {
        let hidden = self.norm1.forward_silu(&input)?;
        let hidden = self.conv1.forward(&hidden, numeric)?;
        let hidden = self.norm2.forward_silu(&hidden)?;
        let mut output = self.conv2.forward(&hidden, numeric)?;
        drop(hidden);
        let input = match &self.shortcut {
            Some(shortcut) => shortcut.forward(&input, numeric)?,
            None => input,
        };
        Ok(output.f_add_(&input)?)
    }
}

/// A linear layer over the channels.
#[derive(Debug)]
pub(super) struct Linear {
    pub weight: Tensor,
    pub bias: Tensor,
}

impl Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.f_linear(&self.weight, Some(&self.bias))?)
    }
}

/// Attention of one head over all pixels, added to the input.
#[derive(Debug)]
pub(super) struct Attention {
    pub norm: Norm,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    /// libtorch's fused attention is right on this device for this width and type.
    pub fused: bool,
}

impl Attention {
    pub fn forward(&self, input: Tensor, numeric: &Numeric) -> Result<Tensor> {
        let (batch, channels, height, width) = input.size4()?;
        // [N, tokens, C]
        let tokens = self.norm.forward(&input)?.f_flatten(2, 3)?.f_transpose(1, 2)?.f_contiguous()?.f_to_kind(numeric.convolution)?;
        let (query, key, value) = (self.query.forward(&tokens)?, self.key.forward(&tokens)?, self.value.forward(&tokens)?);
        drop(tokens);
        let mixed = match self.fused {
            true => probe::fused_attention(&query, &key, &value)?,
            false => probe::plain_attention(&query, &key, &value)?,
        };
        drop((query, key, value));
        let output = self.output.forward(&mixed)?.f_to_kind(numeric.rest)?;
        let output = output.f_transpose(1, 2)?.f_reshape([batch, channels, height, width])?;
        Ok(input.f_add(&output)?)
    }
}

/// Twice the height and width by repeating pixels, then a convolution.
#[derive(Debug)]
pub(super) struct Upsample {
    pub conv: Conv,
}

impl Upsample {
    pub fn forward(&self, input: Tensor, numeric: &Numeric) -> Result<Tensor> {
        let (_, _, height, width) = input.size4()?;
        let larger = input.f_upsample_nearest2d([2 * height, 2 * width], None, None)?;
        drop(input);
        self.conv.forward(&larger, numeric)
    }
}

/// `kind` and memory order for the first layer.
pub(super) fn prepare(input: &Tensor, numeric: &Numeric) -> Result<Tensor> {
    let input = input.f_to_kind(numeric.rest)?;
    Ok(match numeric.layout {
        tilewright_plan::Layout::ChannelsFirst => input.f_contiguous()?,
        tilewright_plan::Layout::ChannelsLast => channels_last(&input)?,
    })
}

/// To f32 for what comes after the network.
pub(super) fn finish(output: &Tensor) -> Result<Tensor> {
    Ok(output.f_to_kind(Kind::Float)?)
}
