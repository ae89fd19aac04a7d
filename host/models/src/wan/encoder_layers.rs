//! The encoder's layers, as libtorch has them. A clip's frames are a batch, [T, C, H, W]: a convolution over three frames is three over one,
//! summed. What a layer has to remember of the frames before is kept in [`Past`].

use tch::{Device, Kind, Tensor};
use tilewright_torch::{attention, to_layout};

use super::encoder_state::layout_of;
use crate::{ComputeFormat, Result};

/// What diffusers' `F.normalize` never divides by less than.
const LEAST_LENGTH: f64 = 1e-12;

/// The last frames that each layer has seen, in the order in which the layers run. Tensors are replaced and never written to.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub frames: Vec<Option<Tensor>>,
    layer: usize,
}

impl Past {
    /// The same, to go back to.
    pub fn snapshot(&self) -> Self {
        let frames = self.frames.iter().map(|frames| frames.as_ref().map(Tensor::shallow_clone));
        Self { frames: frames.collect(), layer: 0 }
    }

    /// The layers run once more.
    pub fn rewind(&mut self) {
        self.layer = 0;
    }

    /// What the layer at hand remembers and these frames, one after the other, and how many it remembered; it will remember the last `most`.
    fn joined(&mut self, frames: Tensor, most: i64) -> Result<(Tensor, i64)> {
        if self.frames.len() <= self.layer {
            self.frames.push(None);
        }
        let place = &mut self.frames[self.layer];
        self.layer += 1;
        let (joined, before) = match place.take() {
            Some(past) => {
                // After a change of plans the past may be in another type or order, or elsewhere.
                let past = past.f_to_device(frames.device())?.f_to_kind(frames.kind())?;
                let past = to_layout(&past, layout_of(&frames))?;
                (Tensor::f_cat(&[&past, &frames], 0)?, past.size()[0])
            }
            None => (frames, 0),
        };
        let kept = most.min(joined.size()[0]);
        let last = joined.f_narrow(0, joined.size()[0] - kept, kept)?;
        // A copy: a view would keep all frames.
        let mut copy = last.f_empty_like()?;
        copy.f_copy_(&last)?;
        *place = Some(copy);
        Ok((joined, before))
    }
}

/// A convolution of one frame.
#[derive(Debug)]
pub(super) struct Conv {
    pub weight: Tensor,
    pub bias: Tensor,
    pub stride: i64,
    pub padding: i64,
}

impl Conv {
    pub fn forward(&self, input: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
        self.convolve(input, format, &self.weight, Some(&self.bias))
    }

    fn convolve(
        &self,
        input: &Tensor,
        format: &ComputeFormat,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let input = to_layout(&input.f_to_kind(format.convolution)?, format.layout)?;
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        Ok(input.f_conv2d(weight, bias, stride, padding, [1, 1], 1)?.f_to_kind(format.rest)?)
    }
}

/// A convolution of each frame and the two before it; before the first stand zeros.
#[derive(Debug)]
pub(super) struct Causal {
    /// For the frame two before, the one before, the frame itself.
    pub taps: [Tensor; 3],
    /// Of the frame itself.
    pub conv: Conv,
}

impl Causal {
    pub fn forward(&self, input: Tensor, past: &mut Past, format: &ComputeFormat) -> Result<Tensor> {
        let frames = input.size()[0];
        let (all, before) = past.joined(input.f_to_kind(format.convolution)?, 2)?;
        drop(input);
        let now = all.f_narrow(0, before, frames)?;
        let output = self.conv.convolve(&now, format, &self.taps[2], Some(&self.conv.bias))?;
        for (tap, back) in [(&self.taps[1], 1), (&self.taps[0], 2)] {
            let first = (back - before).max(0);
            if first < frames {
                let earlier = all.f_narrow(0, before + first - back, frames - first)?;
                let added = self.conv.convolve(&earlier, format, tap, None)?;
                let _ = output.f_narrow(0, first, frames - first)?.f_add_(&added)?;
            }
        }
        Ok(output)
    }
}

/// Divides each pixel by the length of its channels.
#[derive(Debug)]
pub(super) struct Norm {
    /// [1, C, 1, 1] in f32, times the square root of C.
    pub gamma: Tensor,
}

impl Norm {
    pub fn forward(&self, input: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let length = input.f_norm_scalaropt_dim_dtype(2, [1], true, Kind::Float)?.f_clamp_min_(LEAST_LENGTH)?;
        // In f32, whatever the input's type.
        Ok(input.f_div(&length)?.f_mul_(&self.gamma)?.f_to_kind(format.rest)?)
    }

    pub fn forward_silu(&self, input: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
        Ok(self.forward(input, format)?.f_silu_()?)
    }
}

#[derive(Debug)]
pub(super) struct Resnet {
    pub norm1: Norm,
    pub conv1: Causal,
    pub norm2: Norm,
    pub conv2: Causal,
    pub shortcut: Option<Conv>,
}

