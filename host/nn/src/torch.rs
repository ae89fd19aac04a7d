//! The back end that computes.

mod amounts;
mod causal;
mod sums;
mod tokens;
mod watch;

use std::ops::Range;

use tch::{Device, Tensor};
use tilewright_kernels::group_norm_passes;
use tilewright_plan::{Dtype, Layout};
use tilewright_torch::{
    attention, cancel, conv2d, dtype, group_norm, group_norm_with, kernels, kind, linear, pointwise,
    profile::{self, Category, Part},
    to_layout,
    winograd::{self, Winograd},
};

pub use self::{
    sums::{Affine, Sums},
    tokens::{Matrix, MatrixChange, Piece},
    watch::{Look, Watch},
};
use crate::{ComputeFormat, End, GroupNorm, Laps, Layer, Ops, Result, Rows, Store, Window, ops::convolve_then_norm};

/// The operations of x · sigmoid(x) on a value.
const SILU: f64 = 4.0;

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

    /// The passes of a group norm over a picture.
    fn norm_passes(&self, picture: &Tensor) -> u64 {
        group_norm_passes(dtype(picture.kind()).unwrap_or(Dtype::F32), self.device == Device::Cpu)
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
    type Running = Option<profile::Range>;

    fn begin(&self, layer: &Layer) -> Option<profile::Range> {
        let kind = if layer.is_block() { Part::Block } else { Part::Layer };
        profile::part(kind, || layer.name().to_owned())
    }

    fn begin_rows(&self, rows: &Range<i64>) -> Option<profile::Range> {
        profile::part(Part::Tile, || format!("rows {}–{}", rows.start, rows.end - 1))
    }

    fn see(&self, layer: &Layer, end: End, tensor: &Tensor) -> Result<()> {
        watch::see(layer.name(), end, tensor)
    }

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
        let _copy = amounts::each_value("tilewright::copy", Category::Copies, 0.0, &[tensor, from]);
        tensor.shallow_clone().f_copy_(from)?;
        Ok(())
    }

    fn pad(&self, tensor: &Tensor, zeros: &[i64]) -> Result<Tensor> {
        let _pad = amounts::moved("tilewright::pad", Category::Layout, tensor, 2.0);
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
        let _order =
            (!tensor.is_contiguous()).then(|| amounts::moved("tilewright::reshape", Category::Layout, tensor, 2.0));
        Ok(tensor.f_reshape(shape)?)
    }

    fn contiguous(&self, tensor: &Tensor) -> Result<Tensor> {
        let _order =
            (!tensor.is_contiguous()).then(|| amounts::moved("tilewright::contiguous", Category::Layout, tensor, 2.0));
        Ok(tensor.f_contiguous()?)
    }

    fn to_memory_order(&self, tensor: &Tensor) -> Result<Tensor> {
        cancel::check()?;
        let _order = amounts::reordered(tensor, self.format.layout);
        Ok(to_layout(tensor, self.format.layout)?)
    }

    fn to_dtype(&self, tensor: Tensor, dtype: Dtype) -> Result<Tensor> {
        let wanted = kind(dtype)?;
        if tensor.f_kind()? == wanted {
            return Ok(tensor);
        }
        let _cast = amounts::cast(&tensor, wanted);
        Ok(tensor.f_to_kind(wanted)?)
    }

    fn upsample_nearest(&self, picture: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = picture.size4()?;
        cancel::check()?;
        let _larger = amounts::moved("tilewright::upsample", Category::Layout, picture, 5.0);
        Ok(picture.f_upsample_nearest2d([2 * height, 2 * width], None, None)?)
    }

    fn add_onto(&self, tensor: &Tensor, other: &Tensor) -> Result<()> {
        cancel::check()?;
        let _sum = amounts::each_value("tilewright::add", Category::Elementwise, 1.0, &[tensor, other, tensor]);
        let _ = tensor.shallow_clone().f_add_(other)?;
        Ok(())
    }

    fn silu(&self, mut tensor: Tensor) -> Result<Tensor> {
        cancel::check()?;
        let _silu = amounts::each_value("tilewright::silu", Category::Elementwise, SILU, &[&tensor, &tensor]);
        Ok(tensor.f_silu_()?)
    }

    fn group_norm(&self, picture: &Tensor, norm: GroupNorm<'_, Tensor>) -> Result<Tensor> {
        cancel::check()?;
        let _norm = amounts::norm("tilewright::group_norm", picture, || self.norm_passes(picture));
        Ok(group_norm(picture, norm.weight, norm.bias, norm.groups, norm.epsilon)?)
    }

    fn convolution(&self, picture: &Tensor, weight: &Tensor, bias: &Tensor, window: Window) -> Result<Tensor> {
        let is_pointwise = weight.size4()?.2 == 1 && window == Window { stride: 1, padding: [0; 2] };
        let _convolution = amounts::convolution(picture, weight, window.stride, window.padding);
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
        layers: [&Layer; 2],
    ) -> Result<Tensor> {
        let ComputeFormat { product_dtype, layer_dtype, tf32, .. } = self.format;
        // A GPU's libraries add a bias in a pass of its own, and norms in 16 bits have one anyway.
        if self.device == Device::Cpu || product_dtype != layer_dtype || layer_dtype == Dtype::F32 {
            return convolve_then_norm(self, picture, [weight, bias], window, norm, layers);
        }
        // The bias is added by the norm, so that the convolution's own result is never there.
        let running = self.begin(layers[0]);
        let convolution = amounts::convolution(&picture, weight, window.stride, window.padding);
        let output = conv2d(&picture, weight, None, window.stride, window.padding, tf32)?;
        drop((picture, convolution, running));
        cancel::check()?;
        let _running = self.begin(layers[1]);
        let _norm = amounts::norm("tilewright::group_norm", &output, || self.norm_passes(&output));
        Ok(group_norm_with(&output, bias, norm.weight, norm.bias, norm.groups, norm.epsilon)?)
    }

    fn linear(&self, tokens: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let _product = amounts::linear(tokens, weight);
        Ok(linear(tokens, weight, Some(bias))?)
    }

    fn attention(&self, query: Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let _attention = amounts::attention("tilewright::attention", [&query, key], &[value, &query]);
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
        let extents = [kernel.out(), rows.end - rows.start];
        let _convolution = amounts::winograd(Some(tensor), extents, 1, kernel.upsamples(), output.is_some());
        let before = before.map(Affine::on_host).transpose()?;
        let sums = sums.map(Sums::on_host).transpose()?;
        Ok(kernel.convolve(winograd::Rows { tensor, first, height }, before, rows, add, output, sums)?)
    }

    fn sums(&self, batch: i64, channels: i64) -> Result<Sums> {
        Sums::new(self.device, batch, channels)
    }

    fn add_up(&self, sums: &mut Sums, picture: &Tensor) -> Result<()> {
        let _sums = amounts::norm("tilewright::sums", picture, || 1);
        sums.add_up(picture)
    }

    fn affine(&self, norm: GroupNorm<'_, Tensor>, sums: &Sums) -> Result<Affine> {
        sums.affine(norm)
    }

    fn affine_silu(&self, picture: &Tensor, affine: &Affine) -> Result<Tensor> {
        cancel::check()?;
        let _norm = amounts::norm("tilewright::norm_silu", picture, || 4);
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
