//! libtorch's side of the operations on frames.

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_plan::Layout;
use tilewright_torch::{
    cancel, conv2d, kind,
    profile::Category,
    scalar, to_layout, unit_norm,
    winograd::{Rows, Winograd},
};

use super::{Torch, amounts, split_store};
use crate::{CausalOps, Ops, Result, Store};

/// The least length that a pixel is divided by, as in torch.nn.functional.normalize: a pixel of
/// zeros stays zero.
const LEAST_LENGTH: f64 = 1e-12;

impl Torch {
    /// Weights in the format's memory order if they are those of a convolution.
    fn laid_out_picture(&self, weight: Tensor) -> Result<Tensor> {
        if weight.dim() == 4 { self.lay_out_weight(weight) } else { Ok(weight) }
    }
}

impl CausalOps for Torch {
    type CausalKernel = Winograd;

    fn is_cpu(&self) -> bool {
        self.device == Device::Cpu
    }

    fn zeros(&self, shape: [i64; 4], like: &Tensor) -> Result<Tensor> {
        Ok(Tensor::f_zeros(shape, (like.f_kind()?, like.device()))?)
    }

    fn copy(&self, tensor: &Tensor) -> Result<Tensor> {
        let _copy = amounts::moved("tilewright::copy", Category::Copies, tensor, 2.0);
        Ok(tilewright_torch::copy(tensor)?)
    }

    fn concatenate(&self, parts: &[Tensor], axis: usize) -> Result<Tensor> {
        cancel::check()?;
        let _joined = amounts::concatenated(parts);
        Ok(Tensor::f_cat(parts, axis as i64)?)
    }

    fn add(&self, tensor: &Tensor, other: &Tensor) -> Result<Tensor> {
        let _sum = amounts::each_value("tilewright::add", Category::Elementwise, 1.0, &[tensor, other, tensor]);
        Ok(tensor.f_add(other)?)
    }

    fn every_other(&self, frames: &Tensor, range: Range<i64>) -> Result<Tensor> {
        Ok(frames.f_slice(0, range.start, range.end, 2)?)
    }

    fn mean(&self, tensor: &Tensor, axis: usize) -> Result<Tensor> {
        let _mean = amounts::each_value("tilewright::mean", Category::Elementwise, 1.0, &[tensor]);
        Ok(tensor.f_mean_dim([axis as i64].as_slice(), false, None)?)
    }

    fn clamp(&self, tensor: &Tensor) -> Result<Tensor> {
        let _clamped = amounts::each_value("tilewright::clamp", Category::Elementwise, 2.0, &[tensor, tensor]);
        Ok(scalar::clamp(tensor, -1.0, 1.0)?)
    }

    fn rms_norm(&self, frames: &Tensor, gamma: &Tensor, silu: bool) -> Result<Tensor> {
        let (count, channels, height, width) = frames.size4()?;
        let output = self.empty([count, channels, height, width])?;
        let _norm = amounts::norm("tilewright::rms_norm", frames, || 2);
        if self.has_winograd() {
            unit_norm(frames, gamma, silu, &output)?;
            return Ok(output);
        }
        // In f32 and back, a frame at a time: only this frame's normed copy is held in f32. GPUs
        // convert as they read; on CPUs each operation would make a copy in f32 of its own.
        let gamma =
            scalar::multiply(&gamma.f_to_kind(Kind::Float)?, (channels as f64).sqrt())?.f_view([1, -1, 1, 1])?;
        for index in 0..count {
            cancel::check()?;
            let mut frame = frames.f_narrow(0, index, 1)?;
            if self.is_cpu() {
                frame = frame.f_to_kind(Kind::Float)?;
            }
            let length = scalar::clamp_min_in_place(scalar::length(&frame, 1)?, LEAST_LENGTH)?;
            let mut normed = frame.f_div(&length)?.f_mul_(&gamma)?;
            if silu {
                normed = normed.f_silu_()?;
            }
            output.f_narrow(0, index, 1)?.f_copy_(&normed)?;
        }
        Ok(output)
    }

