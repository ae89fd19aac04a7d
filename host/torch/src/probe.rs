//! Measurement of a device: the speed of convolutions per type and memory order, their memory, and
//! the memory's bandwidth. It takes at most about [`MOST`], on any device: a first decode waits for
//! it.

mod bench;
mod measurement;

use std::time::Duration;

use tch::Device;
use tilewright_kernels::Measured;
use tilewright_plan::Backend;

use crate::{Error, Result, backend, miopen};
use bench::OnDevice;
use measurement::{Measurement, Sizes};

/// Without MIOpen convolutions hold their input nine times: they have to be faster by this.
const LEAST_GAIN: f64 = 1.1;

/// About the longest time of a measurement, of which a device with MIOpen takes two; its
/// preparation and a piece of work that takes too long come on top.
pub const MOST: Duration = Duration::from_millis(2600);

/// The last two convolutions take some hundredths of a second on a CPU and more memory than caches
/// hold, as a decoder's do.
const CPU: Sizes = Sizes {
    convolutions: [(16, &[16]), (64, &[20]), (128, &[160, 80, 40]), (512, &[64, 32, 16])],
    winograd: [(128, &[256, 128, 64]), (512, &[64, 32])],
    tokens: &[2048, 1024, 512],
    scratch: [(512, 16), (128, 24), (16, 16)],
    small: CPU_SMALL,
};

/// Smaller sizes do not fill a GPU.
const GPU: Sizes = Sizes {
    convolutions: [(16, &[16]), (64, &[64]), (128, &[256, 128, 64]), (512, &[128, 64, 32])],
    winograd: CPU.winograd,
    tokens: &[16384, 4096, 1024, 512],
    scratch: [(512, 32), (128, 32), (16, 16)],
    small: 0,
};

/// Channels of the probe's group norm, and the sides that it may have.
const NORM_CHANNELS: i64 = 256;
const NORM_SIDES: [i64; 2] = [512, 128];

/// Width of the probe's attention.
const ATTENTION_WIDTH: i64 = 512;

/// Heads of the probe's attention of several, and the width of each: that of Flux's and WAN's.
const HEADS: i64 = 8;
const HEAD_WIDTH: i64 = 128;

/// The largest sample, in values, whose convolution in f32 takes libtorch's own path on a CPU,
/// which holds nine copies of the input (pytorch v2.11.0, aten/src/ATen/native/Convolution.cpp,
/// `ConvParams::use_mkldnn`).
const CPU_SMALL: u64 = 20480;

/// Measures a device, within about [`MOST`]; one that has MIOpen with it and without, and leaves
/// this process's convolutions with the faster way. Without [`crate::memory::install`] before,
/// memory held on a CPU is not seen.
///
/// # Errors
/// Not even f32 runs.
pub fn measure(device: Device) -> Result<Measured> {
    if device == Device::Cpu || !miopen::is_there() || miopen::has_failed() {
        return measure_as_it_is(device);
    }
    let with = measure_with(device, true)?;
    if miopen::has_failed() {
        // The convolutions before it failed were another library's.
        return measure_as_it_is(device);
    }
    let without = match measure_with(device, false) {
        Ok(without) => without,
        Err(error @ Error::DeviceLost(_)) => return Err(error),
        // Products may need more memory than there is.
        Err(error) => {
            tracing::debug!(%error, "the device can't be measured without MIOpen");
            miopen::set_used(true);
            return Ok(with);
        }
    };
    let is_faster = fastest(&without) > LEAST_GAIN * fastest(&with);
    miopen::set_used(!is_faster);
    Ok(if is_faster { without } else { with })
}

/// Measures a device with MIOpen or without, and leaves this process so.
///
/// # Errors
/// Not even f32 runs.
pub fn measure_with(device: Device, is_used: bool) -> Result<Measured> {
    miopen::set_used(is_used);
    measure_as_it_is(device)
}

/// The rate of convolutions in the type that is fastest.
fn fastest(measured: &Measured) -> f64 {
    measured.speeds.iter().map(|speed| speed.flops_per_second).fold(0.0, f64::max)
}

/// Measures a device with the libraries that it uses now.
fn measure_as_it_is(device: Device) -> Result<Measured> {
    let _no_grad = tch::no_grad_guard();
    let sizes = if device == Device::Cpu { &CPU } else { &GPU };
    // The time to wake the device and its libraries says nothing about its speed.
    let mut bench = OnDevice::wake(device)?;
    let mut measured = Measurement::new(&mut bench, sizes, backend_of(device)).run(MOST)?;
    measured.miopen = (device != Device::Cpu && miopen::is_there()).then(miopen::is_used);
    Ok(measured)
}

/// The libraries that compute on a device.
fn backend_of(device: Device) -> Backend {
    match device {
        Device::Cpu => Backend::Cpu,
        _ => backend::loaded().map_or(Backend::Cuda, |(backend, _)| backend),
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::Dtype;

    use super::*;

    #[test]
    fn a_cpu_runs_f32_and_is_measured() {
        let measured = measure(Device::Cpu).unwrap();
        assert!(measured.best(Dtype::F32).unwrap() > 0.0);
        assert!(measured.bytes_per_second > 0.0);
        assert!(measured.fast_dtypes().contains(&Dtype::F32));
    }

    #[test]
    fn a_gpus_trials_fill_it() {
        // A fused kernel takes 64 queries per block, and an H200 has 132 processors of two blocks.
        assert!(GPU.tokens[0] / 64 >= 132, "{:?}", GPU.tokens);
        let pixels = |sizes: &Sizes| sizes.convolutions.map(|(_, sides)| sides[0]);
        assert!(pixels(&GPU)[2..].iter().zip(&pixels(&CPU)[2..]).all(|(gpu, cpu)| gpu > cpu));
    }
}
