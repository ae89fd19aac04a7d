//! Measures what a device is good at: how fast convolutions run per type and memory order, how fast memory is, and whether
//! fused attention agrees with plain attention.

use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};
use tilewright_plan::{Dtype, Layout};

use crate::{Result, kind, to_layout};

/// Channels and side of the probe's 3×3 convolution on a CPU, where it takes milliseconds, and on a GPU, where less fills no chip.
const CPU_CONVOLUTION: (i64, i64) = (128, 64);
const GPU_CONVOLUTION: (i64, i64) = (256, 256);

/// The types that a convolution is tried in.
const TRIED: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// A type this many times slower than f32 is given up after one run: on some processors f16 is emulated.
const HOPELESS: f64 = 4.0;

/// The speed of convolutions in one type and memory order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// The type of input, weights and output.
    pub dtype: Dtype,
    /// The memory order of input and output.
    pub layout: Layout,
    /// Floating-point operations per second, a multiply-add counted as two.
    pub flops_per_second: f64,
}

/// What was measured of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Per type and memory order; types that the device can't run are missing.
    pub speeds: Vec<Speed>,
    /// Bytes read and written per second by an elementwise operation.
    pub bytes_per_second: f64,
}

impl Measured {
    /// The best rate of a type over both memory orders, in operations per second.
    pub fn best(&self, dtype: Dtype) -> Option<f64> {
        self.speeds.iter().filter(|speed| speed.dtype == dtype).map(|speed| speed.flops_per_second).reduce(f64::max)
    }

    /// The types no slower than f32 (to within 3 %, the probe's noise), fastest first.
    pub fn fast_dtypes(&self) -> Vec<Dtype> {
        let single = self.best(Dtype::F32).unwrap_or(0.0);
        let mut fast: Vec<(Dtype, f64)> =
            TRIED.into_iter().filter_map(|dtype| Some((dtype, self.best(dtype)?))).filter(|(_, rate)| *rate >= 0.97 * single).collect();
        fast.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        fast.into_iter().map(|(dtype, _)| dtype).collect()
    }
}

/// Waits for the device's work.
pub fn synchronize(device: Device) {
    if let Device::Cuda(index) = device {
        tch::Cuda::synchronize(index as i64);
    }
}

fn timed(device: Device, work: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    synchronize(device);
    let start = Instant::now();
    let result = work()?;
    synchronize(device);
    drop(result);
    Ok(start.elapsed())
}

/// The least of up to `runs` after one warm-up, given up early where the warm-up took more than `patience`.
fn least_of(device: Device, runs: u32, patience: Duration, work: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    timed(device, &work)?;
    let mut least = timed(device, &work)?;
    for _ in 1..runs {
        if least > patience {
            break;
        }
        least = least.min(timed(device, &work)?);
    }
    Ok(least)
}

/// Measures a device in about a tenth of a second.
///
/// # Errors
/// Where not even f32 runs.
pub fn measure(device: Device) -> Result<Measured> {
    let _no_grad = tch::no_grad_guard();
    let (channels, side) = if device == Device::Cpu { CPU_CONVOLUTION } else { GPU_CONVOLUTION };
    let operations = 2.0 * 9.0 * (channels * channels * side * side) as f64;
    let input = Tensor::f_rand([1, channels, side, side], (Kind::Float, device))?;
    let weight = Tensor::f_rand([channels, channels, 3, 3], (Kind::Float, device))?;
    let mut speeds = Vec::new();
    let mut patience = Duration::MAX;
    for dtype in TRIED {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let run = || -> Result<Duration> {
                let input = to_layout(&input.f_to_kind(kind(dtype)?)?, layout)?;
                let weight = to_layout(&weight.f_to_kind(kind(dtype)?)?, layout)?;
                least_of(device, 5, patience, || Ok(input.f_conv2d(&weight, None::<Tensor>, [1, 1], [1, 1], [1, 1], 1)?))
            };
            match run() {
                Ok(elapsed) => {
                    speeds.push(Speed { dtype, layout, flops_per_second: operations / elapsed.as_secs_f64().max(1e-9) });
                    if dtype == Dtype::F32 {
                        patience = patience.min(elapsed.mul_f64(HOPELESS));
                    }
                }
                Err(error) if dtype == Dtype::F32 => return Err(error),
                Err(error) => tracing::debug!(%dtype, %error, "the device can't run this type"),
            }
        }
    }
    let bytes = 32_i64 << 20;
    let values = Tensor::f_rand([bytes / 4], (Kind::Float, device))?;
    let elapsed = least_of(device, 3, Duration::MAX, || Ok(values.f_silu()?))?;
    Ok(Measured { speeds, bytes_per_second: 2.0 * bytes as f64 / elapsed.as_secs_f64().max(1e-9) })
}

