//! The pieces of work of a measurement, done by libtorch.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Expansion, Packed, Scales, Scaling, Scratch, Stored, group_norm_passes};
use tilewright_plan::{Backend, Dtype, Layout};

use super::{
    ATTENTION_WIDTH, HEAD_WIDTH, HEADS, NORM_CHANNELS, NORM_SIDES, backend_of,
    measurement::{Bench, Trial},
};
use crate::{
    Error, Result, attention, conv2d, copy,
    device::{self, synchronize},
    device_packed::DevicePacked,
    group_norm, kernels, kind, memory,
    multi_head::{self, Way},
    packed, scalar, to_layout, transfer,
    winograd::{Affine, Rows, Sums, Winograd},
};

/// The type of the expansion: the most common one of files that people run.
const EXPANDED: Stored = Stored::Q4K;

/// Values of the elementwise operation: more than caches hold, which are larger on a GPU.
const VALUES: i64 = 16 << 20;
const GPU_VALUES: i64 = 256 << 20;

/// The share of a GPU's free memory that the elementwise operation may take, as a divisor.
const GPU_SHARE: u64 = 4;

/// Work on a GPU is queued until it takes so long: a launch takes as long as a small piece of work.
const LONG_ENOUGH: Duration = Duration::from_millis(5);

/// The most pieces of work that are queued.
const MOST_QUEUED: u32 = 64;

/// Groups and epsilon of the published autoencoders' norms.
const NORM_GROUPS: i64 = 32;
const NORM_EPSILON: f64 = 1e-6;

/// The value that tensors hold: speed does not depend on it, and filling them with one value is
/// quick.
const VALUE: f64 = 0.5;

/// The least part of its time that a run counts as, as a divisor: threads also wait for each other,
/// not only for a core.
const MOST_STOLEN: u32 = 8;

/// The time that each of the process's threads has waited for a core so far, in nanoseconds: other
/// programs on a busy machine say nothing about the device's speed (Linux,
/// Documentation/scheduler/sched-stats.rst). Empty if the kernel doesn't tell, and for a GPU.
struct ThreadWaits(HashMap<std::ffi::OsString, u64>);

impl ThreadWaits {
    fn now(device: Device) -> Self {
        if device != Device::Cpu {
            return Self(HashMap::new());
        }
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let waited = threads.filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            Some((thread.file_name(), text.split_whitespace().nth(1)?.parse().ok()?))
        });
        Self(waited.collect())
    }

    /// The longest wait of any thread since then: the others waited for it meanwhile.
    fn since(&self, device: Device) -> Duration {
        let now = Self::now(device);
        let waits = now.0.iter().filter_map(|(thread, waited)| waited.checked_sub(*self.0.get(thread)?));
        Duration::from_nanos(waits.max().unwrap_or(0))
    }
}

/// The values of a GPU's elementwise operation, which holds its input and its output, in f32.
fn gpu_values(free_bytes: u64) -> i64 {
    GPU_VALUES.min((free_bytes / GPU_SHARE / 8) as i64).max(VALUES)
}

/// The number of pieces of work on a GPU that are queued if one of them takes so long.
fn queued(elapsed: Duration) -> u32 {
    (LONG_ENOUGH.div_duration_f64(elapsed.max(Duration::from_nanos(1))) as u32).clamp(1, MOST_QUEUED)
}

/// The work that a trial repeats.
type Work = Box<dyn Fn() -> Result<Tensor>>;

/// A device at work.
pub(super) struct OnDevice {
    device: Device,
    values: i64,
    started: Instant,
    taken: Duration,
    /// The last trial and its work, which is usually run again.
    prepared: Option<(Trial, Work)>,
}

impl OnDevice {
    /// Runs something small, so that libraries are loaded and threads are there.
    pub fn wake(device: Device) -> Result<Self> {
        let values = match device {
            Device::Cuda(index) => gpu_values(memory::free_and_total(index)?.0),
            _ => VALUES,
        };
        let mut bench = Self { device, values, started: Instant::now(), taken: Duration::ZERO, prepared: None };
        bench.run(Trial::Convolution { dtype: Dtype::F32, layout: Layout::ChannelsFirst, channels: 16, side: 16 })?;
        (bench.started, bench.taken) = (Instant::now(), Duration::ZERO);
        Ok(bench)
    }

