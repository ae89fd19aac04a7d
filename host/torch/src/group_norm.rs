//! Group norms, in both memory orders.

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{CPU_PIECE, GPU_PIECE};

use crate::{Result, cancel, scalar};

/// A group norm of a picture [N, C, H, W] with a weight and a bias per channel.
///
/// # Errors
/// The shapes don't go together, or memory is out.
pub fn group_norm(input: &Tensor, weight: &Tensor, bias: &Tensor, groups: i64, epsilon: f64) -> Result<Tensor> {
    match input.f_kind()? {
        Kind::Float if !input.is_contiguous() => return channels_last(input, weight, bias, groups, epsilon),
        Kind::BFloat16 | Kind::Half if input.device() != Device::Cpu => {
            return narrow(input, None, [weight, bias], groups, epsilon);
        }
        _ => {}
    }
    Ok(input.f_group_norm(groups, Some(weight), Some(bias), epsilon, true)?)
}

/// The same of a picture in 16 bits on a GPU plus a summand per channel: the bias of the
/// convolution before, which takes no pass over the picture then.
///
/// # Errors
/// As [`group_norm`].
pub fn group_norm_with(
    input: &Tensor,
    summand: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: i64,
    epsilon: f64,
) -> Result<Tensor> {
    narrow(input, Some(summand), [weight, bias], groups, epsilon)
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
        cancel::check()?;
        let mut part = values.f_narrow(1, start, piece.min(pixels - start))?.f_sub(&mean)?;
        squares = squares.f_add_(&part.f_square_()?.f_sum_dim_intlist(&[1_i64][..], false, None)?)?;
    }
    // From channels to groups: the variance within channels, and that of their means.
    let grouped = [batch, groups, channels / groups];
    let mean = mean.f_to_kind(Kind::Double)?.f_reshape(grouped)?;
    let group_mean = mean.f_mean_dim(&[2_i64][..], true, None)?;
    let spread = scalar::divide(&squares, pixels as f64)?.f_reshape(grouped)?;
    let variance = spread.f_add(&mean.f_sub(&group_mean)?.f_square()?)?.f_mean_dim(&[2_i64][..], true, None)?;
    let per_channel = |tensor: &Tensor| -> Result<Tensor> {
        Ok(tensor.f_to_kind(Kind::Double)?.f_reshape([1, groups, channels / groups])?)
    };
    let factor = scalar::add(&variance, epsilon)?.f_rsqrt()?.f_mul(&per_channel(weight)?)?;
    let shift = per_channel(bias)?.f_sub(&group_mean.f_mul(&factor)?)?;
    let broadcast =
        |tensor: Tensor| -> Result<Tensor> { Ok(tensor.f_to_kind(Kind::Float)?.f_reshape([batch, channels, 1, 1])?) };
    Ok(broadcast(shift)?.f_addcmul(input, &broadcast(factor)?)?)
}

/// A norm of values in 16 bits whose statistics are in f32: on a GPU, libtorch's are rounded to the
/// type of the values, and its one block of threads per group leaves most of the device idle
/// (pytorch v2.11.0, aten/src/ATen/native/cuda/group_norm_kernel.cu). The memory order stays.
///
/// The mean and deviation of each channel are added up without a square of the mean, which could
/// cancel. Two values for each channel, its mean plus and less its deviation, have the mean and the
/// variance of the channel's, and so have those of a group: libtorch's norm over the width gives a
/// group's mean and factor by one launch. Nine are made in all, and ten with a summand: a small
/// picture takes less time than a launch.
fn narrow(
    input: &Tensor,
    summand: Option<&Tensor>,
    [weight, bias]: [&Tensor; 2],
    groups: i64,
    epsilon: f64,
) -> Result<Tensor> {
    let (batch, channels, _, _) = input.size4()?;
    let (space, each) = ([2_i64, 3], channels / groups);
    let float = |shape: &[i64]| Tensor::f_empty(shape, (Kind::Float, input.device()));
    let per_channel = |values: &Tensor| values.f_view([1, groups, each]);
    let summand = summand.map(per_channel).transpose()?;
    let mut mean = input.f_mean_dim(&space[..], false, Kind::Float)?.f_view([batch, groups, each])?;
    if let Some(summand) = &summand {
        mean = mean.f_add_(summand)?;
    }
    // Into f32 at once: by itself it is rounded to the type of the values.
    let deviation = float(&[batch, channels])?;
    let _ = input.f_std_out(&deviation, &space[..], false, false)?;
    let deviation = deviation.f_view([batch, groups, each])?;
    let pairs = float(&[batch, groups, 2 * each])?;
    let _ = mean.f_add_out(&pairs.f_narrow(2, 0, each)?, &deviation)?;
    let _ = mean.f_sub_out(&pairs.f_narrow(2, each, each)?, &deviation)?;
    let (_, mean, factor) = pairs.f_native_layer_norm([2 * each], None::<Tensor>, None::<Tensor>, epsilon)?;
    let factor = factor.f_mul(&per_channel(weight)?)?;
    let shift = match summand {
        Some(summand) => per_channel(bias)?.f_addcmul(&summand.f_sub(&mean)?, &factor)?,
        None => per_channel(bias)?.f_sub(&mean.f_mul(&factor)?)?,
    };
    let broadcast = |tensor: Tensor| tensor.f_view([batch, channels, 1, 1]);
    let output = input.f_empty_like()?;
    Ok(broadcast(shift)?.f_addcmul_out(&output, input, &broadcast(factor)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels_last as in_channels_last;

    const EPSILON: f64 = 1e-6;

    #[test]
    fn norms_in_16_bits_have_statistics_in_f32() {
        let _no_grad = tch::no_grad_guard();
        let float = (Kind::Float, Device::Cpu);
        let (weight, bias) = (Tensor::rand([64], float), Tensor::rand([64], float));
        for (kind, rounding) in [(Kind::BFloat16, 1.0 / 128.0), (Kind::Half, 1.0 / 1024.0)] {
            let input = (Tensor::randn([2, 64, 40, 24], float) * 2.0 + 5.0).to_kind(kind);
            let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
            let expected = wide(&input).group_norm(16, Some(wide(&weight)), Some(wide(&bias)), EPSILON, true);
            for input in [input.copy(), in_channels_last(&input).unwrap()] {
                let found = narrow(&input, None, [&weight, &bias], 16, EPSILON).unwrap();
                assert_eq!((found.stride(), found.kind()), (input.stride(), kind));
                // Nothing is rounded but the result.
                let allowed = (expected.abs() + 1e-3) * (rounding * 0.51);
                let excess = f64::try_from(((wide(&found) - &expected).abs() - allowed).max()).unwrap();
                assert!(excess < 1e-4, "{kind:?}: {excess}");
                let summand = (Tensor::randn([64], float) * 3.0).to_kind(kind);
                let with = wide(&input) + wide(&summand).view([1, 64, 1, 1]);
                let expected = with.group_norm(16, Some(wide(&weight)), Some(wide(&bias)), EPSILON, true);
                let found = group_norm_with(&input, &summand, &weight, &bias, 16, EPSILON).unwrap();
                let allowed = (expected.abs() + 1e-3) * (rounding * 0.51);
                let excess = f64::try_from(((wide(&found) - &expected).abs() - allowed).max()).unwrap();
                assert!(excess < 1e-4, "with a summand, {kind:?}: {excess}");
            }
        }
    }

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
