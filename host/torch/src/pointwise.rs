//! 1×1 convolutions as matrix products, in pieces where they take long.

use tch::Tensor;

use crate::{
    Result,
    pieces::{Operation, Pieces},
};

/// A 1×1 convolution of channels-first values [N, C, H, W] as the matrix product that it is; the
/// weight is [out, C, 1, 1]. oneDNN's convolution would reorder input and output, and in 16-bit
/// types hold the output once more in f32 for every thread.
///
/// # Errors
/// The shapes don't go together, or memory is out; the work is cancelled.
pub fn pointwise(input: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (batch, into, height, width) = input.size4()?;
    let (out, pixels) = (weight.size4()?.0, height * width);
    let weight = weight.f_reshape([1, out, into])?.f_expand([batch, out, into], false)?;
    let bias = bias.f_reshape([1, out, 1])?;
    let values = input.f_reshape([batch, into, pixels])?;
    let operations = [2, batch, into, out, pixels].map(|extent| extent as f64).iter().product();
    let pieces = Pieces::of(input.device(), input.f_kind()?, pixels, Operation::Product(operations));
    let multiply = |values: &Tensor| Ok(bias.f_baddbmm(&weight, values, 1.0, 1.0)?);
    let output = pieces.gather(2, &values, &[batch, out, pixels], multiply)?;
    Ok(output.f_reshape([batch, out, height, width])?)
}
