//! The back end that computes.

mod causal;

use tch::{Device, Kind, Tensor};
use tilewright_plan::{Dtype, Layout};
use tilewright_torch::{attention, group_norm, pointwise, to_layout};

use crate::{ComputeFormat, GroupNorm, Ops, Result, Window};

/// libtorch on one device.
#[derive(Clone, Copy, Debug)]
pub struct Torch {
    format: ComputeFormat,
    device: Device,
    /// True if libtorch's fused attention is right on the device for the networks' width and type.
    fused: bool,
}

impl Torch {
    /// Runs networks in a format on a device. `width` is that of their attention, if they have one:
    /// fused attention is tried there first, because some devices get it wrong.
    pub fn new(format: ComputeFormat, device: Device, width: Option<i64>) -> Self {
        let dtype = match format.convolution {
            Kind::BFloat16 => Dtype::Bf16,
            Kind::Half => Dtype::F16,
            _ => Dtype::F32,
        };
        Self { format, device, fused: width.is_some_and(|width| attention::fused_agrees(device, width, dtype)) }
    }
}

impl Ops for Torch {
    type Tensor = Tensor;
    type Weight = Tensor;

    fn format(&self) -> ComputeFormat {
        self.format
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

    fn reshape(&self, tensor: &Tensor, shape: &[i64]) -> Result<Tensor> {
        Ok(tensor.f_reshape(shape)?)
    }

    fn contiguous(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(tensor.f_contiguous()?)
    }

    fn ordered(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(to_layout(tensor, self.format.layout)?)
    }

    fn converted(&self, tensor: Tensor, kind: Kind) -> Result<Tensor> {
        Ok(tensor.f_to_kind(kind)?)
    }

    fn repeated(&self, picture: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = picture.size4()?;
        Ok(picture.f_upsample_nearest2d([2 * height, 2 * width], None, None)?)
    }

    fn add_onto(&self, tensor: &Tensor, other: &Tensor) -> Result<()> {
        let _ = tensor.shallow_clone().f_add_(other)?;
        Ok(())
    }

    fn silu(&self, mut tensor: Tensor) -> Result<Tensor> {
        Ok(tensor.f_silu_()?)
    }

    fn group_norm(&self, picture: &Tensor, norm: GroupNorm<'_, Tensor>) -> Result<Tensor> {
        Ok(group_norm(picture, norm.weight, norm.bias, norm.groups, norm.epsilon)?)
    }

    fn convolution(&self, picture: &Tensor, weight: &Tensor, bias: &Tensor, window: Window) -> Result<Tensor> {
        let is_pointwise = weight.size4()?.2 == 1 && window == Window { stride: 1, padding: 0 };
        if is_pointwise && self.format.layout == Layout::ChannelsFirst {
            return Ok(pointwise(picture, weight, bias)?);
        }
        let (stride, padding) = ([window.stride; 2], [window.padding; 2]);
        Ok(picture.f_conv2d(weight, Some(bias), stride, padding, [1, 1], 1)?)
    }

    fn linear(&self, tokens: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        Ok(tokens.f_linear(weight, Some(bias))?)
    }

    fn attention(&self, query: Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        Ok(match self.fused {
            true => attention::fused(query, key, value)?,
            false => attention::plain(&query, key, value)?,
        })
    }
}
