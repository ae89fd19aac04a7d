//! Devices that are made up, with a clock of their own.

use super::*;
use crate::probe::CPU;

/// A device whose runs take what its speeds say, and the wait for threads.
struct FakeDevice {
    clock: Duration,
    runs: Vec<Trial>,
    /// Operations per second of a convolution by type; none if it can't be run.
    speed: fn(Dtype) -> Option<f64>,
    /// The factor by which everything takes longer, by the number of runs so far.
    busy: fn(usize) -> f64,
    /// The share of each run in which other programs have the processor.
    taken: f64,
    taken_so_far: Duration,
    /// The run at which it is lost.
    lost: usize,
    /// The factor by which attention of strided heads takes longer than of copied ones; none if
    /// neither is fused.
    strided: Option<f64>,
}

/// Seconds that a run takes beside its operations.
const WAITING: f64 = 20e-6;

/// Seconds of the elementwise operation, and of its first run.
const ELEMENTWISE_RUN: f64 = 0.02;
const OBTAINING: f64 = 0.1;

impl FakeDevice {
    fn new(speed: fn(Dtype) -> Option<f64>, busy: fn(usize) -> f64) -> Self {
        Self {
            clock: Duration::ZERO,
            runs: Vec::new(),
            speed,
            busy,
            taken: 0.0,
            taken_so_far: Duration::ZERO,
            lost: usize::MAX,
            strided: None,
        }
    }

    fn pass(&mut self, seconds: f64) -> Duration {
        let elapsed = Duration::from_secs_f64(seconds * (self.busy)(self.runs.len()));
        let taken = elapsed.mul_f64(self.taken / (1.0 - self.taken));
        self.clock += elapsed + taken;
        self.taken_so_far += taken;
        elapsed
    }

    fn run_measurement(&mut self, seconds: f64) -> Result<Measured> {
        Measurement::new(self, &CPU, Backend::Cpu).run(Duration::from_secs_f64(seconds))
    }

    fn of(&self, wanted: Dtype) -> Vec<Trial> {
        let is_wanted = |trial: &&Trial| matches!(trial, Trial::Convolution { dtype, .. } if *dtype == wanted);
        self.runs.iter().filter(is_wanted).copied().collect()
    }
}

impl Bench for FakeDevice {
    fn now(&self) -> Duration {
        self.clock
    }

    fn run(&mut self, trial: Trial) -> Result<Duration> {
        self.runs.push(trial);
        if self.runs.len() >= self.lost {
            return Err(crate::Error::DeviceLost("it fell off the bus".into()));
        }
        let dtype = match trial {
            Trial::Convolution { dtype, .. }
            | Trial::Winograd { dtype, .. }
            | Trial::Attention { dtype, .. }
            | Trial::Heads { dtype, .. }
            | Trial::Norm { dtype, .. } => dtype,
            Trial::Elementwise
            | Trial::Transfer
            | Trial::Integers { .. }
            | Trial::Fp8 { .. }
            | Trial::Expansion { .. } => Dtype::F32,
        };
        let speed = (self.speed)(dtype).ok_or_else(|| crate::Error::Torch("not implemented".into()))?;
        let is_first = self.runs.iter().filter(|run| **run == trial).count() == 1;
        let seconds = match trial {
            // The first run also obtains its memory.
            Trial::Elementwise if is_first => OBTAINING,
            Trial::Elementwise => ELEMENTWISE_RUN,
            Trial::Heads { apart: false, .. } => self.strided.unwrap_or(1.0) * trial.operations() / speed,
            _ => trial.operations() / speed,
        };
        Ok(self.pass(seconds + WAITING))
    }

    fn taken(&self) -> Duration {
        self.taken_so_far
    }

    fn scratch(&mut self, dtype: Dtype, layout: Layout, channels: i64, side: i64) -> Result<Scratch> {
        let trial = Trial::Convolution { dtype, layout, channels, side };
        let speed = (self.speed)(dtype).unwrap_or(1.0);
        self.pass(3.0 * trial.operations() / speed);
        Ok(Scratch { inputs: channels as f64, ..Scratch::default() })
    }