impl Resnet {
    pub fn forward(&self, input: Tensor, past: &mut Past, format: &ComputeFormat) -> Result<Tensor> {
        let mut hidden = self.norm1.forward_silu(&input, format)?;
        hidden = self.conv1.forward(hidden, past, format)?;
        hidden = self.norm2.forward_silu(&hidden, format)?;
        hidden = self.conv2.forward(hidden, past, format)?;
        Ok(match &self.shortcut {
            Some(conv) => hidden.f_add_(&conv.forward(&input, format)?)?,
            None => hidden.f_add_(&input)?,
        })
    }
}

/// The attention of one head within each frame.
#[derive(Debug)]
pub(super) struct Attention {
    pub norm: Norm,
    pub mixed: Conv,
    pub output: Conv,
    /// Fused attention is right on this device for this width and type.
    pub fused: bool,
}

impl Attention {
    pub fn forward(&self, input: Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let (frames, channels, height, width) = input.size4()?;
        let mixed = self.mixed.forward(&self.norm.forward(&input, format)?, format)?;
        let tokens = mixed.f_to_kind(format.convolution)?.f_flatten(2, 3)?.f_transpose(1, 2)?;
        let part = |index| tokens.f_narrow(2, index * channels, channels)?.f_contiguous();
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let attended = match self.fused {
            true => attention::fused(query, &key, &value)?,
            false => attention::plain(&query, &key, &value)?,
        };
        let attended = attended.f_transpose(1, 2)?.f_reshape([frames, channels, height, width])?;
        Ok(self.output.forward(&attended, format)?.f_add_(&input)?)
    }
}

/// Halves height and width, and perhaps the frames.
#[derive(Debug)]
pub(super) struct Downsample {
    pub space: Conv,
    /// A convolution of stride 2 over three frames, the last one of those before among them.
    pub time: Option<Causal>,
}

impl Downsample {
    pub fn forward(&self, input: Tensor, past: &mut Past, format: &ComputeFormat) -> Result<Tensor> {
        // A column and a row of zeros, at the far sides only.
        let input = input.f_constant_pad_nd([0, 1, 0, 1])?;
        let output = self.space.forward(&input, format)?;
        drop(input);
        let Some(time) = &self.time else { return Ok(output) };
        let frames = output.size()[0];
        let (all, before) = past.joined(output, 1)?;
        // The first frame of a clip stays as it is.
        if before == 0 {
            return Ok(all);
        }
        let every_other = |first: i64| all.f_slice(0, first, first + frames - 1, 2);
        let sum = time.conv.convolve(&every_other(0)?, format, &time.taps[0], Some(&time.conv.bias))?;
        let sum = sum.f_add(&time.conv.convolve(&every_other(1)?, format, &time.taps[1], None)?)?;
        Ok(sum.f_add(&time.conv.convolve(&every_other(2)?, format, &time.taps[2], None)?)?)
    }
}

/// What WAN 2.2 adds to a down block's output: its input, averaged over neighbouring pixels, frames and channels (diffusers' `AvgDown3D`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub channels: i64,
    /// Frames, and pixels in either direction, that become one.
    pub time: i64,
    pub space: i64,
}

impl Average {
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let Self { channels, time, space } = *self;
        // Zeros stand before the first frame, which is alone.
        let lacking = (time - input.size()[0] % time) % time;
        let input = input.f_constant_pad_nd([0, 0, 0, 0, 0, 0, lacking, 0])?;
        let (frames, into, height, width) = input.size4()?;
        let (frames, height, width) = (frames / time, height / space, width / space);
        let apart = input.f_reshape([frames, time, into, height, space, width, space])?;
        let group = into * time * space * space / channels;
        let grouped = apart.f_permute([0, 2, 1, 4, 6, 3, 5])?.f_reshape([frames, channels, group, height, width])?;
        Ok(grouped.f_mean_dim([2_i64].as_slice(), false, None)?)
    }
}

/// Squares of `side` pixels become channels: [T, C, H, W] to [T, C·side², H/side, W/side] (diffusers' `patchify`).
pub(super) fn patches(frames: &Tensor, side: i64) -> Result<Tensor> {
    if side == 1 {
        return Ok(frames.shallow_clone());
    }
    let (count, channels, height, width) = frames.size4()?;
    let apart = frames.f_reshape([count, channels, height / side, side, width / side, side])?;
    let apart = apart.f_permute([0, 1, 5, 3, 2, 4])?;
    Ok(apart.f_reshape([count, channels * side * side, height / side, width / side])?)
}

/// Whether fused attention is right on this device.
pub(super) fn fused(device: Device, channels: usize, format: &ComputeFormat) -> bool {
    let dtype = match format.convolution {
        Kind::BFloat16 => tilewright_plan::Dtype::Bf16,
        Kind::Half => tilewright_plan::Dtype::F16,
        _ => tilewright_plan::Dtype::F32,
    };
    attention::fused_agrees(device, channels as i64, dtype)
}
