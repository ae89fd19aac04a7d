//! The networks' layers. Tensors are [N, C, H, W] in the memory order of [`ComputeFormat::layout`];
//! each layer takes its input by value so that memory is given back as soon as nothing needs it.
//! What is held at once is counted in `footprint.rs`: change both.

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_plan::Layout;
use tilewright_torch::{
    CPU_PIECE, GPU_PIECE, attention, channels_last, group_norm, pointwise, to_layout,
    winograd::{Affine, Rows, Sums, Winograd},
};

use super::progress::Progress;
use crate::{ComputeFormat, Result};

/// Of every norm in these networks (diffusers' `resnet_eps`).
const EPSILON: f64 = 1e-6;

/// In another type; what it was in is given back. Costs nothing where the type is the same.
pub(crate) fn converted(tensor: Tensor, kind: Kind) -> Result<Tensor> {
    Ok(tensor.f_to_kind(kind)?)
}

/// A convolution that keeps height and width, or doubles them first by repeating pixels.
#[derive(Debug)]
pub(crate) enum Conv {
    /// As libtorch has it, in any type and memory order.
    Plain(Plain),
    /// 3×3, f32, channels-last, on the CPU.
    Winograd(Winograd),
}

impl Conv {
    /// Output channels.
    pub fn out(&self) -> i64 {
        match self {
            Conv::Plain(conv) => conv.bias.size()[0],
            Conv::Winograd(conv) => conv.out(),
        }
    }

    /// The whole of a picture.
    pub fn forward(&self, input: Tensor, format: &ComputeFormat) -> Result<Tensor> {
        match self {
            Conv::Plain(conv) => conv.forward(input, format),
            Conv::Winograd(conv) => {
                let (batch, _, height, width) = input.size4()?;
                let scale = if conv.upsamples() { 2 } else { 1 };
                let shape = [batch, conv.out(), scale * height, scale * width];
                let output = empty(shape, format, input.device())?;
                conv.convolve(Rows::all(&input), None, 0..scale * height, None, Some(&output), None)?;
                Ok(output)
            }
        }
    }
}

/// An uninitialised picture in the type and memory order that layers hand on.
pub(crate) fn empty(
    [batch, channels, height, width]: [i64; 4],
    format: &ComputeFormat,
    device: Device,
) -> Result<Tensor> {
    let options = (format.rest, device);
    Ok(match format.layout {
        Layout::ChannelsFirst => Tensor::f_empty([batch, channels, height, width], options)?,
        Layout::ChannelsLast => Tensor::f_empty([batch, height, width, channels], options)?.f_permute([0, 3, 1, 2])?,
    })
}

/// libtorch's convolution of stride 1.
#[derive(Debug)]
pub(crate) struct Plain {
    pub weight: Tensor,
    pub bias: Tensor,
    pub padding: i64,
    /// Pixels are repeated to twice the height and width first.
    pub upsample: bool,
}

impl Plain {
    pub fn forward(&self, input: Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let side = [self.padding, self.padding];
        // A copy of pixels is the same in either type: converting first is a quarter of the work, and of the memory.
        let mut input = converted(input, format.convolution)?;
        if self.upsample {
            input = self.repeated(&input)?;
        }
        let output = match format.layout {
            Layout::ChannelsFirst if self.padding == 0 => pointwise(&input, &self.weight, &self.bias)?,
            _ => input.f_conv2d(&self.weight, Some(&self.bias), [1, 1], side, [1, 1], 1)?,
        };
        drop(input);
        converted(output, format.rest)
    }

    fn repeated(&self, input: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = input.size4()?;
        Ok(input.f_upsample_nearest2d([2 * height, 2 * width], None, None)?)
    }