    fn has_winograd(&self, dtype: Dtype) -> bool {
        matches!(dtype, Dtype::F32 | Dtype::Bf16)
    }

    fn elementwise_bytes(&self) -> f64 {
        1e8
    }

    fn has_heads(&mut self, _: Dtype) -> bool {
        self.strided.is_some()
    }
}

/// Two AVX-512 cores, on which f16 is very slow.
fn two_cores(dtype: Dtype) -> Option<f64> {
    Some(match dtype {
        Dtype::F32 => 200e9,
        Dtype::Bf16 => 350e9,
        _ => 4e9,
    })
}

fn quiet(_: usize) -> f64 {
    1.0
}

#[test]
fn a_quiet_machine_is_measured_right_and_in_time() {
    let mut made = FakeDevice::new(two_cores, quiet);
    let measured = made.run_measurement(2.6).unwrap();
    assert!(made.clock < Duration::from_secs(3), "{:?}", made.clock);
    assert!(!measured.hurried);
    for speed in &measured.speeds {
        let truth = two_cores(speed.dtype).unwrap();
        let off = speed.flops_per_second / truth;
        assert!((0.5..=1.02).contains(&off), "{} {}: {off}", speed.dtype, speed.layout);
        if speed.dtype != Dtype::F16 {
            assert!(off > 0.97, "{}: {off}", speed.dtype);
            assert!((speed.plain.of(512.0, 512.0) * truth / (2.0 * 512.0 * 512.0) - 1.0).abs() < 0.05);
            assert_eq!(speed.scratch.inputs, 512.0, "of a convolution of a decoder's size");
        }
    }
    assert_eq!(measured.fast_dtypes(), [Dtype::Bf16, Dtype::F32]);
}

#[test]
fn a_machine_that_others_use_is_told_from_a_slow_one() {
    let slow: fn(Dtype) -> Option<f64> = |dtype| two_cores(dtype).map(|speed| speed / 40.0);
    for (speed, taken, disturbed) in [
        (two_cores as fn(Dtype) -> Option<f64>, 0.0, false),
        (two_cores, 0.05, false),
        (two_cores, 0.3, true),
        (slow, 0.0, false),
    ] {
        let mut made = FakeDevice { taken, ..FakeDevice::new(speed, quiet) };
        assert_eq!(made.run_measurement(2.6).unwrap().disturbed, disturbed, "{taken}");
    }
}

#[test]
fn the_bandwidth_is_not_that_of_obtaining_memory() {
    let measured = FakeDevice::new(two_cores, quiet).run_measurement(2.6).unwrap();
    let found = measured.bytes_per_second * ELEMENTWISE_RUN / 1e8;
    assert!((found - 1.0).abs() < 0.01, "{found}");
}

#[test]
fn a_small_trial_that_waits_twice_is_run_again() {
    let mut made = FakeDevice::new(two_cores, |runs| if runs <= 2 { 1000.0 } else { 1.0 });
    let trial = Trial::Convolution { dtype: Dtype::Bf16, layout: Layout::ChannelsLast, channels: 16, side: 16 };
    let (seconds, once) =
        Measurement::new(&mut made, &CPU, Backend::Cpu).least(trial, 1e-4, Duration::from_secs(1)).unwrap();
    assert!(!once && seconds < 1e-4, "{seconds}");
}

#[test]
fn a_hopeless_type_is_cut_off_early() {
    let mut made = FakeDevice::new(two_cores, quiet);
    made.run_measurement(2.6).unwrap();
    let spent: f64 = made.of(Dtype::F16).iter().map(|trial| trial.operations() / 4e9).sum();
    assert!(spent < 0.3, "{spent} s in f16: {:?}", made.of(Dtype::F16));
    assert!(made.of(Dtype::F16).iter().all(|trial| matches!(trial, Trial::Convolution { channels: ..=128, .. })));
}

