//! Measures what a device is good at: how fast convolutions run per type and memory order and what they hold meanwhile, how fast
//! memory is, and whether fused attention agrees with plain attention.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tilewright_plan::{Dtype, Layout};

use crate::{Result, kind, memory, to_layout};

/// Channels and side of the probe's 3×3 convolutions, in the order that they are tried. The last is the one that counts: on a CPU it
/// takes about a millisecond, so that some run is over before the scheduler gives the core to somebody else; on a GPU, less fills
/// no chip.
const CPU_CONVOLUTIONS: [(i64, i64); 3] = [(16, 16), (64, 20), (128, 32)];
const GPU_CONVOLUTIONS: [(i64, i64); 2] = [(64, 64), (256, 256)];

/// The types that a convolution is tried in.
const TRIED: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// A type this many times slower than f32 is not tried on more: some processors emulate f16 a thousand times slower.
const HOPELESS: u32 = 8;

/// Convolutions in f32 of one sample of up to so many values take libtorch's own path on a CPU, which holds nine copies of the
/// input (pytorch v2.11.0, aten/src/ATen/native/Convolution.cpp, `ConvParams::use_mkldnn`).
const CPU_SMALL: u64 = 20480;

/// What a 3×3 convolution holds besides its input and output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scratch {
    /// Copies of the input: 1 where it is put into another memory order first, 9 where it is laid out tap by tap.
    pub inputs: f64,
    /// Copies of the weights, made anew in every call.
    pub weights: f64,
    /// Up to so many input values there are nine copies of the input instead.
    pub small: u64,
}

/// The speed of convolutions in one type and memory order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The type of input, weights and output.
    pub dtype: Dtype,
    /// The memory order of input and output.
    pub layout: Layout,
    /// Floating-point operations per second, a multiply-add counted as two.
    pub flops_per_second: f64,
    /// What convolutions hold meanwhile.
    pub scratch: Scratch,
}

/// What was measured of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
        let mut fast: Vec<(Dtype, f64)> = TRIED
            .into_iter()
            .filter_map(|dtype| Some((dtype, self.best(dtype)?)))
            .filter(|(_, rate)| *rate >= 0.97 * single)
            .collect();
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

/// The least of up to eight runs, given up after three that took more than `patience`. The caller has warmed up.
fn least_of(device: Device, patience: Duration, work: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    let mut least = Duration::MAX;
    for run in 0..8 {
        if run >= 3 && least > patience {
            break;
        }
        least = least.min(timed(device, &work)?);
    }
    Ok(least)
}

/// A convolution of the probe.
struct Trial {
    input: Tensor,
    weight: Tensor,
    operations: f64,
}

impl Trial {
    fn new(device: Device, (channels, side): (i64, i64), dtype: Dtype, layout: Layout) -> Result<Self> {
        let random = |shape: [i64; 4]| -> Result<Tensor> {
            to_layout(&Tensor::f_rand(shape, (Kind::Float, device))?.f_to_kind(kind(dtype)?)?, layout)
        };
        let operations = 2.0 * 9.0 * (channels * channels * side * side) as f64;
        // Two samples, so that what grows with the input can be told from what does not.
        Ok(Self { input: random([2, channels, side, side])?, weight: random([channels, channels, 3, 3])?, operations })
    }

    fn convolve(&self, samples: i64) -> Result<Tensor> {
        let input = self.input.f_narrow(0, 0, samples)?;
        Ok(input.f_conv2d(&self.weight, None::<Tensor>, [1, 1], [1, 1], [1, 1], 1)?)
    }

    /// The most held while samples are convolved, output included.
    fn peak(&self, device: Device, samples: i64) -> Result<f64> {
        synchronize(device);
        memory::reset_peak(device)?;
        let before = memory::of(device)?.in_use;
        let output = self.convolve(samples)?;
        synchronize(device);
        drop(output);
        Ok(memory::of(device)?.peak.saturating_sub(before) as f64)
    }

    /// Also warms up.
    fn scratch(&self, device: Device) -> Result<Scratch> {
        let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as f64;
        let (one, two) = (self.peak(device, 1)?, self.peak(device, 2)?);
        // Input and output are of one size here: one of the copies counted is the output.
        let copies = (two - one) / (bytes(&self.input) / 2.0);
        let weights = (2.0 * one - two) / bytes(&self.weight);
        // Allocators round up, by much where tensors are small.
        let whole = |copies: f64| (copies * 4.0).round().max(0.0) / 4.0;
        Ok(Scratch { inputs: whole(copies - 1.0), weights: whole(weights), small: 0 })
    }
}

