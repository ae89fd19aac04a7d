//! Time: the probe, warm decodes, large tensors, and how soon a cancelled decode ends.

use std::time::Instant;

use serde_json::{Value, json};
use tilewright_bench::Network;
use tilewright_engine::Error as EngineError;
use tilewright_plan::{Dtype, Layout, Precision, Space, Stage, bytes};
use tilewright_torch::{conv2d, device::synchronize, kind, probe, scalar};

use crate::{
    Context, Finding,
    work::{CancelAt, Subject, plan, precision},
};

/// The factor between two measurements of a rate that passes: machines are noisy.
const REPEATS: f64 = 2.5;

/// The factor between a warm decode's time and its estimate that passes.
const AS_ESTIMATED: f64 = 4.0;

/// The factor by which a convolution of a large tensor may take longer per value than a small one.
const CLIFF: f64 = 4.0;

/// The longest time, in seconds, that a point of the scan is expected to take.
const POINT: f64 = 6.0;

/// The channels of the scan's convolutions.
const CHANNELS: i64 = 64;

/// The longest time, in seconds, until a cancelled decode has ended, and the share of a whole
/// decode that it may be if that is more.
const CANCELLED: f64 = 1.0;
const CANCELLED_SHARE: f64 = 0.15;

/// The sides of pictures: those of a slow device are smaller. A fast one spends its time on
/// launches if they are smaller than the first.
const SIDES: [u32; 4] = [512, 256, 128, 64];

/// The probe twice, and decodes against their estimates.
pub fn speed(context: &Context) -> Result<Finding, String> {
    let first = context.measured_machine()?;
    let machine = context.measured_machine()?;
    let (mut faults, mut rates) = (Vec::new(), Vec::new());
    for dtype in [Dtype::F32, Dtype::Tf32, Dtype::Bf16, Dtype::F16] {
        let (Some(one), Some(other)) = (first.measured.best(dtype), machine.measured.best(dtype)) else { continue };
        let is_sound = one.is_finite() && other.is_finite() && one > 0.0 && other > 0.0;
        let factor = if is_sound { (one / other).max(other / one) } else { f64::INFINITY };
        // The types that matter: the others are cut short.
        if factor > REPEATS && dtype == Dtype::F32 {
            faults.push(format!("{dtype} was measured at {one:.1e} and {other:.1e} operations per second"));
        }
        rates.push(json!({ "dtype": dtype, "first": one, "second": other }));
    }
    let subject = Subject::soon(Network::FLUX, &SIDES, &machine)?;
    let side = subject.side();
    let mut decodes = Vec::new();
    let fast = machine.facts.fast_dtypes.clone();
    for dtype in fast {
        let plan = plan(Space::Whole, precision(dtype), layout_of(&machine.measured, dtype));
        let mut elapsed = Vec::new();
        let mut expected = 0.0;
        for _ in 0..3 {
            let start = Instant::now();
            let (_, record) = subject.run(&machine, &plan, Stage::Decode)?;
            let all = start.elapsed().as_secs_f64();
            elapsed.push(record.outcome.map_or(all, |outcome| outcome.elapsed.as_secs_f64()));
            expected = record.estimate.map_or(0.0, |cost| cost.elapsed.as_secs_f64());
        }
        let (cold, warm) = (elapsed[0], elapsed[1].min(elapsed[2]));
        let factor = (warm / expected).max(expected / warm);
        if factor.is_nan() || factor > AS_ESTIMATED {
            faults.push(format!("{dtype} at {side}×{side} takes {warm:.3} s, estimated at {expected:.3} s"));
        }
        decodes.push(json!({
            "dtype": dtype, "side": side, "cold_s": cold, "warm_s": warm, "estimated_s": expected,
        }));
    }
    let told = decodes
        .iter()
        .map(|row| format!("{} {:.3} s", row["dtype"].as_str().unwrap_or(""), row["warm_s"].as_f64().unwrap_or(0.0)));
    let detail = format!("{side}×{side} warm: {}", told.collect::<Vec<_>>().join(", "));
    Ok(Finding::of(
        &faults,
        detail,
        json!({ "rates": rates, "decodes": decodes, "bytes_per_second": machine.measured.bytes_per_second }),
    ))
}

/// The rates of convolutions without MIOpen, which differ by chip and type in either direction.
pub fn without_miopen(context: &Context) -> Result<Finding, String> {
    let device = context.machine()?.device;
    let measure = |is_used: bool| probe::measure_with(device, is_used).map_err(|error| error.to_string());
    let (with, without) = (measure(true)?, measure(false)?);
    match with.miopen {
        Some(true) => {}
        Some(false) => return Ok(Finding::pass("MIOpen fails, and convolutions go on without it", Value::Null)),
        None => return Ok(Finding::skipped("the device has no MIOpen")),
    }
    let (mut told, mut rows) = (Vec::new(), Vec::new());
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let (Some(own), Some(plain)) = (with.best(dtype), without.best(dtype)) else { continue };
        told.push(format!("{dtype} {:.2}", plain / own));
        rows.push(json!({ "dtype": dtype, "with": own, "without": plain }));
    }
    Ok(Finding::pass(format!("of its rates: {}", told.join(", ")), Value::from(rows)))
}