    /// Some rows of the output, from an input that holds one more on either side where the picture goes on.
    pub fn rows(
        &self,
        input: Rows<'_>,
        before: Option<&Affine>,
        rows: Range<i64>,
        format: &ComputeFormat,
    ) -> Result<Tensor> {
        let scale = if self.upsample { 2 } else { 1 };
        let last = input.height * scale;
        let needed = (rows.start - self.padding).max(0)..(rows.end + self.padding).min(last);
        let stored = needed.start / scale..(needed.end + scale - 1) / scale;
        let mut part = input.tensor.f_narrow(2, stored.start - input.first, stored.end - stored.start)?;
        if let Some(affine) = before {
            part = affine_silu(&part, affine)?;
        }
        part = converted(part, format.convolution)?;
        if self.upsample {
            part = self.repeated(&part)?;
            part = part.f_narrow(2, needed.start - stored.start * scale, needed.end - needed.start)?;
        }
        let (top, bottom) = (needed.start - (rows.start - self.padding), rows.end + self.padding - needed.end);
        if top != bottom || (top != self.padding && self.padding > 0) {
            part = part.f_constant_pad_nd([0, 0, top, bottom])?;
        }
        // What is there, or was put there, is not padded again.
        let down = if top == bottom && top == self.padding { self.padding } else { 0 };
        let part = to_layout(&part, format.layout)?;
        let output = part.f_conv2d(&self.weight, Some(&self.bias), [1, 1], [down, self.padding], [1, 1], 1)?;
        converted(output, format.rest)
    }
}

/// libtorch's 3×3 convolution of stride 2, with a row and a column of zeros below and to the right and none above and to the left.
#[derive(Debug)]
pub(super) struct Downsample {
    pub weight: Tensor,
    pub bias: Tensor,
}

impl Downsample {
    /// Height and width halve. Libraries pad both sides alike: two rows above are one step of the stride, so that the output asked for begins at
    /// the second row of theirs, and no padded copy of the large picture is made.
    pub fn forward(&self, input: Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let (_, _, height, width) = input.size4()?;
        let input = converted(input, format.convolution)?;
        let wider = input.f_conv2d(&self.weight, Some(&self.bias), [2, 2], [2, 2], [1, 1], 1)?;
        drop(input);
        let output = wider.f_narrow(2, 1, height / 2)?.f_narrow(3, 1, width / 2)?;
        let output = to_layout(&output, format.layout)?;
        drop(wider);
        converted(output, format.rest)
    }
}

/// value · scale + shift and SiLU in f32, whatever type the values are in.
fn affine_silu(input: &Tensor, affine: &Affine) -> Result<Tensor> {
    let (batch, channels, ..) = input.size4()?;
    let factor = |values: &[f32]| -> Result<Tensor> {
        Ok(Tensor::f_from_slice(values)?.f_to_device(input.device())?.f_reshape([batch, channels, 1, 1])?)
    };
    let (scale, shift) = (factor(&affine.scale)?, factor(&affine.shift)?);
    Ok(shift.f_addcmul(&input.f_to_kind(Kind::Float)?, &scale)?.f_silu_()?)
}

