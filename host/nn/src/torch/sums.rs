//! Sums over pictures, and the norms that follow from them: in host memory on a CPU, where our own
//! convolutions take and make them, and on the device elsewhere, so that a GPU never waits for the
//! host between the bands of a picture.

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{CPU_PIECE, GPU_PIECE};
use tilewright_torch::{Error, cancel, scalar, winograd};

use crate::{GroupNorm, Result};

/// Sums over the pixels of a picture, per sample and channel.
#[derive(Debug)]
pub enum Sums {
    /// In host memory.
    Host(winograd::Sums),
    /// On a device.
    Device {
        /// [N, 2, C] in f64: sums, and sums of squares.
        values: Tensor,
        /// Pixels in the sums, per sample.
        pixels: f64,
    },
}

/// A factor and a term per sample and channel.
#[derive(Debug)]
pub enum Affine {
    /// In host memory.
    Host(winograd::Affine),
    /// On a device, [N, C, 1, 1] in f32.
    Device {
        /// The factor.
        scale: Tensor,
        /// The term.
        shift: Tensor,
    },
}

/// The error of sums that are on another device than the work.
fn misplaced() -> Error {
    Error::Torch("a norm's sums are on another device than its picture".into())
}

impl Sums {
    /// Empty sums.
    pub fn new(device: Device, batch: i64, channels: i64) -> Result<Self> {
        Ok(match device {
            Device::Cpu => Self::Host(winograd::Sums::new(batch, channels)),
            _ => Self::Device { values: Tensor::f_zeros([batch, 2, channels], (Kind::Double, device))?, pixels: 0.0 },
        })
    }

    /// The sums, if they are in host memory.
    pub fn on_host(&mut self) -> Result<&mut winograd::Sums> {
        match self {
            Self::Host(sums) => Ok(sums),
            Self::Device { .. } => Err(misplaced().into()),
        }
    }

    /// Adds a picture's values, piece by piece: squares are of values less the piece's mean.
    pub fn add_up(&mut self, picture: &Tensor) -> Result<()> {
        let (batch, channels, height, width) = picture.size4()?;
        let most = if picture.device() == Device::Cpu { CPU_PIECE } else { GPU_PIECE };
        let piece = (most / (batch * channels * width).max(1)).clamp(1, height.max(1));
        for start in (0..height).step_by(piece as usize) {
            cancel::check()?;
            let part = picture.f_narrow(2, start, piece.min(height - start))?.f_to_kind(Kind::Float)?;
            let mean = part.f_mean_dim(&[2_i64, 3][..], true, None)?;
            let squares = part.f_sub(&mean)?.f_square()?.f_sum_dim_intlist(&[2_i64, 3][..], false, None)?;
            self.add((part.size()[2] * width) as f64, &mean, &squares)?;
        }
        Ok(())
    }

    /// Adds `count` pixels by their mean and the sum of the squares of what they differ from it.
    fn add(&mut self, count: f64, mean: &Tensor, squares: &Tensor) -> Result<()> {
        match self {
            Self::Host(sums) => {
                for (index, (mean, squares)) in on_host(mean)?.into_iter().zip(on_host(squares)?).enumerate() {
                    let (sample, channel) = (index / sums.channels, index % sums.channels);
                    let place = sample * 2 * sums.channels + channel;
                    sums.values[place] += count * mean;
                    sums.values[place + sums.channels] += squares + count * mean * mean;
                }
                sums.pixels += count;
            }
            Self::Device { values, pixels } => {
                let squares = squares.f_to_kind(Kind::Double)?;
                let mean = mean.f_to_kind(Kind::Double)?.f_view_as(&squares)?;
                let sum = scalar::multiply(&mean, count)?;
                let squares = squares.f_add(&sum.f_mul(&mean)?)?;
                *values = values.f_add(&Tensor::f_stack(&[sum, squares], 1)?)?;
                *pixels += count;
            }
        }
        Ok(())
    }

    /// The norm of a picture with these sums.
    pub fn affine(&self, norm: GroupNorm<'_, Tensor>) -> Result<Affine> {
        match self {
            Self::Host(sums) => affine_on_host(sums, norm).map(Affine::Host),
            Self::Device { values, pixels } => affine_on_device(values, *pixels, norm),
        }
    }
}

impl Affine {
    /// The one in host memory.
    pub fn on_host(&self) -> Result<&winograd::Affine> {
        match self {
            Self::Host(affine) => Ok(affine),
            Self::Device { .. } => Err(misplaced().into()),
        }
    }

