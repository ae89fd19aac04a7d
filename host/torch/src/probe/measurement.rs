//! The course of a measurement: the trials, their number, and when to stop. It knows the time only
//! from its [`Bench`], and looks at the clock between pieces of work that are known to be small.

use std::time::Duration;

use tilewright_kernels::{Expansion, ExpansionRate, HeadsSpeed, Measured, Rate, Scratch, Speed, TRIED};
use tilewright_plan::{Backend, Dtype, Layout};

use crate::{Error, Result};

/// A type this many times slower than f32 is not tried on more: some processors emulate f16 a
/// thousand times slower.
const HOPELESS: f64 = 8.0;

/// The longest run, in seconds, that is repeated even if it was too slow: on a busy machine small
/// trials mostly wait, and by one of them a type would seem a thousand times slower than it is.
const TRIVIAL: f64 = 0.05;

/// The longest first run, in seconds, that another one follows even if time is up: the first also
/// obtains the memory and prepares the operation, which can take several times as long.
const OBTAINED: f64 = 0.25;

/// Runs that are counted, after one that warms up, if there is time.
const RUNS: usize = 3;

/// The share of the time that other programs may have the processor for.
const MOST_TAKEN: f64 = 0.1;

/// Runs of a large trial that there has to be time for: one that warms up and one that counts.
const LEAST_RUNS: f64 = 2.0;

/// The product in 8-bit integers: 4 ms on two cores of 2023; that in FP8, of a GPU; and the time
/// that is left for either.
const INTEGERS: Trial = Trial::Integers { tokens: 256, side: 2048 };
const FP8: Trial = Trial::Fp8 { tokens: 4096, side: 4096 };
const PRODUCTS_TIME: Duration = Duration::from_millis(100);

/// Tokens of attention of several heads, the time for each way, and how much faster copies have to
/// make it.
const HEADS_TOKENS: i64 = 4096;
const HEADS_TIME: Duration = Duration::from_millis(50);
const CLEARLY: f64 = 1.1;

/// The expansions of packed rows on a GPU: of so few that launches count alone, and of as many as a
/// product expands at once; and the time that is left for each.
const FEW_ROWS: i64 = 1;
const MANY_ROWS: i64 = 4096;
const EXPANSION_COLUMNS: i64 = 4096;
const EXPANSION_TIME: Duration = Duration::from_millis(50);

/// One piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trial {
    /// A 3×3 convolution of as many channels in as out.
    Convolution { dtype: Dtype, layout: Layout, channels: i64, side: i64 },
    /// The same by Winograd's filtering, with norm and activation.
    Winograd { dtype: Dtype, channels: i64, side: i64 },
    /// The middle attention.
    Attention { dtype: Dtype, tokens: i64 },
    /// An elementwise operation on more values than caches hold.
    Elementwise,
    /// A group norm.
    Norm { dtype: Dtype, layout: Layout, side: i64 },
    /// Tensors to the host and others back.
    Transfer,
    /// A product of tokens with a square matrix in 8-bit integers.
    Integers { tokens: i64, side: i64 },
    /// A product of tokens with a square matrix in FP8.
    Fp8 { tokens: i64, side: i64 },
    /// Fused attention of several heads side by side in their tokens, each copied first to lie by
    /// itself or not.
    Heads { dtype: Dtype, tokens: i64, apart: bool },
    /// The expansion of packed rows to bf16.
    Expansion { rows: i64, columns: i64 },
}

impl Trial {
    /// Floating-point operations, a multiply-add counted as two; 0 if memory is measured.
    pub fn operations(&self) -> f64 {
        match *self {
            Trial::Convolution { channels, side, .. } => (18 * channels * channels * side * side) as f64,
            Trial::Winograd { channels, side, .. } => (8 * channels * channels * side * side) as f64,
            Trial::Attention { tokens, .. } => (4 * tokens * tokens * super::ATTENTION_WIDTH) as f64,
            Trial::Heads { tokens, .. } => (4 * tokens * tokens * super::HEADS * super::HEAD_WIDTH) as f64,
            Trial::Integers { tokens, side } | Trial::Fp8 { tokens, side } => (2 * tokens * side * side) as f64,
            Trial::Elementwise | Trial::Norm { .. } | Trial::Transfer | Trial::Expansion { .. } => 0.0,
        }
    }
}