    fn rms_norm_at_once(&self, frames: &Tensor, gamma: &Tensor) -> Result<Tensor> {
        cancel::check()?;
        let _norm = amounts::norm("tilewright::rms_norm", frames, || 4);
        let length = scalar::clamp_min_in_place(scalar::length(frames, 1)?, LEAST_LENGTH)?;
        // In f32, for frames of any type.
        Ok(frames.f_div(&length)?.f_mul_(gamma)?.f_to_kind(kind(self.format.layer_dtype)?)?)
    }

    fn convolve(
        &self,
        frames: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: i64,
        padding: [i64; 2],
    ) -> Result<Tensor> {
        let _convolution = amounts::convolution(frames, weight, stride, padding);
        Ok(conv2d(frames, weight, bias, stride, padding, self.format.tf32)?)
    }

    fn convolve_last(&self, frames: &Tensor, weight: &Tensor, bias: &Tensor, padding: [i64; 2]) -> Result<Tensor> {
        let (into, all) = (frames.size4()?.1, weight.size4()?.1);
        let weight = self.lay_out_weight(weight.f_narrow(1, all - into, into)?)?;
        self.convolve(frames, &weight, Some(bias), 1, padding)
    }

    fn winograd_frames(&self, frames: &[&Tensor], kernel: &Winograd, store: Store<'_, Tensor>) -> Result<()> {
        let rows: Vec<Rows<'_>> = frames.iter().map(|frame| Rows::all(frame)).collect();
        let (add, output) = split_store(store);
        let height = rows.last().map_or(0, |rows| rows.height);
        let (last, extents) = (frames.last().copied(), [kernel.out(), height]);
        let _convolution = amounts::winograd(last, extents, frames.len(), false, output.is_some());
        Ok(kernel.convolve_frames(&rows, None, 0..height, add, output, None)?)
    }

    fn pixel_shuffle(&self, frame: &Tensor, channels: &Tensor) -> Result<Tensor> {
        let _shuffled = amounts::moved("tilewright::pixel_shuffle", Category::Layout, frame, 4.0);
        Ok(frame.f_index_select(1, channels)?.f_pixel_shuffle(2)?)
    }

    fn channels(&self, from: &[i64]) -> Result<Tensor> {
        Ok(Tensor::f_from_slice(from)?.f_to_device(self.device)?)
    }

    fn causal_kernel(&self, weight: &Tensor, bias: &Tensor) -> Result<Winograd> {
        Ok(Winograd::causal(weight, bias, kind(self.format.product_dtype)?)?)
    }

    fn rearrange(&self, weight: &Tensor, order: &[usize], shape: &[i64]) -> Result<Tensor> {
        self.laid_out_picture(self.permute(weight, order)?.f_reshape(shape)?)
    }

    fn tap(&self, weight: &Tensor, time: i64) -> Result<Tensor> {
        self.laid_out_picture(weight.f_select(2, time)?)
    }

    fn first_outputs(&self, weight: &Tensor, count: i64) -> Result<Tensor> {
        self.laid_out_picture(weight.f_narrow(0, 0, count)?)
    }

    fn pad_bias(&self, bias: &Tensor, zeros: i64) -> Result<Tensor> {
        let none = Tensor::f_zeros([zeros], (bias.f_kind()?, bias.device()))?;
        Ok(Tensor::f_cat(&[none, bias.shallow_clone()], 0)?)
    }

    fn scale(&self, weight: &Tensor, factor: f64) -> Result<Tensor> {
        Ok(scalar::multiply(weight, factor)?)
    }

    fn to_format_of(&self, tensor: &Tensor, like: &Tensor) -> Result<Tensor> {
        let tensor = tensor.f_to_device(like.device())?.f_to_kind(like.kind())?;
        let is_last = like.stride().get(1) == Some(&1) && like.size().get(1) != Some(&1);
        Ok(to_layout(&tensor, if is_last { Layout::ChannelsLast } else { Layout::ChannelsFirst })?)
    }

    fn to_device(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(tensor.f_to_device(self.device)?)
    }
}
