//! The back end that computes.

mod causal;
mod sums;
mod tokens;

use std::ops::Range;

use tch::{Device, Tensor};
use tilewright_plan::{Dtype, Layout};
use tilewright_torch::{
    attention, cancel, conv2d, group_norm, group_norm_with, kernels, kind, linear, pointwise, to_layout,
    winograd::{self, Winograd},
};

pub use self::{
    sums::{Affine, Sums},
    tokens::{Matrix, MatrixChange, Piece},
};
use crate::{ComputeFormat, GroupNorm, Laps, Ops, Result, Rows, Store, Window, ops::convolve_then_norm};

/// libtorch on one device.
#[derive(Clone, Copy, Debug)]
pub struct Torch {
    format: ComputeFormat,
    device: Device,
    /// True if attention of the networks' width and type is fused on the device.
    fused: bool,
}

impl Torch {
    /// Runs networks in a format on a device. `width` is that of their attention, if they have one:
    /// fused attention is tried there first, because some devices have none or get it wrong.
    pub fn new(format: ComputeFormat, device: Device, width: Option<i64>) -> Self {
        Self { format, device, fused: width.is_some_and(|width| fuses_attention(&format, device, width)) }
    }

    /// Divides attention and feed-forward layers, and sums FP8 products, as a format says, of which
    /// nothing else differs.
    pub fn divide_as(&mut self, format: &ComputeFormat) {
        let ComputeFormat { queries, feed_forward_parts, quick_fp8_sums, .. } = *format;
        self.format = ComputeFormat { queries, feed_forward_parts, quick_fp8_sums, ..self.format };
    }
}

/// True if attention whose heads have this width is fused on a device in a format, where it is
/// tried.
pub fn fuses_attention(format: &ComputeFormat, device: Device, width: i64) -> bool {
    attention::is_fused(device, width, format.product_dtype)
}

impl Ops for Torch {
    type Tensor = Tensor;
    type Weight = Tensor;
    type Kernel = Winograd;
    type Sums = Sums;
    type Affine = Affine;

    fn format(&self) -> ComputeFormat {
        self.format
    }

    fn has_winograd(&self) -> bool {
        self.format.has_winograd(&kernels(self.device))
    }

    fn extents(&self, picture: &Tensor) -> Result<[i64; 4]> {
        Ok(picture.size4()?.into())
    }

    fn share(&self, tensor: &Tensor) -> Tensor {
        tensor.shallow_clone()
    }

    fn laps(&self, range: Range<i64>, step: i64) -> Laps {
        Laps::new(range, step, None)
    }

    fn empty(&self, [batch, channels, height, width]: [i64; 4]) -> Result<Tensor> {
        let options = (kind(self.format.layer_dtype)?, self.device);
        Ok(match self.format.layout {
            Layout::ChannelsFirst => Tensor::f_empty([batch, channels, height, width], options)?,
            Layout::ChannelsLast => {
                Tensor::f_empty([batch, height, width, channels], options)?.f_permute([0, 3, 1, 2])?
            }
        })
    }

    fn copy_onto(&self, tensor: &Tensor, from: &Tensor) -> Result<()> {
        cancel::check()?;
        tensor.shallow_clone().f_copy_(from)?;
        Ok(())
    }