/// A device, and the clock that it is measured by.
pub(super) trait Bench {
    /// Time since the measurement began.
    fn now(&self) -> Duration;
    /// Does a piece of work once; its preparation is not counted, but takes time.
    fn run(&mut self, trial: Trial) -> Result<Duration>;
    /// Time within runs so far in which other programs had the processor.
    fn taken(&self) -> Duration {
        Duration::ZERO
    }
    /// The memory that a convolution holds besides its input and output.
    fn scratch(&mut self, dtype: Dtype, layout: Layout, channels: i64, side: i64) -> Result<Scratch>;
    /// True if Winograd's filtering is used with products of a type.
    fn has_winograd(&self, dtype: Dtype) -> bool;
    /// Bytes that [`Trial::Elementwise`] reads and writes.
    fn elementwise_bytes(&self) -> f64;
    /// The side of [`Trial::Norm`], and the bytes that it reads and writes in a type; none if norms
    /// are as fast as other elementwise operations.
    fn norm(&self, _dtype: Dtype) -> Option<(i64, f64)> {
        None
    }
    /// True if the device has products in 8-bit integers.
    fn has_integers(&self) -> bool {
        false
    }
    /// True if attention of several heads in a type is worth measuring both ways.
    fn has_heads(&mut self, _dtype: Dtype) -> bool {
        false
    }
    /// True if the device has products in FP8.
    fn has_fp8(&self) -> bool {
        false
    }
    /// The expansion of a value by [`Trial::Expansion`]; none if products expand by themselves.
    fn expansion(&self) -> Option<Expansion> {
        None
    }
    /// Bytes that [`Trial::Transfer`] moves each way; none if the host's memory is the device's.
    fn transfer_bytes(&self) -> Option<f64> {
        None
    }
    /// The memory orders that the device's libraries compute in.
    fn layouts(&self) -> &'static [Layout] {
        &[Layout::ChannelsFirst, Layout::ChannelsLast]
    }
    /// True if the device has a way to compute in a type that is worth a try.
    fn has(&self, dtype: Dtype) -> bool {
        dtype != Dtype::Tf32
    }
    /// True if the attention of a type is fused.
    fn has_fused_attention(&mut self, _dtype: Dtype) -> bool {
        true
    }
}

/// Channels of a trial and the sides that it may have, the one that counts first: the others are
/// for lack of time.
pub(super) type TrialSizes = (i64, &'static [i64]);

/// The sizes of trials on a kind of device.
pub(super) struct Sizes {
    /// Convolutions in the order that they are tried. The last two are those that count.
    pub convolutions: [TrialSizes; 4],
    pub winograd: [TrialSizes; 2],
    /// Tokens of the attention, the number that counts first.
    pub tokens: &'static [i64],
    /// Channels and side of the convolution whose memory is measured, of one for slow devices, and
    /// of one for types that are too slow for either.
    pub scratch: [(i64, i64); 3],
    /// As [`Scratch::small`], in f32.
    pub small: u64,
}

/// Shares out the remaining time: time that one step leaves goes to the next.
struct TimeBudget {
    ends: Duration,
    weights: f64,
}

impl TimeBudget {
    /// The time by which a step of this weight has to be over.
    fn deadline(&mut self, now: Duration, weight: f64) -> Duration {
        let share = (weight / self.weights.max(weight)).min(1.0);
        self.weights -= weight;
        now + self.ends.saturating_sub(now).mul_f64(share)
    }
}

/// Weights of the steps: f32's are larger, since everything else is compared with it.
const CONVOLUTION_F32: f64 = 6.0;
const WINOGRAD: f64 = 4.0;
const WINOGRAD_NARROW: f64 = 2.0;
const ATTENTION_F32: f64 = 2.0;
const ELEMENTWISE: f64 = 1.0;
const CONVOLUTION: f64 = 2.0;
const ATTENTION: f64 = 1.0;

/// A measurement under way.
pub(super) struct Measurement<'a, B> {
    pub bench: &'a mut B,
    pub sizes: &'a Sizes,
    backend: Backend,
    /// True if f32, which all else is compared with, was tried on smaller sizes or less often than
    /// it should be.
    hurried: bool,
}