/// Attention as plain matrix products, over rows of queries so that the score matrix stays small.
/// `query`, `key`, `value`: [N, tokens, width]; scores and softmax in f32.
///
/// # Errors
/// What libtorch says.
pub fn plain_attention(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    const SCORES: i64 = 1 << 24;
    let (batch, tokens, width) = query.size3()?;
    let rows = (SCORES / (batch * tokens).max(1)).clamp(1, tokens);
    let scale = 1.0 / (width as f64).sqrt();
    let transposed = key.f_transpose(1, 2)?;
    let mut parts = Vec::new();
    for start in (0..tokens).step_by(rows as usize) {
        let part = query.f_narrow(1, start, rows.min(tokens - start))?;
        let scores = (part.f_matmul(&transposed)?.f_to_kind(Kind::Float)?).f_mul_scalar(scale)?;
        parts.push(scores.f_softmax(-1, Kind::Float)?.f_to_kind(value.f_kind()?)?.f_matmul(value)?);
    }
    Ok(Tensor::f_cat(&parts, 1)?)
}

/// libtorch's fused attention for one head. `query`, `key`, `value`: [N, tokens, width].
///
/// # Errors
/// What libtorch says.
pub fn fused_attention(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let head = |tensor: &Tensor| tensor.f_unsqueeze(1);
    let mixed =
        Tensor::f_scaled_dot_product_attention(&head(query)?, &head(key)?, &head(value)?, None::<Tensor>, 0.0, false, None, false)?;
    Ok(mixed.f_squeeze_dim(1)?)
}

/// Whether fused attention of this width and type agrees with plain attention on this device. It has been silently wrong at
/// the widths of the VAEs' middle blocks on gfx1100 and gfx1151.
pub fn fused_attention_agrees(device: Device, width: i64, dtype: Dtype) -> bool {
    let _no_grad = tch::no_grad_guard();
    let attempt = || -> Result<bool> {
        let kind = kind(dtype)?;
        let random = || -> Result<Tensor> { Ok(Tensor::f_randn([1, 160, width], (Kind::Float, device))?.f_to_kind(kind)?) };
        let (query, key, value) = (random()?, random()?, random()?);
        let single = |tensor: &Tensor| tensor.f_to_kind(Kind::Float);
        let fused = single(&fused_attention(&query, &key, &value)?)?;
        let plain = plain_attention(&single(&query)?, &single(&key)?, &single(&value)?)?;
        let difference = f64::try_from(&(fused - &plain).f_norm()?)? / f64::try_from(&plain.f_norm()?)?.max(1e-12);
        // Far above the rounding of each type, far below what a wrong kernel gives.
        Ok(difference < if dtype == Dtype::F32 { 1e-3 } else { 3e-2 })
    };
    attempt().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_runs_f32_and_is_measured() {
        let measured = measure(Device::Cpu).unwrap();
        assert!(measured.best(Dtype::F32).unwrap() > 0.0);
        assert!(measured.bytes_per_second > 0.0);
        assert!(measured.fast_dtypes().contains(&Dtype::F32));
    }

    #[test]
    fn fused_and_plain_attention_agree_on_a_cpu() {
        for width in [32, 384, 512] {
            assert!(fused_attention_agrees(Device::Cpu, width, Dtype::F32), "{width}");
        }
    }

    #[test]
    fn fast_types_are_those_no_slower_than_f32() {
        let speed = |dtype, rate| Speed { dtype, layout: Layout::ChannelsFirst, flops_per_second: rate };
        let speeds = vec![speed(Dtype::F32, 100.0), speed(Dtype::Bf16, 180.0), speed(Dtype::F16, 60.0)];
        assert_eq!(Measured { speeds, bytes_per_second: 1.0 }.fast_dtypes(), [Dtype::Bf16, Dtype::F32]);
    }
}
