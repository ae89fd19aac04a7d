//! Measures what a device is good at: how fast convolutions run per type and memory order and what they hold meanwhile, how fast
//! memory is.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tilewright_plan::{Dtype, Layout};

use crate::{
    Result, attention, kind, memory, to_layout,
    winograd::{self, Affine, Rows, Sums, Winograd},
};

/// Channels and side of the probe's 3×3 convolutions, in the order that they are tried. The last two are those that count: on a CPU they
/// take some hundredths of a second and more memory than caches hold, as a decoder's do; on a GPU, less fills no chip.
const CPU_CONVOLUTIONS: [(i64, i64); 4] = [(16, 16), (64, 20), (128, 160), (512, 64)];
const GPU_CONVOLUTIONS: [(i64, i64); 3] = [(64, 64), (128, 256), (512, 128)];

/// Channels and side of the probe's convolutions by Winograd's filtering.
const WINOGRAD: [(i64, i64); 2] = [(128, 256), (512, 64)];

/// Tokens and width of the probe's attention.
const ATTENTION: (i64, i64) = (2048, 512);

/// Values of the probe's elementwise operation: more than caches hold.
const VALUES: i64 = 16 << 20;

/// The types that a convolution is tried in.
const TRIED: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// A type this many times slower than f32 is not tried on more: some processors emulate f16 a thousand times slower.
const HOPELESS: u32 = 8;

/// What took no longer than this is not judged by: on a busy machine the smallest convolutions mostly wait for their threads.
const WAITING: Duration = Duration::from_millis(100);

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

/// How long convolutions take per pixel, in seconds: so much per product of two channels, and so much per channel that is read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Per pair of an input and an output channel.
    pub per_product: f64,
    /// Per channel of input or output.
    pub per_value: f64,
}

impl Rate {
    /// Seconds per pixel and tap.
    pub fn of(&self, into: f64, out: f64) -> f64 {
        self.per_product * into * out + self.per_value * (into + out)
    }

    /// From what one pixel and tap takes with so many channels in and out, fewer first.
    fn through([(fewer, quick), (more, slow)]: [(f64, f64); 2]) -> Self {
        // quick = a · fewer² + b · 2 · fewer, slow likewise.
        let per_product = (slow / more - quick / fewer) / (more - fewer);
        let per_value = (quick / fewer - per_product * fewer) / 2.0;
        if per_product > 0.0 && per_value >= 0.0 {
            return Self { per_product, per_value };
        }
        // Noise: the larger convolution counts.
        Self { per_product: slow / (more * more), per_value: 0.0 }
    }
}

/// The speed of convolutions in one type and memory order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The type of input, weights and output.
    pub dtype: Dtype,
    /// The memory order of input and output.
    pub layout: Layout,
    /// Floating-point operations per second of a large convolution, a multiply-add counted as two.
    pub flops_per_second: f64,
    /// libtorch's convolutions.
    pub plain: Rate,
    /// 3×3 convolutions with norm and activation by [`crate::winograd`], per pixel and each of its 4 or 2¼ products, where these are used.
    pub winograd: Option<Rate>,
    /// The middle attention's operations per second.
    pub attention_flops_per_second: f64,
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

