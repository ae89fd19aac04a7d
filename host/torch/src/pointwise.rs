//! 1×1 convolutions as matrix products.

use tch::Tensor;

use crate::Result;

/// A 1×1 convolution of channels-first values [N, C, H, W] as the matrix product that it is; the
/// weight is [out, C, 1, 1]. oneDNN's convolution would reorder input and output, and in 16-bit
/// types hold the output once more in f32 for every thread.
///
/// # Errors
/// The shapes don't go together, or memory is out.
pub fn pointwise(input: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (batch, into, height, width) = input.size4()?;
    let out = weight.size4()?.0;
    let weight = weight.f_reshape([1, out, into])?.f_expand([batch, out, into], false)?;
    let bias = bias.f_reshape([1, out, 1])?;
    let output = bias.f_baddbmm(&weight, &input.f_reshape([batch, into, height * width])?, 1.0, 1.0)?;
    Ok(output.f_reshape([batch, out, height, width])?)
}