    /// The time of a run, as the mean of `times` runs.
    fn time(&mut self, work: &Work, times: u32) -> Result<Duration> {
        synchronize(self.device)?;
        let waited = ThreadWaits::now(self.device);
        let start = Instant::now();
        let mut results = Vec::new();
        for _ in 0..times {
            // The last one is freed after the time is taken.
            results = vec![work()?];
        }
        synchronize(self.device)?;
        let elapsed = start.elapsed();
        let stolen = waited.since(self.device);
        drop(results);
        self.taken += stolen.min(elapsed);
        Ok(elapsed.saturating_sub(stolen).max(elapsed / MOST_STOLEN) / times)
    }

    fn prepare(&self, trial: Trial) -> Result<Work> {
        let device = self.device;
        Ok(match trial {
            Trial::Convolution { dtype, layout, channels, side } => {
                let convolution = Convolution::new(device, dtype, layout, channels, side)?;
                Box::new(move || convolution.run(1))
            }
            Trial::Winograd { dtype, channels, side } => with_winograd(kind(dtype)?, channels, side)?,
            Trial::Attention { dtype, tokens } => {
                let tensor = fill(device, &[1, tokens, ATTENTION_WIDTH], dtype)?;
                match attention::is_fused(device, ATTENTION_WIDTH, dtype) {
                    true => Box::new(move || attention::attend(copy(&tensor)?, &tensor, &tensor)),
                    false => Box::new(move || attention::plain(&tensor, &tensor, &tensor)),
                }
            }
            Trial::Norm { dtype, layout, side } => {
                let picture = to_layout(&fill(device, &[1, NORM_CHANNELS, side, side], dtype)?, layout)?;
                let weight = fill(device, &[NORM_CHANNELS], dtype)?;
                Box::new(move || group_norm(&picture, &weight, &weight, NORM_GROUPS, NORM_EPSILON))
            }
            Trial::Transfer => Box::new(transfer::trial(device)?),
            Trial::Integers { tokens, side } => {
                let bytes = Stored::Q8_0.bytes(&[side as usize; 2]).unwrap_or_default();
                let matrix = Packed::new(vec![1; bytes].into(), Stored::Q8_0, [side as usize; 2], Scales::default())?;
                let left = fill(device, &[tokens, side], Dtype::F32)?;
                Box::new(move || {
                    let output = left.f_empty_like()?;
                    packed::multiply_int8(&left, &matrix, None, &output)?;
                    Ok(output)
                })
            }
            Trial::Heads { dtype, tokens, apart } => {
                let all = fill(device, &[1, tokens, HEADS * HEAD_WIDTH], dtype)?;
                let output = all.f_empty_like()?;
                Box::new(move || {
                    multi_head::attend_onto(&output, [&all, &all, &all], HEADS, false, Way::Fused { apart })?;
                    Ok(output.shallow_clone())
                })
            }
            Trial::Fp8 { tokens, side } => {
                // Zeros, in any type.
                let bytes = vec![0; (side * side) as usize];
                let shape = [side as usize; 2];
                let matrix = Packed::new(bytes.into(), Stored::F8E4m3, shape, Scales::default())?;
                let matrix = DevicePacked::new(&matrix, device)?;
                let left = fill(device, &[tokens, side], Dtype::Bf16)?;
                Box::new(move || {
                    let product = matrix.multiply_fp8(&left, None, false)?;
                    product.ok_or_else(|| Error::Torch("no product in FP8 of sides that suit one".into()))
                })
            }
            Trial::Expansion { rows, columns } => {
                let shape = [rows, columns].map(|extent| extent as usize);
                let bytes = vec![1; EXPANDED.bytes(&shape).unwrap_or_default()];
                let matrix = Packed::new(bytes.into(), EXPANDED, shape, Scales::default())?;
                let matrix = DevicePacked::new(&matrix, device)?;
                Box::new(move || matrix.expand(0..rows, Kind::BFloat16))
            }
            Trial::Elementwise => {
                let values = fill(device, &[self.values], Dtype::F32)?;
                Box::new(move || Ok(values.f_silu()?))
            }
        })
    }
}

