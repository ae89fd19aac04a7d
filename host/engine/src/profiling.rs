//! Profiles of jobs: a rehearsal without the profiler, which warms up and says what the profiler
//! costs, and then the work under it.

use std::time::{Duration, Instant};

use tch::Device;
use tilewright_kernels::Measured;
use tilewright_nn::LayerSeconds;
use tilewright_plan::{Dtype, Record, Stage, Work, words::with_noun};
use tilewright_profile::{EstimatedPart, Event, Facts, Kind, Part, Peaks, Recording};
use tilewright_torch::{device::synchronize, profile::Profiler};

use crate::{
    Machine,
    task::{AttemptContext, Attempted},
};

/// A stage that was profiled.
#[derive(Clone, Debug)]
pub struct Profiled {
    /// The facts that its events do not say.
    pub facts: Facts,
    /// The events.
    pub recording: Recording,
}

/// The work that is compared with and without the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// All of the stage: it runs three times.
    Stage,
    /// The first step of a sample.
    Step,
    /// The first chunk of a clip.
    Chunk,
}

/// A recording, and the times of the unit without the profiler and with it.
#[derive(Debug)]
pub(crate) struct Recorded {
    recording: Recording,
    unit: Unit,
    compared: [Duration; 2],
    device: Device,
}

/// The profile of an attempt, if one is asked for.
#[derive(Debug, Default)]
pub(crate) struct Profiling {
    pub is_wanted: bool,
    recorded: Option<Recorded>,
}

impl Profiling {
    /// The profile that is asked for, or none.
    pub fn new(is_wanted: bool) -> Self {
        Self { is_wanted, recorded: None }
    }

    /// Keeps a recording. Its unit took `plain` without the profiler.
    pub fn keep(&mut self, recording: Recording, unit: Unit, plain: Duration, device: Device) {
        let profiled = recording.events.iter().filter(|event| is_unit(event, unit)).min_by_key(|event| event.start);
        let profiled = Duration::from_nanos(profiled.map_or(0, |event| event.end - event.start));
        self.recorded = Some(Recorded { recording, unit, compared: [plain, profiled], device });
    }

    /// The profile of the last attempt, of which a record was made.
    pub fn finish<W: Work>(
        self,
        machine: &Machine,
        record: &Record<W>,
        layers: impl FnOnce(&W::Plan) -> Vec<LayerSeconds>,
    ) -> Option<Profiled> {
        let Recorded { recording, unit, compared, device } = self.recorded?;
        let precision = W::precision(&record.plan).dtype();
        let [samples, frames, height, width] = W::extents(&record.request);
        let request = match record.stage() {
            Stage::Text => format!("{}, at most {width} tokens", with_noun(samples, "text")),
            _ => in_words(samples, frames, [height, width]),
        };
        // A sample's price is that of a step.
        let steps = match record.stage() {
            Stage::Denoise => recording.events.iter().filter(|event| is_unit(event, Unit::Step)).count() as f64,
            _ => 1.0,
        };
        let estimated_parts = layers(&record.plan).into_iter().map(|layer| EstimatedPart {
            name: layer.name.into(),
            is_block: layer.is_block,
            total_ms: 1e3 * steps * layer.seconds,
        });
        let estimated_parts = estimated_parts.collect();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let facts = Facts {
            stage: record.stage().to_string(),
            device: record.device.name.clone(),
            on_gpu: device != Device::Cpu,
            request,
            policy: format!("{} {}", record.policy.name, record.policy.version),
            plan: record.plan.to_string(),
            // An encoder beside a GPU runs on the host, whose peaks are not at hand.
            peaks: if device == machine.device { peaks(&machine.measured, precision) } else { Peaks::default() },
            compared_ms: compared.map(milliseconds),
            compared: unit.words().into(),
            estimated_ms: record.expectation().map(|cost| steps * milliseconds(W::time(cost))),
            estimated_parts,
            peaks_are_rough: machine.measured.hurried || machine.measured.disturbed,
            manual_attention: is_manual(&machine.measured, precision),
            in_f32: precision == Dtype::F32,
        };
        Some(Profiled { facts, recording })
    }
}

impl Unit {
    const fn words(self) -> &'static str {
        match self {
            Self::Stage => "the stage",
            Self::Step => "a step",
            Self::Chunk => "a chunk",
        }
    }
}