#[test]
fn no_machine_is_measured_for_long() {
    let slow = |dtype| two_cores(dtype).map(|speed| speed / 40.0);
    let emulated = |dtype| Some(if dtype == Dtype::F32 { 200e9 } else { 0.05e9 });
    let by_turns: fn(usize) -> f64 = |runs| [1.0, 9.0, 2.0, 5.0][runs % 4];
    for (what, speed, busy) in [
        ("busy", two_cores as fn(Dtype) -> Option<f64>, (|_| 6.0) as fn(usize) -> f64),
        ("busy by turns", two_cores, by_turns),
        ("slow", slow, quiet),
        ("emulated", emulated, quiet),
    ] {
        let mut made = FakeDevice::new(speed, busy);
        let measured = made.run_measurement(2.6).unwrap();
        assert!(made.clock < Duration::from_millis(3300), "{what}: {:?}", made.clock);
        let single = measured.best(Dtype::F32).unwrap();
        let others = [Dtype::Bf16, Dtype::F16].map(|dtype| measured.best(dtype).unwrap() / single);
        let truth = [Dtype::Bf16, Dtype::F16].map(|dtype| speed(dtype).unwrap() / speed(Dtype::F32).unwrap());
        // A slow type is never taken for a fast one under any disturbance; the reverse may happen,
        // which costs time and not precision.
        for (found, truth) in others.iter().zip(truth) {
            assert!(*found < 0.5 || truth > 0.5, "{what}: {found} instead of {truth}");
            assert!(*found > 0.5 || truth < 0.5 || what == "busy by turns", "{what}: {found} instead of {truth}");
        }
        if what == "busy" || what == "slow" {
            assert!(measured.hurried, "{what}");
        }
    }
}

#[test]
fn a_type_that_cannot_be_run_is_missing_and_f32_has_to_be_there() {
    let measured =
        FakeDevice::new(|dtype| two_cores(dtype).filter(|_| dtype != Dtype::Bf16), quiet).run_measurement(2.6).unwrap();
    assert!(measured.best(Dtype::Bf16).is_none() && measured.best(Dtype::F16).is_some());
    assert!(FakeDevice::new(|_| None, quiet).run_measurement(2.6).is_err());
}

#[test]
fn heads_are_copied_where_strided_ones_are_clearly_slower() {
    let heads = |strided| {
        let measured = FakeDevice { strided, ..FakeDevice::new(two_cores, quiet) }.run_measurement(9.0).unwrap();
        let of = |dtype| measured.speeds.iter().find(|speed| speed.dtype == dtype).unwrap().heads;
        (of(Dtype::F32), of(Dtype::Bf16))
    };
    assert_eq!(heads(None), (None, None));
    let (single, narrow) = heads(Some(19.0));
    assert!(single.unwrap().apart && narrow.unwrap().apart);
    let off = narrow.unwrap().flops_per_second / two_cores(Dtype::Bf16).unwrap();
    assert!((0.9..=1.0).contains(&off), "{off}");
    assert!(!heads(Some(1.05)).0.unwrap().apart, "noise");
}

#[test]
fn a_device_that_is_lost_is_not_measured_in_part() {
    let mut sound = FakeDevice::new(two_cores, quiet);
    sound.run_measurement(2.6).unwrap();
    for lost in 1..=sound.runs.len() {
        let device = FakeDevice { lost, ..FakeDevice::new(two_cores, quiet) };
        let error = { device }.run_measurement(2.6).unwrap_err();
        assert!(matches!(error, crate::Error::DeviceLost(_)), "run {lost}: {error}");
    }
}

#[test]
fn a_type_that_runs_out_of_time_goes_by_f32s_speed() {
    // Six times slower, which is too long for the largest convolutions.
    let speed: fn(Dtype) -> Option<f64> = |dtype| Some(if dtype == Dtype::F32 { 60e9 } else { 10e9 });
    let measured = FakeDevice::new(speed, quiet).run_measurement(1.5).unwrap();
    for found in measured.speeds.iter().filter(|found| found.dtype != Dtype::F32) {
        let off = found.flops_per_second / 10e9;
        assert!((0.7..1.4).contains(&off), "{}: {off}", found.dtype);
    }
}