impl Bench for OnDevice {
    fn has_integers(&self) -> bool {
        kernels(self.device).has_int8_products(Stored::Q8_0)
    }

    fn has_heads(&mut self, dtype: Dtype) -> bool {
        self.device != Device::Cpu && dtype != Dtype::Tf32 && attention::is_fused(self.device, HEAD_WIDTH, dtype)
    }

    fn has_fp8(&self) -> bool {
        device::has_fp8_products(self.device)
    }

    fn expansion(&self) -> Option<Expansion> {
        (self.device != Device::Cpu).then_some(Expansion::of(EXPANDED, Scaling::None, Dtype::Bf16))
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn run(&mut self, trial: Trial) -> Result<Duration> {
        let work = match self.prepared.take().filter(|(last, _)| *last == trial) {
            Some((_, work)) => work,
            None => self.prepare(trial)?,
        };
        let mut elapsed = self.time(&work, 1)?;
        if self.device != Device::Cpu && elapsed < LONG_ENOUGH {
            elapsed = self.time(&work, queued(elapsed))?;
        }
        self.prepared = Some((trial, work));
        Ok(elapsed)
    }

    fn taken(&self) -> Duration {
        self.taken
    }

    fn scratch(&mut self, dtype: Dtype, layout: Layout, channels: i64, side: i64) -> Result<Scratch> {
        self.prepared = None;
        Convolution::new(self.device, dtype, layout, channels, side)?.scratch(self.device)
    }

    fn has_winograd(&self, dtype: Dtype) -> bool {
        self.device == Device::Cpu && kind(dtype).is_ok_and(packed::has_products)
    }

    fn elementwise_bytes(&self) -> f64 {
        2.0 * 4.0 * self.values as f64
    }

    fn norm(&self, dtype: Dtype) -> Option<(i64, f64)> {
        if self.device == Device::Cpu {
            return None;
        }
        // No larger than the elementwise operation's, which has been seen to fit.
        let values = |side: i64| NORM_CHANNELS * side * side;
        let [large, small] = NORM_SIDES;
        let side = if values(large) <= self.values { large } else { small };
        let kind = kind(dtype).ok()?;
        let bytes = values(side) as u64 * kind.elt_size_in_bytes() as u64;
        Some((side, (group_norm_passes(dtype, false) * bytes) as f64))
    }

    fn transfer_bytes(&self) -> Option<f64> {
        (self.device != Device::Cpu).then_some(transfer::TRIAL as f64)
    }

    fn layouts(&self) -> &'static [Layout] {
        layouts(self.device)
    }

    fn has(&self, dtype: Dtype) -> bool {
        dtype != Dtype::Tf32 || device::has_tf32(self.device)
    }

    fn has_fused_attention(&mut self, dtype: Dtype) -> bool {
        attention::is_fused(self.device, ATTENTION_WIDTH, dtype)
    }
}

/// The memory orders that a device's libraries compute in. MIOpen's get both input and weights
/// copied into channels-first order in each call, unless the user asks for the other one
/// (pytorch v2.11.0, aten/src/ATen/native/ConvUtils.h, `miopen_conv_suggest_memory_format`).
fn layouts(device: Device) -> &'static [Layout] {
    let is_rocm = backend_of(device) == Backend::Rocm;
    let has_channels_last = std::env::var("PYTORCH_MIOPEN_SUGGEST_NHWC").is_ok_and(|value| value == "1");
    match is_rocm && !has_channels_last {
        true => &[Layout::ChannelsFirst],
        false => &[Layout::ChannelsFirst, Layout::ChannelsLast],
    }
}