    /// The norm and the activation of a picture [N, C, H, W], in f32.
    pub fn apply_silu(&self, picture: &Tensor) -> Result<Tensor> {
        let (batch, channels, ..) = picture.size4()?;
        let factor = |values: &[f32]| -> Result<Tensor> {
            Ok(Tensor::f_from_slice(values)?.f_to_device(picture.device())?.f_reshape([batch, channels, 1, 1])?)
        };
        let (scale, shift) = match self {
            Self::Host(affine) => (factor(&affine.scale)?, factor(&affine.shift)?),
            Self::Device { scale, shift } => (scale.shallow_clone(), shift.shallow_clone()),
        };
        Ok(shift.f_addcmul(&picture.f_to_kind(Kind::Float)?, &scale)?.f_silu_()?)
    }
}

fn affine_on_host(sums: &winograd::Sums, norm: GroupNorm<'_, Tensor>) -> Result<winograd::Affine> {
    let (weight, bias, groups) = (on_host(norm.weight)?, on_host(norm.bias)?, norm.groups as usize);
    let per_group = sums.channels / groups;
    let count = sums.pixels * per_group as f64;
    let mut affine = winograd::Affine { scale: Vec::new(), shift: Vec::new() };
    for sample in sums.values.chunks(2 * sums.channels) {
        let (values, squares) = sample.split_at(sums.channels);
        for group in 0..groups {
            let channels = group * per_group..(group + 1) * per_group;
            let mean = values[channels.clone()].iter().sum::<f64>() / count;
            let variance = (squares[channels.clone()].iter().sum::<f64>() / count - mean * mean).max(0.0);
            let factor = 1.0 / (variance + norm.epsilon).sqrt();
            for channel in channels {
                let scale = factor * weight[channel];
                affine.scale.push(scale as f32);
                affine.shift.push((bias[channel] - mean * scale) as f32);
            }
        }
    }
    Ok(affine)
}

fn affine_on_device(values: &Tensor, pixels: f64, norm: GroupNorm<'_, Tensor>) -> Result<Affine> {
    let (batch, _, channels) = values.size3()?;
    let GroupNorm { weight, bias, groups, epsilon } = norm;
    let per_group = channels / groups;
    let of_group = values.f_reshape([batch, 2, groups, per_group])?.f_mean_dim(&[3_i64][..], true, None)?;
    let of_group = scalar::divide(&of_group, pixels)?;
    let (mean, square) = (of_group.f_select(1, 0)?, of_group.f_select(1, 1)?);
    let variance = scalar::clamp_min_in_place(square.f_sub(&mean.f_square()?)?, 0.0)?;
    let factor = scalar::add(&variance, epsilon)?.f_rsqrt()?;
    let per_channel =
        |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.f_to_kind(Kind::Double)?.f_reshape([1, groups, per_group])?) };
    let scale = factor.f_mul(&per_channel(weight)?)?;
    let shift = per_channel(bias)?.f_sub(&mean.f_mul(&scale)?)?;
    let single =
        |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.f_to_kind(Kind::Float)?.f_reshape([batch, channels, 1, 1])?) };
    Ok(Affine::Device { scale: single(&scale)?, shift: single(&shift)? })
}

/// Values in double precision.
fn on_host(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(Vec::try_from(tensor.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?.f_reshape([-1])?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_by_sums_is_that_of_the_whole_on_either_side() {
        let _no_grad = tch::no_grad_guard();
        let float = (Kind::Float, Device::Cpu);
        let (weight, bias) = (Tensor::rand([64], float), Tensor::rand([64], float));
        let picture = Tensor::randn([2, 64, 40, 24], float) * 2.0 + 5.0;
        let expected = picture.group_norm(32, Some(&weight), Some(&bias), 1e-6, true).silu();
        let empty = Tensor::zeros([2, 2, 64], (Kind::Double, Device::Cpu));
        let device = Sums::Device { values: empty, pixels: 0.0 };
        for mut sums in [Sums::new(Device::Cpu, 2, 64).unwrap(), device] {
            for (start, rows) in [(0, 16), (16, 16), (32, 8)] {
                sums.add_up(&picture.narrow(2, start, rows)).unwrap();
            }
            let norm = GroupNorm { weight: &weight, bias: &bias, groups: 32, epsilon: 1e-6 };
            let found = sums.affine(norm).unwrap().apply_silu(&picture).unwrap();
            let difference = f64::try_from((found - &expected).abs().max()).unwrap();
            assert!(difference < 2e-5, "{sums:?}: {difference}");
        }
    }
}