/// Measures a device in about a tenth of a second. [`memory::install`] comes first, or nothing is seen of what is held on a CPU.
///
/// # Errors
/// Where not even f32 runs.
pub fn measure(device: Device) -> Result<Measured> {
    let _no_grad = tch::no_grad_guard();
    let sizes: &[(i64, i64)] = if device == Device::Cpu { &CPU_CONVOLUTIONS } else { &GPU_CONVOLUTIONS };
    let mut speeds = Vec::new();
    // What f32 takes at each size, the better memory order's.
    let mut single = vec![Duration::MAX; sizes.len()];
    for dtype in TRIED {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            match measure_convolution(device, sizes, dtype, layout, &mut single) {
                Ok(speed) => speeds.push(speed),
                Err(error) if dtype == Dtype::F32 => return Err(error),
                Err(error) => tracing::debug!(%dtype, %error, "the device can't run this type"),
            }
        }
    }
    let bytes = 8_i64 << 20;
    let values = Tensor::f_rand([bytes / 4], (Kind::Float, device))?;
    timed(device, || Ok(values.f_silu()?))?;
    let elapsed = least_of(device, Duration::MAX, || Ok(values.f_silu()?))?;
    Ok(Measured { speeds, bytes_per_second: 2.0 * bytes as f64 / elapsed.as_secs_f64().max(1e-9) })
}

/// Measures one type and memory order, on as large a convolution as is worth the wait.
fn measure_convolution(
    device: Device,
    sizes: &[(i64, i64)],
    dtype: Dtype,
    layout: Layout,
    single: &mut [Duration],
) -> Result<Speed> {
    let mut speed = Speed { dtype, layout, flops_per_second: 0.0, scratch: Scratch::default() };
    for (size, single) in sizes.iter().zip(single) {
        let trial = Trial::new(device, *size, dtype, layout)?;
        let patience = if dtype == Dtype::F32 { Duration::MAX } else { single.saturating_mul(HOPELESS) };
        speed.scratch = trial.scratch(device)?;
        let elapsed = least_of(device, patience, || trial.convolve(1))?;
        speed.flops_per_second = trial.operations / elapsed.as_secs_f64().max(1e-9);
        if dtype == Dtype::F32 {
            *single = elapsed.min(*single);
        }
        if elapsed > single.saturating_mul(HOPELESS) {
            break;
        }
    }
    if device == Device::Cpu && dtype == Dtype::F32 {
        speed.scratch.small = CPU_SMALL;
    }
    Ok(speed)
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
    let mixed = Tensor::f_scaled_dot_product_attention(
        &head(query)?,
        &head(key)?,
        &head(value)?,
        None::<Tensor>,
        0.0,
        false,
        None,
        false,
    )?;
    Ok(mixed.f_squeeze_dim(1)?)
}

/// What fused attention holds besides query, key, value and result, at most: on a CPU each thread has scores and sums for 256 queries
/// against 512 keys in f32, and the scores once more in a 16-bit type (pytorch v2.11.0, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
pub fn fused_attention_bytes(width: f64) -> f64 {
    let threads = f64::from(tch::get_num_threads().max(1));
    threads * 256.0 * (4.0 * (512.0 + 2.0 + width) + 2.0 * 512.0)
}

/// What a convolution holds whatever its size: on a CPU oneDNN gives each thread a page, as measured with 2.11.
pub fn convolution_bytes() -> f64 {
    4096.0 * f64::from(tch::get_num_threads().max(1) + 2)
}

/// Whether fused attention of this width and type agrees with plain attention on this device. It has been silently wrong at
/// the widths of the VAEs' middle blocks on gfx1100 and gfx1151.
pub fn fused_attention_agrees(device: Device, width: i64, dtype: Dtype) -> bool {
    let _no_grad = tch::no_grad_guard();
    let attempt = || -> Result<bool> {
        let kind = kind(dtype)?;
        let random =
            || -> Result<Tensor> { Ok(Tensor::f_randn([1, 160, width], (Kind::Float, device))?.f_to_kind(kind)?) };
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
        let speed = |dtype, rate| Speed {
            dtype,
            layout: Layout::ChannelsFirst,
            flops_per_second: rate,
            scratch: Scratch::default(),
        };
        let speeds = vec![speed(Dtype::F32, 100.0), speed(Dtype::Bf16, 180.0), speed(Dtype::F16, 60.0)];
        assert_eq!(Measured { speeds, bytes_per_second: 1.0 }.fast_dtypes(), [Dtype::Bf16, Dtype::F32]);
    }
}
