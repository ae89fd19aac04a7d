//! The norm of WAN's autoencoders, with SiLU after it, in one pass over f32 channels-last values on
//! the CPU.

use tch::{Device, Kind, Tensor};

use crate::{Error, Result, ffi, tokens};

/// Scales the channels of each pixel to length √C and by `gamma` (diffusers' `WanRMS_norm`), then
/// applies SiLU if `silu` is set. `input` and `output` are `[N, C, H, W]` of one shape, f32,
/// channels-last without gaps, and may be one tensor; `gamma` holds C values.
///
/// # Errors
/// A tensor has another shape, type or order.
pub fn unit_norm(input: &Tensor, gamma: &Tensor, silu: bool, output: &Tensor) -> Result<()> {
    let (batch, channels, height, width) = input.size4()?;
    let fits = |tensor: &Tensor| -> Result<bool> {
        let flat = tensor.f_permute([0, 2, 3, 1])?;
        Ok(tensor.f_kind()? == Kind::Float && tensor.device() == Device::Cpu && flat.is_contiguous())
    };
    let fitting = fits(input)? && fits(output)? && output.size() == input.size();
    let (true, Some(factors)) = (fitting, tokens::vector(gamma, channels)) else {
        return Err(Error::Torch(format!(
            "a norm of {:?} into {:?} by {:?}: f32, channels-last, of one shape were expected",
            input.size(),
            output.size(),
            gamma.size()
        )));
    };
    let raw = ffi::RawUnitNorm {
        pixels: batch * height * width,
        channels,
        silu: silu.into(),
        input: input.data_ptr().cast(),
        gamma: factors,
        output: output.data_ptr().cast(),
    };
    // SAFETY: every address is of as many contiguous f32 as the shapes checked above say, and lives
    // through the call; the shim reads each pixel before it writes it, so that input and output may
    // be the same.
    unsafe { ffi::tw_unit_norm(&raw) }
}