/// Convolutions of one type and memory order; `reached` has the seconds per pixel and tap of each
/// rung.
struct ConvolutionRuns {
    dtype: Dtype,
    layout: Layout,
    reached: Vec<f64>,
    flops_per_second: f64,
    /// True if it is too slow to be worth more time.
    hopeless: bool,
    scratch: Scratch,
    norm_bytes_per_second: Option<f64>,
}

impl<'a, B: Bench> Measurement<'a, B> {
    pub fn new(bench: &'a mut B, sizes: &'a Sizes, backend: Backend) -> Self {
        Self { bench, sizes, backend, hurried: false }
    }

    /// Measures everything within about the time given.
    pub fn run(mut self, most: Duration) -> Result<Measured> {
        let begun = self.bench.now();
        let layouts = self.bench.layouts();
        let tried: Vec<Dtype> = TRIED.into_iter().filter(|dtype| self.bench.has(*dtype)).collect();
        let narrow = tried.iter().filter(|dtype| **dtype != Dtype::F32 && self.bench.has_winograd(**dtype)).count();
        let others = (tried.len() - 1) as f64 * (2.0 * CONVOLUTION + ATTENTION) + narrow as f64 * WINOGRAD_NARROW;
        let weights = 2.0 * CONVOLUTION_F32 + WINOGRAD + ATTENTION_F32 + ELEMENTWISE + others;
        let mut budget = TimeBudget { ends: begun + most, weights };

        let mut single = Vec::new();
        for layout in layouts {
            let until = budget.deadline(self.bench.now(), CONVOLUTION_F32);
            single.push(self.run_convolutions(Dtype::F32, *layout, &[], until)?);
        }
        let fastest = single.iter().map(|climb| climb.flops_per_second).fold(0.0, f64::max);
        let until = budget.deadline(self.bench.now(), WINOGRAD);
        let winograd = match self.bench.has_winograd(Dtype::F32) {
            true => Some(self.winograd(Dtype::F32, fastest, until)?),
            false => None,
        };
        let until = budget.deadline(self.bench.now(), ATTENTION_F32);
        let attention = self.attention(Dtype::F32, fastest, until)?;
        let until = budget.deadline(self.bench.now(), ELEMENTWISE);
        let (elapsed, _) = self.least(Trial::Elementwise, f64::INFINITY, until)?;
        let bytes_per_second = self.bench.elementwise_bytes() / elapsed;
        let transfer_bytes_per_second = match self.bench.transfer_bytes() {
            Some(bytes) => Some(bytes / self.least(Trial::Transfer, f64::INFINITY, until)?.0),
            None => None,
        };

        let mut speeds = Vec::new();
        let heads = self.heads(Dtype::F32)?;
        for climb in &single {
            let winograd = winograd.filter(|_| climb.layout == Layout::ChannelsLast);
            speeds.push(self.speed(climb, None, winograd, attention, heads));
        }
        for dtype in tried.into_iter().filter(|dtype| *dtype != Dtype::F32) {
            let mut climbs = Vec::new();
            for layout in layouts {
                let until = budget.deadline(self.bench.now(), CONVOLUTION);
                match self.run_convolutions(dtype, *layout, &single, until) {
                    Ok(climb) => climbs.push(climb),
                    // The device may have the types that were not reached.
                    Err(error @ Error::DeviceLost(_)) => return Err(error),
                    Err(error) => tracing::debug!(%dtype, %error, "the device can't run this type"),
                }
            }
            let until = budget.deadline(self.bench.now(), ATTENTION);
            let fastest_of = climbs.iter().map(|climb| climb.flops_per_second).fold(0.0, f64::max);
            let attention = if dtype == Dtype::Tf32 {
                // Only convolutions round.
                attention
            } else if climbs.iter().all(|climb| climb.hopeless) {
                fastest_of
            } else {
                self.attention_or(dtype, fastest_of, attention * fastest_of / fastest, until)?
            };
            let heads = match dtype {
                // Only convolutions round.
                Dtype::Tf32 => heads,
                _ if climbs.iter().all(|climb| climb.hopeless) => None,
                _ => self.heads(dtype)?,
            };
            for climb in &climbs {
                let single = single.iter().find(|single| single.layout == climb.layout);
                let filtered = climb.layout == Layout::ChannelsLast && self.bench.has_winograd(dtype);
                let until = budget.deadline(self.bench.now(), WINOGRAD_NARROW);
                let winograd = match filtered && !climb.hopeless {
                    true => Some(self.winograd(dtype, fastest_of, until)?),
                    false => None,
                };
                speeds.push(self.speed(climb, single, winograd, attention, heads));
            }
        }
        let int8_per_product = if self.bench.has_integers() { Some(self.per_product(INTEGERS)?) } else { None };
        let fp8_per_product = if self.bench.has_fp8() { if_run(self.per_product(FP8))? } else { None };
        let expansion = match self.bench.expansion() {
            Some(expansion) => if_run(self.expansion(expansion))?,
            None => None,
        };
        let whole = self.bench.now().saturating_sub(begun);
        Ok(Measured {
            speeds,
            int8_per_product,
            fp8_per_product,
            expansion,
            bytes_per_second,
            transfer_bytes_per_second,
            backend: self.backend,
            miopen: None,
            large_convolutions: false,
            hurried: self.hurried,
            disturbed: self.bench.taken() > whole.mul_f64(MOST_TAKEN),
        })
    }

