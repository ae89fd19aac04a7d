//! Convolutions whose rounding the caller names.

use tch::Tensor;

use crate::Result;

/// A 2-D convolution of [N, C, H, W] with a weight [out, C, h, w], without dilation or groups.
///
/// With `tf32`, NVIDIA's tensor cores round f32 operands to 10 bits of mantissa on the way into the
/// product. That goes with the call: libtorch's own switch is the whole process's, where jobs of
/// other precisions run at the same time.
///
/// # Errors
/// The shapes don't go together, or memory is out.
pub fn conv2d(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: i64,
    padding: [i64; 2],
    tf32: bool,
) -> Result<Tensor> {
    if !tf32 {
        return Ok(input.f_conv2d(weight, bias, [stride; 2], padding, [1, 1], 1)?);
    }
    let (benchmark, deterministic, with_cudnn) = (false, false, true);
    Ok(input.f_internal_convolution(
        weight,
        bias,
        [stride; 2],
        padding,
        [1, 1],
        false,
        [0, 0],
        1,
        benchmark,
        deterministic,
        with_cudnn,
        true,
    )?)
}
