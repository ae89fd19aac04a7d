//! Convolutions of the video networks.

use tch::{Device, Kind, Tensor};
use tilewright_plan::Layout;
use tilewright_torch::{
    pointwise,
    winograd::{Rows, Winograd},
};

use crate::{ComputeFormat, Result};

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
}