    /// The faster way of attention of several heads.
    fn heads(&mut self, dtype: Dtype) -> Result<Option<HeadsSpeed>> {
        if !self.bench.has_heads(dtype) {
            return Ok(None);
        }
        let mut rates = [0.0; 2];
        for (rate, apart) in rates.iter_mut().zip([false, true]) {
            let trial = Trial::Heads { dtype, tokens: HEADS_TOKENS, apart };
            let until = self.bench.now() + HEADS_TIME;
            let Some((seconds, _)) = if_run(self.least(trial, f64::INFINITY, until))? else { return Ok(None) };
            *rate = trial.operations() / seconds;
        }
        let [beside, apart] = rates;
        let is_faster = apart > CLEARLY * beside;
        Ok(Some(HeadsSpeed { flops_per_second: if is_faster { apart } else { beside }, apart: is_faster }))
    }

    /// The seconds of a product of two channels and a token.
    fn per_product(&mut self, trial: Trial) -> Result<f64> {
        let until = self.bench.now() + PRODUCTS_TIME;
        let (seconds, _) = self.least(trial, f64::INFINITY, until)?;
        Ok(2.0 * seconds / trial.operations())
    }

    fn expansion(&mut self, expansion: Expansion) -> Result<ExpansionRate> {
        let mut seconds = [0.0; 2];
        for (seconds, rows) in seconds.iter_mut().zip([FEW_ROWS, MANY_ROWS]) {
            let trial = Trial::Expansion { rows, columns: EXPANSION_COLUMNS };
            let until = self.bench.now() + EXPANSION_TIME;
            (*seconds, _) = self.least(trial, f64::INFINITY, until)?;
        }
        let [few, many] = seconds;
        Ok(ExpansionRate::through(expansion, few, ((MANY_ROWS * EXPANSION_COLUMNS) as f64, many)))
    }

    /// The least time of a trial in seconds, and true if the run that warms up is the only one. Up
    /// to [`RUNS`] more follow while there is time, and one after a first run of [`OBTAINED`] at
    /// most even if there is none; a trial that takes longer than `patience` seconds, and than
    /// [`TRIVIAL`], is not run again.
    fn least(&mut self, trial: Trial, patience: f64, until: Duration) -> Result<(f64, bool)> {
        let warm = self.bench.run(trial)?;
        let mut least = warm;
        let mut runs = 0;
        let is_worth_it = |least: Duration| least.as_secs_f64() <= patience.max(TRIVIAL);
        let is_due = warm.as_secs_f64() <= OBTAINED.min(patience);
        while runs < RUNS && is_worth_it(least) && (self.bench.now() + least <= until || (is_due && runs == 0)) {
            let elapsed = self.bench.run(trial)?;
            least = if runs == 0 { elapsed } else { least.min(elapsed) };
            runs += 1;
        }
        Ok((least.as_secs_f64().max(1e-9), runs == 0))
    }