fn fill(device: Device, shape: &[i64], dtype: Dtype) -> Result<Tensor> {
    scalar::full(shape, VALUE, (kind(dtype)?, device))
}

/// A 3×3 convolution of up to two samples, so that memory that grows with the input can be
/// distinguished from the rest.
struct Convolution {
    input: Tensor,
    weight: Tensor,
    tf32: bool,
}

impl Convolution {
    fn new(device: Device, dtype: Dtype, layout: Layout, channels: i64, side: i64) -> Result<Self> {
        let tensor = |shape: [i64; 4]| to_layout(&fill(device, &shape, dtype)?, layout);
        Ok(Self {
            input: tensor([2, channels, side, side])?,
            weight: tensor([channels, channels, 3, 3])?,
            tf32: dtype == Dtype::Tf32,
        })
    }

    fn run(&self, samples: i64) -> Result<Tensor> {
        let input = self.input.f_narrow(0, 0, samples)?;
        conv2d(&input, &self.weight, None, 1, [1, 1], self.tf32)
    }

    /// The most held while samples are convolved, output included.
    fn peak(&self, device: Device, samples: i64) -> Result<f64> {
        synchronize(device)?;
        memory::reset_peak(device)?;
        let before = memory::of(device)?.in_use;
        let output = self.run(samples)?;
        synchronize(device)?;
        drop(output);
        Ok(memory::of(device)?.peak.saturating_sub(before) as f64)
    }

    fn scratch(&self, device: Device) -> Result<Scratch> {
        let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as f64;
        let (one, two) = (self.peak(device, 1)?, self.peak(device, 2)?);
        // Input and output are of one size here: one of the copies counted is the output.
        let copies = (two - one) / (bytes(&self.input) / 2.0);
        let weights = (2.0 * one - two) / bytes(&self.weight);
        // Allocators round up, by much if tensors are small.
        let whole = |copies: f64| (copies * 4.0).round().max(0.0) / 4.0;
        Ok(Scratch { inputs: whole(copies - 1.0), weights: whole(weights), small: 0 })
    }
}

/// Norm, activation, convolution, sum and the next norm's sums, as a residual layer has them.
fn with_winograd(products: Kind, channels: i64, side: i64) -> Result<Work> {
    let picture = || -> Result<Tensor> {
        Ok(fill(Device::Cpu, &[1, side, side, channels], Dtype::F32)?.f_permute([0, 3, 1, 2])?)
    };
    let (input, output) = (picture()?, picture()?);
    let weight = fill(Device::Cpu, &[channels, channels, 3, 3], Dtype::F32)?;
    let conv = Winograd::new(&weight, &Tensor::f_zeros([channels], (Kind::Float, Device::Cpu))?, false, products)?;
    let affine = Affine { scale: vec![0.01; channels as usize], shift: vec![0.0; channels as usize] };
    Ok(Box::new(move || {
        let mut sums = Sums::new(1, channels);
        conv.convolve(Rows::all(&input), Some(&affine), 0..side, Some(&output), Some(&output), Some(&mut sums))?;
        Ok(output.shallow_clone())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_bandwidth_is_that_of_its_memory_and_not_of_its_caches() {
        // 96 MiB is the largest cache of the cards that are sold (GeForce RTX 5090).
        assert!(4 * gpu_values(24 << 30) > 2 * (96 << 20));
        assert_eq!(4 * gpu_values(80 << 30), 1 << 30);
        assert_eq!(8 * gpu_values(2 << 30), 512 << 20, "a quarter of what is free");
        assert_eq!(gpu_values(0), VALUES);
    }

    #[test]
    fn small_work_on_a_gpu_is_queued_until_its_launch_does_not_count() {
        let at = |microseconds| queued(Duration::from_micros(microseconds));
        assert_eq!((at(35), at(100), at(1000), at(4000)), (64, 50, 5, 1));
        assert_eq!(queued(Duration::ZERO), MOST_QUEUED);
    }
}
