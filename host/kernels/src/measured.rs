//! Speeds of a device's convolutions, attention and memory, as a probe measured them.

use serde::{Deserialize, Serialize};
use tilewright_plan::{Backend, Dtype, Layout};

use crate::ExpansionRate;

/// The types that a convolution is tried in, if the device has them.
pub const TRIED: [Dtype; 4] = [Dtype::F32, Dtype::Tf32, Dtype::Bf16, Dtype::F16];

/// The memory of a 3×3 convolution besides its input and output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scratch {
    /// Copies of the input: 1 if it is put into another memory order first, 9 if it is laid out tap
    /// by tap.
    pub inputs: f64,
    /// Copies of the weights, made in every call.
    pub weights: f64,
    /// The input size in values up to which there are nine copies of the input instead.
    pub small: u64,
}

/// The time of convolutions per pixel, in seconds: per product of two channels, and per channel
/// that is read or written.
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

    /// This rate, `times` times slower.
    #[must_use]
    pub fn slower(self, times: f64) -> Self {
        Self { per_product: self.per_product * times, per_value: self.per_value * times }
    }

    /// A rate through the times of one pixel and tap at two numbers of channels, fewer first.
    pub fn through([(fewer, quick), (more, slow)]: [(f64, f64); 2]) -> Self {
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

/// The speed of fused attention of heads side by side in their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadsSpeed {
    /// Operations per second, copies included.
    pub flops_per_second: f64,
    /// Queries, keys and values are first copied so that each head lies by itself: the device's
    /// kernel for strided heads is slower than that.
    pub apart: bool,
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
    /// 3×3 convolutions with norm and activation by Winograd's filtering, per pixel and each of its
    /// 4 or 2¼ products, if these are used.
    pub winograd: Option<Rate>,
    /// The middle attention's operations per second.
    pub attention_flops_per_second: f64,
    /// True if that attention is fused; else it goes in pieces.
    pub fused_attention: bool,
    /// Fused attention of several heads, as transformers have it; none if that was not measured.
    #[serde(default)]
    pub heads: Option<HeadsSpeed>,
    /// Bytes per second that a group norm reads and writes; none if that was not measured.
    #[serde(default)]
    pub norm_bytes_per_second: Option<f64>,
    /// The memory of convolutions besides input and output.
    pub scratch: Scratch,
}

/// The measurements of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Per type and memory order; types that the device can't run are missing.
    pub speeds: Vec<Speed>,
    /// Bytes read and written per second by an elementwise operation.
    pub bytes_per_second: f64,
    /// Bytes per second between the device and the host, while as many come as go; none of a CPU.
    #[serde(default)]
    pub transfer_bytes_per_second: Option<f64>,
    /// The libraries that were measured.
    pub backend: Backend,
    /// True if convolutions went through MIOpen, false if it fails or is slower than libtorch's own
    /// products; none of a device without it.
    #[serde(default)]
    pub miopen: Option<bool>,
    /// True if MIOpen has quick kernels for inputs of any size; older releases have none from 2 GiB
    /// of products' operands on. Its version says so: it is not kept with what was measured.
    #[serde(skip)]
    pub large_convolutions: bool,
    /// True if there was too little time to measure f32 properly: the device was busy, or is slow.
    #[serde(default)]
    pub hurried: bool,
    /// True if other programs kept the processor for a good part of the time: what is shared, such
    /// as memory and caches, was slower than it is.
    #[serde(default)]
    pub disturbed: bool,
    /// Seconds of a product of two channels and a token in 8-bit integers, with a matrix in Q8_0;
    /// none if the device has no such products.
    #[serde(default)]
    pub int8_per_product: Option<f64>,
    /// Seconds of a product of two channels and a token in FP8, rounding of the left side included;
    /// none if the device has no such products.
    #[serde(default)]
    pub fp8_per_product: Option<f64>,
    /// The speed of expanding packed weights; none of a CPU.
    #[serde(default)]
    pub expansion: Option<ExpansionRate>,
}

impl Measured {
    /// The best rate of a type over both memory orders, in operations per second.
    pub fn best(&self, dtype: Dtype) -> Option<f64> {
        self.speeds.iter().filter(|speed| speed.dtype == dtype).map(|speed| speed.flops_per_second).reduce(f64::max)
    }

    /// True if every rate is one that a device can have, and f32 was measured.
    pub fn is_sound(&self) -> bool {
        let sound = |rate: f64| rate.is_finite() && rate > 0.0;
        let rates = self.speeds.iter().flat_map(|speed| [speed.flops_per_second, speed.attention_flops_per_second]);
        let moves = [Some(self.bytes_per_second), self.transfer_bytes_per_second];
        rates.chain(moves.into_iter().flatten()).all(sound) && self.best(Dtype::F32).is_some()
    }

    /// The types no slower than f32 (to within 3 %, the probe's noise), fastest first. After a
    /// hurried measurement, f32 and those that are clearly faster: a narrow type costs precision.
    pub fn fast_dtypes(&self) -> Vec<Dtype> {
        let single = self.best(Dtype::F32).unwrap_or(0.0);
        let least = if self.hurried { 1.25 } else { 0.97 };
        let mut fast: Vec<(Dtype, f64)> = TRIED
            .into_iter()
            .filter_map(|dtype| Some((dtype, self.best(dtype)?)))
            .filter(|(dtype, rate)| *dtype == Dtype::F32 || *rate >= least * single)
            .collect();
        fast.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        fast.into_iter().map(|(dtype, _)| dtype).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            fused_attention: true,
            heads: None,
            norm_bytes_per_second: None,
            scratch: Scratch::default(),
        };
        let speeds = vec![speed(Dtype::F32, 100.0), speed(Dtype::Bf16, 180.0), speed(Dtype::F16, 60.0)];
        let mut measured = Measured {
            speeds,
            bytes_per_second: 1.0,
            transfer_bytes_per_second: None,
            backend: Backend::Cpu,
            miopen: None,
            hurried: false,
            disturbed: false,
            int8_per_product: None,
            fp8_per_product: None,
            large_convolutions: false,
            expansion: None,
        };
        assert_eq!(measured.fast_dtypes(), [Dtype::Bf16, Dtype::F32]);
        // After a hurried measurement, small differences may be noise.
        measured.hurried = true;
        assert_eq!(measured.fast_dtypes(), [Dtype::Bf16, Dtype::F32]);
        measured.speeds[1].flops_per_second = 110.0;
        assert_eq!(measured.fast_dtypes(), [Dtype::F32]);
    }
}