    /// The largest trial that there is time for at a rate, and true if it is the one that counts.
    /// If there is time for none: the smallest if it `must` be, else none.
    fn choose_affordable(&self, trials: &[Trial], rate: f64, until: Duration, must: bool) -> Option<(Trial, bool)> {
        let left = until.saturating_sub(self.bench.now()).as_secs_f64();
        let place = trials.iter().position(|trial| LEAST_RUNS * trial.operations() / rate <= left);
        let place = place.or_else(|| must.then(|| trials.len() - 1))?;
        Some((trials[place], place == 0))
    }

    /// Convolutions of a type and memory order, from small to large, as long as they are worth the
    /// time.
    fn run_convolutions(
        &mut self,
        dtype: Dtype,
        layout: Layout,
        single: &[ConvolutionRuns],
        until: Duration,
    ) -> Result<ConvolutionRuns> {
        let is_single = dtype == Dtype::F32;
        let mut climb = ConvolutionRuns {
            dtype,
            layout,
            reached: Vec::new(),
            flops_per_second: f64::INFINITY,
            hopeless: false,
            scratch: Scratch::default(),
            norm_bytes_per_second: None,
        };
        let rungs = &self.sizes.convolutions;
        for (number, (channels, sides)) in rungs.iter().enumerate() {
            let is_last = number + 1 == rungs.len();
            if is_last {
                climb.scratch = self.scratch(&climb, is_single, until)?;
            }
            let convolution = |side: &i64| Trial::Convolution { dtype, layout, channels: *channels, side: *side };
            let trials: Vec<Trial> = sides.iter().map(convolution).collect();
            // The last rung may have all the time that is left.
            let now = self.bench.now();
            let until_here = now + until.saturating_sub(now).mul_f64(if is_last { 1.0 } else { 0.4 });
            let affordable = self.choose_affordable(&trials, climb.flops_per_second, until_here, is_single);
            let Some((trial @ Trial::Convolution { side, .. }, is_full)) = affordable else { break };
            let taps = (9 * side * side) as f64;
            let others = single.iter().filter_map(|single| single.reached.get(number).copied()).reduce(f64::min);
            let patience = others.map_or(f64::INFINITY, |other| HOPELESS * other * taps);
            let (seconds, once) = self.least(trial, patience, until_here)?;
            climb.flops_per_second = trial.operations() / seconds;
            climb.reached.push(seconds / taps);
            // On a busy machine the smallest trials mostly wait for their threads: a larger one may
            // say otherwise, if it doesn't take long.
            climb.hopeless = seconds > patience;
            if climb.hopeless && number + 2 >= rungs.len() {
                break;
            }
            self.hurried |= is_single && (!is_full || once);
        }
        if climb.reached.len() < rungs.len() {
            climb.scratch = self.scratch(&climb, false, Duration::ZERO)?;
        }
        if let Some((side, bytes)) = self.bench.norm(dtype) {
            let (seconds, _) = self.least(Trial::Norm { dtype, layout, side }, f64::INFINITY, until)?;
            climb.norm_bytes_per_second = Some(bytes / seconds);
        }
        Ok(climb)
    }

    /// The memory that a convolution holds: of the largest that there is time for, or at least of
    /// the middle one if it `must` be known.
    fn scratch(&mut self, climb: &ConvolutionRuns, must: bool, until: Duration) -> Result<Scratch> {
        let [large, middle, small] = self.sizes.scratch;
        let left = until.saturating_sub(self.bench.now()).as_secs_f64();
        let fits = |(channels, side): (i64, i64)| {
            let operations = 3.0 * (18 * channels * channels * side * side) as f64;
            operations / climb.flops_per_second <= 0.5 * left
        };
        let (channels, side) = match [large, middle].into_iter().find(|size| fits(*size)) {
            Some(size) => size,
            None if must => middle,
            None => small,
        };
        let mut scratch = self.bench.scratch(climb.dtype, climb.layout, channels, side)?;
        if climb.dtype == Dtype::F32 {
            scratch.small = self.sizes.small;
        }
        Ok(scratch)
    }

