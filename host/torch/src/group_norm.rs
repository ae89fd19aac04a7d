//! Group norms, in both memory orders.

use tch::{Device, Kind, Tensor};

use crate::Result;

/// Values that a pass over a picture in pieces takes at once on a CPU: a piece stays in a core's
/// cache.
pub const CPU_PIECE: i64 = 1 << 17;

/// The same on a GPU: a piece keeps it busy.
pub const GPU_PIECE: i64 = 1 << 24;

/// A group norm of a picture [N, C, H, W] with a weight and a bias per channel.
///
/// # Errors
/// The shapes don't go together, or memory is out.
pub fn group_norm(input: &Tensor, weight: &Tensor, bias: &Tensor, groups: i64, epsilon: f64) -> Result<Tensor> {
    if input.f_kind()? == Kind::Float && !input.is_contiguous() {
        return channels_last(input, weight, bias, groups, epsilon);
    }
    Ok(input.f_group_norm(groups, Some(weight), Some(bias), epsilon, true)?)
}

/// The bytes that a norm of a picture in f32 and channels-last order holds on a CPU beside its
/// input, before there is an output.
pub fn group_norm_bytes([batch, channels, height, width]: [i64; 4]) -> u64 {
    let pixel = batch.saturating_mul(channels).max(1);
    let pixels = (CPU_PIECE / pixel).clamp(1, height.saturating_mul(width).max(1));
    pixels.saturating_mul(pixel).saturating_mul(4) as u64
}

/// libtorch's norm of channels-last values adds up squares one by one in f32: at 512×512 pixels the
/// result is wrong by 5e-4 (pytorch v2.11.0, aten/src/ATen/native/cpu/group_norm_kernel.cpp,
/// `GroupNormKernelImplChannelsLast`), and on a GPU it comes out channels-first. Here squares are
/// of values less their mean, and added up piece by piece.
fn channels_last(input: &Tensor, weight: &Tensor, bias: &Tensor, groups: i64, epsilon: f64) -> Result<Tensor> {
    let (batch, channels, height, width) = input.size4()?;
    let pixels = height * width;
    let values = input.f_permute([0, 2, 3, 1])?.f_reshape([batch, pixels, channels])?;
    let mean = values.f_mean_dim(&[1_i64][..], true, None)?;
    let most = if input.device() == Device::Cpu { CPU_PIECE } else { GPU_PIECE };
    let piece = (most / (batch * channels)).clamp(1, pixels);
    let mut squares = Tensor::f_zeros([batch, channels], (Kind::Double, input.device()))?;
    for start in (0..pixels).step_by(piece as usize) {
        let mut part = values.f_narrow(1, start, piece.min(pixels - start))?.f_sub(&mean)?;
        squares = squares.f_add_(&part.f_square_()?.f_sum_dim_intlist(&[1_i64][..], false, None)?)?;
    }
    // From channels to groups: the variance within channels, and that of their means.
    let grouped = [batch, groups, channels / groups];
    let mean = mean.f_to_kind(Kind::Double)?.f_reshape(grouped)?;
    let group_mean = mean.f_mean_dim(&[2_i64][..], true, None)?;
    let spread = (squares.f_div_scalar(pixels as f64)?).f_reshape(grouped)?;
    let variance = spread.f_add(&mean.f_sub(&group_mean)?.f_square()?)?.f_mean_dim(&[2_i64][..], true, None)?;
    let per_channel = |tensor: &Tensor| -> Result<Tensor> {
        Ok(tensor.f_to_kind(Kind::Double)?.f_reshape([1, groups, channels / groups])?)
    };
    let factor = variance.f_add_scalar(epsilon)?.f_rsqrt()?.f_mul(&per_channel(weight)?)?;
    let shift = per_channel(bias)?.f_sub(&group_mean.f_mul(&factor)?)?;
    let broadcast =
        |tensor: Tensor| -> Result<Tensor> { Ok(tensor.f_to_kind(Kind::Float)?.f_reshape([batch, channels, 1, 1])?) };
    Ok(broadcast(shift)?.f_addcmul(input, &broadcast(factor)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels_last as in_channels_last;

    const EPSILON: f64 = 1e-6;

    #[test]
    fn norms_of_both_memory_orders_agree_on_large_pictures() {
        let _no_grad = tch::no_grad_guard();
        let float = (Kind::Float, Device::Cpu);
        let (weight, bias) = (Tensor::rand([64], float), Tensor::rand([64], float));
        for (batch, side) in [(2, 5), (1, 384)] {
            let input = Tensor::randn([batch, 64, side, side], float) + 3.0;
            let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
            let expected = wide(&input).group_norm(16, Some(wide(&weight)), Some(wide(&bias)), EPSILON, true);
            for input in [input.copy(), in_channels_last(&input).unwrap()] {
                let found = group_norm(&input, &weight, &bias, 16, EPSILON).unwrap();
                assert_eq!(found.stride(), input.stride());
                let difference = f64::try_from((wide(&found) - &expected).abs().max()).unwrap();
                assert!(difference < 5e-6, "{batch}×{side}×{side}: {difference}");
            }
        }
    }
}