/// The least of three runs, and of more for a tenth of a second; given up after three that took more than `patience`. The caller has
/// warmed up.
fn least_of(device: Device, patience: Duration, work: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    const ENOUGH: Duration = Duration::from_millis(100);
    let start = Instant::now();
    let mut least = Duration::MAX;
    let mut runs = 0;
    while runs < 3 || (start.elapsed() < ENOUGH && least <= patience) {
        least = least.min(timed(device, &work)?);
        runs += 1;
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

/// Measures a device in a few seconds. [`memory::install`] comes first, or nothing is seen of what is held on a CPU.
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
    let values = Tensor::f_rand([VALUES], (Kind::Float, device))?;
    timed(device, || Ok(values.f_silu()?))?;
    let elapsed = least_of(device, Duration::MAX, || Ok(values.f_silu()?))?;
    let bytes = 4.0 * VALUES as f64;
    Ok(Measured { speeds, bytes_per_second: 2.0 * bytes / elapsed.as_secs_f64().max(1e-9) })
}

/// Measures one type and memory order, on as large a convolution as is worth the wait.
fn measure_convolution(
    device: Device,
    sizes: &[(i64, i64)],
    dtype: Dtype,
    layout: Layout,
    single: &mut [Duration],
) -> Result<Speed> {
    let mut scratch = Scratch::default();
    let mut points = [(0.0, 0.0); 2];
    let mut flops_per_second = 0.0;
    let mut hopeless = false;
    for ((channels, side), single) in sizes.iter().zip(single) {
        let trial = Trial::new(device, (*channels, *side), dtype, layout)?;
        let patience = if dtype == Dtype::F32 { Duration::MAX } else { single.saturating_mul(HOPELESS).max(WAITING) };
        scratch = trial.scratch(device)?;
        let elapsed = least_of(device, patience, || trial.convolve(1))?;
        let seconds = elapsed.as_secs_f64().max(1e-9);
        flops_per_second = trial.operations / seconds;
        points = [points[1], (*channels as f64, seconds / (9.0 * (side * side) as f64))];
        if dtype == Dtype::F32 {
            *single = elapsed.min(*single);
        }
        hopeless = elapsed > single.saturating_mul(HOPELESS).max(WAITING);
        if hopeless {
            break;
        }
    }
    if device == Device::Cpu && dtype == Dtype::F32 {
        scratch.small = CPU_SMALL;
    }
    let plain = match hopeless {
        true => Rate { per_product: 2.0 / flops_per_second, per_value: 0.0 },
        false => Rate::through(points),
    };
    let by_winograd = (dtype, layout) == (Dtype::F32, Layout::ChannelsLast) && device == Device::Cpu;
    Ok(Speed {
        dtype,
        layout,
        flops_per_second,
        plain,
        winograd: if by_winograd && winograd::available() { Some(measure_winograd()?) } else { None },
        attention_flops_per_second: if hopeless { flops_per_second } else { measure_attention(device, dtype)? },
        scratch,
    })
}

/// Norm, activation, convolution, sum and the next norm's sums, as a residual layer has them.
fn measure_winograd() -> Result<Rate> {
    let options = (Kind::Float, Device::Cpu);
    let mut points = Vec::new();
    for (channels, side) in WINOGRAD {
        let picture =
            || -> Result<Tensor> { Ok(Tensor::f_rand([1, side, side, channels], options)?.f_permute([0, 3, 1, 2])?) };
        let (input, output) = (picture()?, picture()?);
        let weight = Tensor::f_rand([channels, channels, 3, 3], options)?.f_sub_scalar(0.5)?;
        let conv = Winograd::new(&weight, &Tensor::f_zeros([channels], options)?, false)?;
        let affine = Affine { scale: vec![0.01; channels as usize], shift: vec![0.0; channels as usize] };
        let run = || -> Result<Tensor> {
            let mut sums = Sums::new(1, channels);
            conv.convolve(Rows::all(&input), Some(&affine), 0..side, Some(&output), Some(&output), Some(&mut sums))?;
            Ok(output.shallow_clone())
        };
        timed(Device::Cpu, run)?;
        let elapsed = least_of(Device::Cpu, Duration::MAX, run)?;
        points.push((channels as f64, elapsed.as_secs_f64() / (4.0 * (side * side) as f64)));
    }
    Ok(Rate::through([points[0], points[1]]))
}

fn measure_attention(device: Device, dtype: Dtype) -> Result<f64> {
    let (tokens, width) = ATTENTION;
    let tensor = Tensor::f_rand([1, tokens, width], (Kind::Float, device))?.f_to_kind(kind(dtype)?)?;
    let run = || attention::fused(tensor.copy(), &tensor, &tensor);
    timed(device, run)?;
    let elapsed = least_of(device, Duration::MAX, run)?;
    Ok(4.0 * (tokens * tokens * width) as f64 / elapsed.as_secs_f64().max(1e-9))
}

/// What a convolution holds whatever its size: on a CPU oneDNN gives each thread a page, as measured with 2.11.
pub fn convolution_bytes() -> f64 {
    4096.0 * f64::from(tch::get_num_threads().max(1) + 2)
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
    fn a_rate_goes_through_what_was_measured() {
        let known = Rate { per_product: 3e-12, per_value: 7e-10 };
        let found = Rate::through([128.0, 512.0].map(|channels| (channels, known.of(channels, channels))));
        assert!((found.of(256.0, 128.0) / known.of(256.0, 128.0) - 1.0).abs() < 1e-9);
        // More channels that take less time are noise.
        assert_eq!(Rate::through([(128.0, 1.0), (512.0, 0.5)]).per_value, 0.0);
    }

    #[test]
    fn fast_types_are_those_no_slower_than_f32() {
        let speed = |dtype, rate| Speed {
            dtype,
            layout: Layout::ChannelsFirst,
            flops_per_second: rate,
            plain: Rate::default(),
            winograd: None,
            attention_flops_per_second: rate,
            scratch: Scratch::default(),
        };
        let speeds = vec![speed(Dtype::F32, 100.0), speed(Dtype::Bf16, 180.0), speed(Dtype::F16, 60.0)];
        assert_eq!(Measured { speeds, bytes_per_second: 1.0 }.fast_dtypes(), [Dtype::Bf16, Dtype::F32]);
    }
}