/// The memory order that a type is fastest in.
fn layout_of(measured: &tilewright_kernels::Measured, dtype: Dtype) -> Layout {
    let of_type = measured.speeds.iter().filter(|speed| speed.dtype == dtype);
    let best = of_type.max_by(|one, other| one.flops_per_second.total_cmp(&other.flops_per_second));
    best.map_or(Layout::ChannelsFirst, |speed| speed.layout)
}

/// Convolutions of larger and larger pictures, by their time per value.
pub fn large_tensors(context: &Context) -> Result<Finding, String> {
    let _no_grad = tch::no_grad_guard();
    let machine = context.machine()?;
    let sizes: &[u64] = if context.is_quick() { &[32, 128, 512] } else { &[32, 256, 512, 1024, 2048, 4096] };
    let (mut faults, mut rows) = (Vec::new(), Vec::new());
    for dtype in machine.facts.fast_dtypes.clone() {
        let layout = layout_of(&machine.measured, dtype);
        let kind = kind(dtype).map_err(|error| error.to_string())?;
        let mut smallest: Option<f64> = None;
        for mib in sizes {
            let values = (mib << 20) as i64 / kind.elt_size_in_bytes() as i64;
            let side = ((values / CHANNELS) as f64).sqrt() as i64;
            let pixels = (side * side) as f64;
            // Input, output, a workspace as large, and some room.
            let needed = 4 * (mib << 20);
            if needed > machine.facts.free_bytes || smallest.is_some_and(|each| each * pixels > POINT) {
                rows.push(json!({ "dtype": dtype, "mib": mib, "skipped": true }));
                continue;
            }
            let time = || -> tilewright_torch::Result<f64> {
                let options = (kind, machine.device);
                let picture =
                    tilewright_torch::to_layout(&scalar::full(&[1, CHANNELS, side, side], 0.5, options)?, layout)?;
                let weight =
                    tilewright_torch::to_layout(&scalar::full(&[CHANNELS, CHANNELS, 3, 3], 0.01, options)?, layout)?;
                let mut least = f64::INFINITY;
                for _ in 0..3 {
                    synchronize(machine.device)?;
                    let start = Instant::now();
                    let output = conv2d(&picture, &weight, None, 1, [1, 1], dtype == Dtype::Tf32)?;
                    synchronize(machine.device)?;
                    least = least.min(start.elapsed().as_secs_f64());
                    drop(output);
                    if least > POINT {
                        break;
                    }
                }
                Ok(least)
            };
            let each = time().map_err(|error| format!("{dtype}, {mib} MiB: {error}"))? / pixels;
            let small = *smallest.get_or_insert(each);
            smallest = Some(small.min(each));
            rows.push(
                json!({ "dtype": dtype, "mib": mib, "seconds_per_pixel": each, "times_the_smallest": each / small }),
            );
            if each > CLIFF * small {
                let size = bytes::display(mib << 20);
                faults.push(format!(
                    "{dtype}: a convolution of {size} takes {:.1} times as long per value",
                    each / small
                ));
                break;
            }
        }
    }
    Ok(Finding::of(&faults, format!("{} sizes", rows.len()), Value::from(rows)))
}

/// A decode that is cancelled in its middle.
pub fn cancellation(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let subject = Subject::soon(Network::FLUX, &SIDES, &machine)?;
    let whole = plan(Space::Whole, Precision::Uniform(Dtype::F32), layout_of(&machine.measured, Dtype::F32));
    let mut all = 0.0;
    for _ in 0..2 {
        let start = Instant::now();
        drop(subject.run(&machine, &whole, Stage::Decode)?);
        all = start.elapsed().as_secs_f64();
    }
    let mut observer = CancelAt { share: 0.3, cancelled: None };
    let start = Instant::now();
    let end = subject.decode(&machine, &whole, None, &mut observer);
    // A decode has not ended as long as the device works on it.
    synchronize(machine.device).map_err(|error| error.to_string())?;
    let ended = Instant::now();
    let told = observer.cancelled.ok_or("the decode told of no progress")?;
    let (latency, at) = ((ended - told).as_secs_f64(), (told - start).as_secs_f64());
    let mut faults = Vec::new();
    match end {
        Err(end) if matches!(end.error, EngineError::Interrupted) => {}
        Err(end) => faults.push(format!("it ended with: {}", end.error)),
        Ok(_) => faults.push("it was not cancelled".into()),
    }
    if latency > CANCELLED.max(CANCELLED_SHARE * all) {
        faults.push(format!("it ended {latency:.1} s after it was cancelled"));
    }
    let data = json!({ "whole_s": all, "cancelled_at_s": at, "latency_s": latency });
    Ok(Finding::of(&faults, format!("ended after {latency:.2} s, of {all:.2} s in all"), data))
}