    fn pad(&self, tensor: &Tensor, zeros: &[i64]) -> Result<Tensor> {
        Ok(tensor.f_constant_pad_nd(zeros)?)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<i64> {
        tensor.size()
    }

    fn narrow(&self, tensor: &Tensor, axis: usize, start: i64, length: i64) -> Result<Tensor> {
        Ok(tensor.f_narrow(axis as i64, start, length)?)
    }

    fn transpose(&self, tensor: &Tensor, one: usize, other: usize) -> Result<Tensor> {
        Ok(tensor.f_transpose(one as i64, other as i64)?)
    }

    fn permute(&self, tensor: &Tensor, order: &[usize]) -> Result<Tensor> {
        let order: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
        Ok(tensor.f_permute(order)?)
    }

    fn reshape(&self, tensor: &Tensor, shape: &[i64]) -> Result<Tensor> {
        Ok(tensor.f_reshape(shape)?)
    }

    fn contiguous(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(tensor.f_contiguous()?)
    }

    fn to_memory_order(&self, tensor: &Tensor) -> Result<Tensor> {
        cancel::check()?;
        Ok(to_layout(tensor, self.format.layout)?)
    }

    fn to_dtype(&self, tensor: Tensor, dtype: Dtype) -> Result<Tensor> {
        Ok(tensor.f_to_kind(kind(dtype)?)?)
    }

    fn upsample_nearest(&self, picture: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = picture.size4()?;
        cancel::check()?;
        Ok(picture.f_upsample_nearest2d([2 * height, 2 * width], None, None)?)
    }

    fn add_onto(&self, tensor: &Tensor, other: &Tensor) -> Result<()> {
        cancel::check()?;
        let _ = tensor.shallow_clone().f_add_(other)?;
        Ok(())
    }

    fn silu(&self, mut tensor: Tensor) -> Result<Tensor> {
        cancel::check()?;
        Ok(tensor.f_silu_()?)
    }

    fn group_norm(&self, picture: &Tensor, norm: GroupNorm<'_, Tensor>) -> Result<Tensor> {
        cancel::check()?;
        Ok(group_norm(picture, norm.weight, norm.bias, norm.groups, norm.epsilon)?)
    }

    fn convolution(&self, picture: &Tensor, weight: &Tensor, bias: &Tensor, window: Window) -> Result<Tensor> {
        let is_pointwise = weight.size4()?.2 == 1 && window == Window { stride: 1, padding: [0; 2] };
        // Products don't round to TF32, convolutions do.
        if is_pointwise && self.format.layout == Layout::ChannelsFirst && !self.format.tf32 {
            return Ok(pointwise(picture, weight, bias)?);
        }
        Ok(conv2d(picture, weight, Some(bias), window.stride, window.padding, self.format.tf32)?)
    }

    fn normed_convolution(
        &self,
        picture: Tensor,
        [weight, bias]: [&Tensor; 2],
        window: Window,
        norm: GroupNorm<'_, Tensor>,
    ) -> Result<Tensor> {
        let ComputeFormat { product_dtype, layer_dtype, tf32, .. } = self.format;
        // A GPU's libraries add a bias in a pass of its own, and norms in 16 bits have one anyway.
        if self.device == Device::Cpu || product_dtype != layer_dtype || layer_dtype == Dtype::F32 {
            return convolve_then_norm(self, picture, [weight, bias], window, norm);
        }
        let output = conv2d(&picture, weight, None, window.stride, window.padding, tf32)?;
        drop(picture);
        cancel::check()?;
        Ok(group_norm_with(&output, bias, norm.weight, norm.bias, norm.groups, norm.epsilon)?)
    }

    fn linear(&self, tokens: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        Ok(linear(tokens, weight, Some(bias))?)
    }

    fn attention(&self, query: Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        Ok(match self.fused {
            true => attention::attend(query, key, value)?,
            false => attention::plain(&query, key, value)?,
        })
    }

    fn lay_out_weight(&self, weight: Tensor) -> Result<Tensor> {
        Ok(to_layout(&weight, self.format.layout)?)
    }

    fn winograd_kernel(&self, weight: &Tensor, bias: &Tensor, upsamples: bool) -> Result<Winograd> {
        Ok(Winograd::new(weight, bias, upsamples, kind(self.format.product_dtype)?)?)
    }

    fn winograd_convolution(
        &self,
        input: Rows<'_, Tensor>,
        kernel: &Winograd,
        before: Option<&Affine>,
        rows: Range<i64>,
        store: Store<'_, Tensor>,
        sums: Option<&mut Sums>,
    ) -> Result<()> {
        let Rows { tensor, first, height } = input;
        let (add, output) = split_store(store);
        let before = before.map(Affine::on_host).transpose()?;
        let sums = sums.map(Sums::on_host).transpose()?;
        Ok(kernel.convolve(winograd::Rows { tensor, first, height }, before, rows, add, output, sums)?)
    }

    fn sums(&self, batch: i64, channels: i64) -> Result<Sums> {
        Sums::new(self.device, batch, channels)
    }

    fn add_up(&self, sums: &mut Sums, picture: &Tensor) -> Result<()> {
        sums.add_up(picture)
    }

    fn affine(&self, norm: GroupNorm<'_, Tensor>, sums: &Sums) -> Result<Affine> {
        sums.affine(norm)
    }

    fn affine_silu(&self, picture: &Tensor, affine: &Affine) -> Result<Tensor> {
        cancel::check()?;
        affine.apply_silu(picture)
    }
}

/// The tensor that is added to the result, and its place.
fn split_store(store: Store<'_, Tensor>) -> (Option<&Tensor>, Option<&Tensor>) {
    match store {
        Store::Nowhere => (None, None),
        Store::Onto(output) => (None, Some(output)),
        Store::Added(output) => (Some(output), Some(output)),
    }
}