/// Samples, frames and a size.
fn in_words(samples: u32, frames: u32, [height, width]: [u32; 2]) -> String {
    let samples = if samples == 1 { String::new() } else { format!("{samples} × ") };
    let frames = if frames == 1 { String::new() } else { format!("{} of ", with_noun(frames, "frame")) };
    format!("{samples}{frames}{width}×{height}")
}

fn is_unit(event: &Event, unit: Unit) -> bool {
    let part = match unit {
        Unit::Stage => Part::Stage,
        Unit::Step => Part::Step,
        Unit::Chunk => Part::Chunk,
    };
    event.kind == Kind::Part(part)
}

/// The peaks that were measured in a type.
fn peaks(measured: &Measured, dtype: Dtype) -> Peaks {
    let mut peaks = Peaks {
        operations_per_second: 0.0,
        convolution_operations_per_second: 0.0,
        attention_operations_per_second: 0.0,
        bytes_per_second: measured.bytes_per_second,
    };
    let most = |peak: &mut f64, rate: f64| *peak = peak.max(if rate.is_finite() { rate } else { 0.0 });
    for speed in measured.speeds.iter().filter(|speed| speed.dtype == dtype) {
        most(&mut peaks.operations_per_second, 2.0 / speed.plain.per_product);
        most(&mut peaks.convolution_operations_per_second, speed.flops_per_second);
        // The rate of Winograd's filtering is of the products that are left.
        let filtered = speed.winograd.map_or(0.0, |rate| 2.0 / rate.per_product);
        most(&mut peaks.convolution_operations_per_second, filtered);
        most(&mut peaks.attention_operations_per_second, speed.attention_flops_per_second);
        most(&mut peaks.attention_operations_per_second, speed.heads.map_or(0.0, |heads| heads.flops_per_second));
    }
    peaks.operations_per_second = peaks.operations_per_second.max(peaks.convolution_operations_per_second);
    peaks
}

/// True if the device has no fused attention in a type.
fn is_manual(measured: &Measured, dtype: Dtype) -> bool {
    let mut speeds = measured.speeds.iter().filter(|speed| speed.dtype == dtype);
    speeds.all(|speed| !speed.fused_attention)
}

/// Runs work; with a profile, three times: to warm up, without the profiler, and under it. Returns
/// the last result, and the time that is not the work's own.
pub(crate) fn repeated<T, W: Work>(
    context: &mut AttemptContext<'_, W>,
    (stage, device): (Stage, Device),
    mut work: impl FnMut(&mut AttemptContext<'_, W>) -> Attempted<T>,
) -> Attempted<(T, Duration)> {
    if !context.profiling.is_wanted {
        return Ok((work(context)?, Duration::ZERO));
    }
    const RUNS: f64 = 3.0;
    let start = Instant::now();
    context.span = [0.0, 1.0 / RUNS];
    drop(work(context)?);
    synchronize(device)?;
    let plain = Instant::now();
    context.span = [1.0 / RUNS, 1.0 / RUNS];
    drop(work(context)?);
    synchronize(device)?;
    let plain = plain.elapsed();
    context.span = [2.0 / RUNS, 1.0 / RUNS];
    let profiler = Profiler::begin(device, &stage.to_string())?;
    let output = work(context)?;
    let recording = profiler.end()?;
    context.profiling.keep(recording, Unit::Stage, plain, device);
    context.span = WHOLE;
    Ok((output, start.elapsed().saturating_sub(plain)))
}

/// Runs a piece of work twice that leaves nothing behind: to warm up, and to see how long it takes,
/// which is returned. It is no progress.
pub(crate) fn rehearsed<W: Work>(
    context: &mut AttemptContext<'_, W>,
    device: Device,
    mut work: impl FnMut(&mut AttemptContext<'_, W>) -> Attempted<()>,
) -> Attempted<Duration> {
    context.span = [0.0, 0.0];
    work(context)?;
    synchronize(device)?;
    let begun = Instant::now();
    work(context)?;
    synchronize(device)?;
    context.span = WHOLE;
    Ok(begun.elapsed())
}

/// The span of progress of work that runs once: it begins at 0, and is 1 long.
pub(crate) const WHOLE: [f64; 2] = [0.0, 1.0];