    /// The speed that a climb comes to. If it ended early, it is f32's, slowed down as at the
    /// largest size that both reached.
    fn speed(
        &mut self,
        climb: &ConvolutionRuns,
        single: Option<&ConvolutionRuns>,
        winograd: Option<Rate>,
        attention: f64,
        heads: Option<HeadsSpeed>,
    ) -> Speed {
        let by_single = |single: &ConvolutionRuns| -> Option<(Rate, f64)> {
            // Small convolutions take as long in any type: they say nothing about large ones.
            let last = climb.reached.len().checked_sub(1).filter(|last| *last >= 2 && !climb.hopeless)?;
            let slower = climb.reached[last] / single.reached.get(last)?;
            Some((self.through(single)?.slower(slower), single.flops_per_second / slower))
        };
        let own = (Rate { per_product: 2.0 / climb.flops_per_second, per_value: 0.0 }, climb.flops_per_second);
        let measured = self.through(climb).map(|rate| (rate, climb.flops_per_second));
        let (plain, flops_per_second) = measured.or_else(|| single.and_then(by_single)).unwrap_or(own);
        Speed {
            dtype: climb.dtype,
            layout: climb.layout,
            flops_per_second,
            plain,
            winograd,
            attention_flops_per_second: attention,
            fused_attention: self.bench.has_fused_attention(climb.dtype),
            heads,
            norm_bytes_per_second: climb.norm_bytes_per_second,
            scratch: climb.scratch,
        }
    }

    /// A rate through the last two rungs, if both were reached.
    fn through(&self, climb: &ConvolutionRuns) -> Option<Rate> {
        let [.., (fewer, _), (more, _)] = self.sizes.convolutions;
        match climb.reached[..] {
            [_, _, one, other] => Some(Rate::through([(fewer as f64, one), (more as f64, other)])),
            _ => None,
        }
    }

    /// Winograd's filtering with products of a type, from what its plain convolutions reached.
    fn winograd(&mut self, dtype: Dtype, rate: f64, until: Duration) -> Result<Rate> {
        let mut points = [(0.0, 0.0); 2];
        for (number, (channels, sides)) in self.sizes.winograd.iter().enumerate() {
            let trials: Vec<Trial> =
                sides.iter().map(|side| Trial::Winograd { dtype, channels: *channels, side: *side }).collect();
            let now = self.bench.now();
            let until = now + until.saturating_sub(now).mul_f64(if number == 0 { 0.5 } else { 1.0 });
            let Some((trial, is_full)) = self.choose_affordable(&trials, rate, until, true) else { break };
            let (seconds, once) = self.least(trial, f64::INFINITY, until)?;
            self.hurried |= dtype == Dtype::F32 && (!is_full || once);
            let Trial::Winograd { side, .. } = trial else { break };
            points[number] = (*channels as f64, seconds / (4 * side * side) as f64);
        }
        Ok(Rate::through(points))
    }

    /// The middle attention's operations per second.
    fn attention(&mut self, dtype: Dtype, rate: f64, until: Duration) -> Result<f64> {
        let trials: Vec<Trial> =
            self.sizes.tokens.iter().map(|tokens| Trial::Attention { dtype, tokens: *tokens }).collect();
        let (trial, is_full) =
            self.choose_affordable(&trials, rate, until, true).unwrap_or((trials[trials.len() - 1], false));
        let (seconds, once) = self.least(trial, f64::INFINITY, until)?;
        self.hurried |= dtype == Dtype::F32 && (!is_full || once);
        Ok(trial.operations() / seconds)
    }

    /// The attention's speed if there is time; `likely` if there is none, or if this type's
    /// attention can't be run.
    fn attention_or(&mut self, dtype: Dtype, rate: f64, likely: f64, until: Duration) -> Result<f64> {
        let least = self.sizes.tokens.last().map(|tokens| Trial::Attention { dtype, tokens: *tokens });
        let has_time = self.choose_affordable(least.as_slice(), rate, until, false).is_some();
        let measured = has_time.then(|| self.attention(dtype, rate, until));
        match measured {
            Some(Ok(measured)) => Ok(measured),
            Some(Err(error @ Error::DeviceLost(_))) => Err(error),
            Some(Err(error)) => {
                tracing::debug!(%dtype, %error, "the device can't run this type's attention");
                Ok(likely)
            }
            None => Ok(likely),
        }
    }
}

/// The result of a trial that the device may have no kernels or no memory for.
fn if_run<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(result) => Ok(Some(result)),
        Err(error @ Error::DeviceLost(_)) => Err(error),
        Err(error) => {
            tracing::debug!(%error, "the device can't run this trial");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