/// Adds a picture's values up, per sample and channel: squares of values less their mean, in pieces, so that nothing is lost in f32.
pub(super) fn add_up(sums: &mut Sums, picture: &Tensor) -> Result<()> {
    let (batch, channels, height, width) = picture.size4()?;
    let most = if picture.device() == Device::Cpu { CPU_PIECE } else { GPU_PIECE };
    let piece = (most / (batch * channels * width).max(1)).clamp(1, height.max(1));
    for start in (0..height).step_by(piece as usize) {
        let part = picture.f_narrow(2, start, piece.min(height - start))?.f_to_kind(Kind::Float)?;
        let mean = part.f_mean_dim(&[2_i64, 3][..], true, None)?;
        let squares = part.f_sub(&mean)?.f_square()?.f_sum_dim_intlist(&[2_i64, 3][..], false, None)?;
        let host = |tensor: &Tensor| -> Result<Vec<f64>> {
            Ok(Vec::try_from(tensor.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?.f_reshape([-1])?)?)
        };
        let pixels = (part.size()[2] * width) as f64;
        for (index, (mean, squares)) in host(&mean)?.into_iter().zip(host(&squares)?).enumerate() {
            let (sample, channel) = (index / sums.channels, index % sums.channels);
            let place = sample * 2 * sums.channels + channel;
            sums.values[place] += pixels * mean;
            sums.values[place + sums.channels] += squares + pixels * mean * mean;
        }
        sums.pixels += pixels;
    }
    Ok(())
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
        Ok(group_norm(input, &self.weight, &self.bias, self.groups, EPSILON)?)
    }

    /// The norm of a picture of which the sums are known, as one factor and one summand per channel.
    pub fn affine(&self, sums: &Sums) -> Result<Affine> {
        let host = |tensor: &Tensor| -> Result<Vec<f64>> {
            Ok(Vec::try_from(tensor.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?)?)
        };
        let (weight, bias) = (host(&self.weight)?, host(&self.bias)?);
        let per_group = sums.channels / self.groups as usize;
        let count = sums.pixels * per_group as f64;
        let mut affine = Affine { scale: Vec::new(), shift: Vec::new() };
        for sample in sums.values.chunks(2 * sums.channels) {
            let (values, squares) = sample.split_at(sums.channels);
            for group in 0..self.groups as usize {
                let channels = group * per_group..(group + 1) * per_group;
                let mean = values[channels.clone()].iter().sum::<f64>() / count;
                let variance = (squares[channels.clone()].iter().sum::<f64>() / count - mean * mean).max(0.0);
                let factor = 1.0 / (variance + EPSILON).sqrt();
                for channel in channels {
                    let scale = factor * weight[channel];
                    affine.scale.push(scale as f32);
                    affine.shift.push((bias[channel] - mean * scale) as f32);
                }
            }
        }
        Ok(affine)
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
    pub fn forward(&self, input: Tensor, format: &ComputeFormat) -> Result<Tensor> {
        // Assigned rather than shadowed: a shadowed tensor would live on to the end.
        let mut hidden = self.norm1.forward_silu(&input)?;
        hidden = self.conv1.forward(hidden, format)?;
        hidden = self.norm2.forward_silu(&hidden)?;
        let mut output = self.conv2.forward(hidden, format)?;
        let input = match &self.shortcut {
            Some(shortcut) => shortcut.forward(input, format)?,
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
    pub fn forward(&self, input: Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let (batch, channels, height, width) = input.size4()?;
        // [N, tokens, C]
        let mut tokens = converted(self.norm.forward(&input)?, format.convolution)?;
        tokens = tokens.f_flatten(2, 3)?.f_transpose(1, 2)?.f_contiguous()?;
        let (query, key, value) =
            (self.query.forward(&tokens)?, self.key.forward(&tokens)?, self.value.forward(&tokens)?);
        drop(tokens);
        let mixed = match self.fused {
            true => attention::fused(query, &key, &value)?,
            false => attention::plain(&query, &key, &value)?,
        };
        drop((key, value));
        let mut output = self.output.forward(&mixed)?;
        drop(mixed);
        output = converted(output, format.rest)?.f_transpose(1, 2)?.f_reshape([batch, channels, height, width])?;
        let mut input = input;
        Ok(input.f_add_(&output)?)
    }
}

/// The middle block: residual layers, an attention after the first.
#[derive(Debug)]
pub(super) struct Middle {
    pub resnets: Vec<Resnet>,
    pub attention: Option<Attention>,
}

impl Middle {
    pub fn forward(&self, mut hidden: Tensor, format: &ComputeFormat, progress: &mut Progress<'_>) -> Result<Tensor> {
        for (index, resnet) in self.resnets.iter().enumerate() {
            hidden = resnet.forward(hidden, format)?;
            progress.layer()?;
            if let (0, Some(attention)) = (index, &self.attention) {
                hidden = attention.forward(hidden, format)?;
                progress.layer()?;
            }
        }
        Ok(hidden)
    }
}

/// `kind` and memory order for the first layer.
pub(super) fn prepare(input: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
    let input = input.f_to_kind(format.rest)?;
    Ok(match format.layout {
        Layout::ChannelsFirst => input.f_contiguous()?,
        Layout::ChannelsLast => channels_last(&input)?,
    })
}

/// To f32 for what comes after the network.
pub(super) fn finish(output: &Tensor) -> Result<Tensor> {
    Ok(output.f_to_kind(Kind::Float)?)
}
