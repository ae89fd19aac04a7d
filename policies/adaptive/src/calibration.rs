//! Corrections to the host's estimates from earlier measurements: the ratio of the two, separated
//! into the machine's part and the plan's.
//!
//! **Time.** The fastest of a plan's runs counts: a run takes longer for many reasons that are not
//! the plan's (other programs, heat, a kernel search), and shorter for none. The part that all
//! plans have in common is the machine's factor. It holds for every plan that was never measured.
//! Only the rest is a plan's own, and it takes three slow runs without a faster one for a plan to
//! count as slower than the machine. A plan that was not measured takes the ratio of the nearest
//! one (in pixels computed at once) of the same manner, precision and memory order. If there is
//! none, it takes that of the nearest of another manner; whole and bands come first for each other,
//! since a device that is slow at whole pictures is slow at parts too.
//!
//! **Memory** is the highest measured for the same manner, precision and memory order only: bands
//! and tiles, and a clip in chunks or in one, hold different things.
//!
//! A trial has no size of its own: the host converts it to the size of the request.

use tilewright_sdk::{Attempt, Failure, Kind, Layout, Plan, Precision, Request, Time, host};

use crate::outcome_memory::OutcomeMemory;

/// The most trials to look at; newer ones come first.
const TRIALS: u32 = 32;

/// The most plans among them to ask the price of.
const TRIED_PLANS: usize = 6;

/// The range of factors that a measurement may change an estimate by. Beyond it the measurement
/// includes something else: another program's work, a kernel search.
const TRUSTED: (f64, f64) = (0.5, 4.0);

/// The number of newest runs of a plan from which the fastest is taken.
const RUNS: usize = 16;

/// The number of runs that show a plan to be slower than the machine.
const SHOWN: usize = 3;

/// Measured over estimated, for one plan or a few similar ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    /// Measured over estimated time of the newest runs, in no order; 0 if there is none.
    times: [f64; RUNS],
    /// Runs that were noted.
    runs: usize,
    /// The highest measured over estimated memory; 0 if there is none.
    memory: f64,
}

impl Ratio {
    /// Adds a measurement that is newer than all before.
    pub fn note(&mut self, time: f64, memory: f64) {
        let trusted = |ratio: f64| (ratio.is_finite() && ratio > 0.0).then(|| ratio.clamp(TRUSTED.0, TRUSTED.1));
        if let Some(time) = trusted(time)
            && let Some(place) = self.times.get_mut(self.runs % RUNS)
        {
            *place = time;
            self.runs += 1;
        }
        if let Some(memory) = trusted(memory) {
            self.memory = self.memory.max(memory);
        }
    }

    /// Measured over estimated time of the fastest run.
    fn time(&self) -> Option<f64> {
        self.times.iter().copied().filter(|time| *time > 0.0).min_by(f64::total_cmp)
    }
}

/// A group that is measured together: the division of the picture, and if a clip's causal cache is
/// carried from chunk to chunk.
pub type Manner = (Kind, bool);

/// The manner of a plan.
pub fn manner(plan: &Plan) -> Manner {
    (plan.kind(), matches!(plan.time, Time::Carried(_)))
}

/// A plan that was carried out.
#[derive(Clone, Debug)]
pub struct PlanRatio {
    pub plan: Plan,
    /// Pixels that were computed at once.
    pub pixels: f64,
    pub ratio: Ratio,
}

impl PlanRatio {
    /// Measured over estimated time, on a machine of this factor.
    fn time(&self, machine: f64) -> Option<f64> {
        let time = self.ratio.time()?;
        // One or two runs may have been slow for any reason.
        Some(if self.ratio.runs < SHOWN { time.min(machine) } else { time })
    }
}

/// The factor common to all plans: the lower median of the ratios of plans that ran often enough,
/// else the lowest ratio of all; 1 if nothing was measured.
fn machine(measured: &[PlanRatio]) -> f64 {
    let mut times: Vec<f64> = Vec::with_capacity(measured.len());
    let mut least = f64::INFINITY;
    for ratio in measured.iter().map(|measured| &measured.ratio) {
        match ratio.time() {
            Some(time) if ratio.runs >= SHOWN => {
                // Inserted in order: there are only a few, and sorting would be a tenth of the
                // module's size.
                let place = times.iter().position(|other| time < *other).unwrap_or(times.len());
                times.insert(place, time);
            }
            Some(time) => least = least.min(time),
            None => {}
        }
    }
    let middle = times.len().saturating_sub(1) / 2;
    match times.get(middle) {
        Some(time) => *time,
        None if least.is_finite() => least,
        None => 1.0,
    }
}

/// The factors for an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    pub time: f64,
    pub memory: f64,
    /// True if the memory of such plans was ever measured.
    pub is_measured: bool,
}

/// All measurements for one request.
pub struct Corrections {
    measured: Vec<PlanRatio>,
    machine: f64,
    asked: u32,
    extents: Extents,
}

impl Corrections {
    /// Asks the host for its measurements and estimates, and adds the outcomes that the policy has
    /// learned from itself.
    pub fn new(request: &Request, memory: &OutcomeMemory) -> Self {
        let extents = extents(request);
        let trials = host::trials(TRIALS);
        let mut measured: Vec<PlanRatio> = Vec::new();
        let mut prices: Vec<(f64, f64)> = Vec::new();
        // The newest first, so that they are the ones that are priced; then the oldest first, so
        // that the newest count most.
        let mut plans: Vec<Plan> = Vec::new();
        for trial in &trials {
            if plans.len() < TRIED_PLANS && !plans.iter().any(|plan| plan.is_like(&trial.plan)) {
                plans.push(Plan { reason: String::new(), ..trial.plan.clone() });
            }
        }
        let asked = plans.len() as u32;
        let costs = if plans.is_empty() { Vec::new() } else { host::estimate(&plans) };
        for (plan, cost) in plans.into_iter().zip(costs) {
            let Ok(cost) = cost else { continue };
            prices.push((cost.elapsed_ns as f64, cost.held() as f64));
            measured.push(PlanRatio { pixels: pixels(&plan, extents), plan, ratio: Ratio::default() });
        }
        for trial in trials.iter().rev() {
            let known = measured.iter().position(|measured| measured.plan.is_like(&trial.plan));
            if let Some(index) = known
                && let (Some(measured), Some((time, memory))) = (measured.get_mut(index), prices.get(index))
            {
                let outcome = &trial.outcome;
                measured.ratio.note(outcome.elapsed_ns as f64 / time, outcome.held() as f64 / memory);
            }
        }
        measured.extend(memory.about(request).cloned());
        let machine = machine(&measured);
        Self { measured, machine, asked, extents }
    }

    /// Estimates that were asked for.
    pub fn count_estimates(&self) -> u32 {
        self.asked
    }

    /// Takes the peak of an attempt that went over the limit as a measurement of plans of its kind.
    pub fn note(&mut self, attempt: &Attempt, expected_bytes: f64) {
        if let Failure::OverLimit(bytes) = attempt.failure {
            let mut ratio = Ratio::default();
            ratio.note(f64::NAN, bytes as f64 / expected_bytes);
            let plan = Plan { reason: String::new(), ..attempt.plan.clone() };
            self.measured.push(PlanRatio { pixels: pixels(&plan, self.extents), plan, ratio });
        }
    }

    /// The factors for the estimate of a plan; for time, the machine's factor if no such plan was
    /// measured.
    pub fn of(&self, plan: &Plan) -> Correction {
        self.of_manner(manner(plan), plan.precision, plan.layout, pixels(plan, self.extents))
    }

    /// The same for plans of a manner that compute about this many pixels at once.
    pub fn of_manner(
        &self,
        (kind, is_carried): Manner,
        precision: Precision,
        layout: Layout,
        pixels: f64,
    ) -> Correction {
        let far = |measured: &PlanRatio| (measured.pixels / pixels).max(pixels / measured.pixels);
        // Whole and bands do the same work; tiles do other work of the same sort.
        let other = |measured: &PlanRatio| {
            let (known, was_carried) = manner(&measured.plan);
            let in_space = match (known, kind) {
                (known, kind) if known == kind => 0,
                (Kind::Blended, _) | (_, Kind::Blended) => 4,
                _ => 2,
            };
            in_space + u8::from(was_carried != is_carried)
        };
        let mut nearest: Option<(u8, f64, f64)> = None;
        let mut memory: f64 = 0.0;
        for measured in self
            .measured
            .iter()
            .filter(|measured| measured.plan.precision == precision && measured.plan.layout == layout)
        {
            let other = other(measured);
            if other == 0 {
                memory = memory.max(measured.ratio.memory);
            }
            if let Some(time) = measured.time(self.machine)
                && nearest.is_none_or(|(but_other, but_far, _)| (other, far(measured)) < (but_other, but_far))
            {
                nearest = Some((other, far(measured), time));
            }
        }
        let is_measured = memory > 0.0;
        let time = nearest.map_or(self.machine, |(.., time)| time);
        Correction { time, memory: if is_measured { memory } else { 1.0 }, is_measured }
    }

    /// True if this very plan has run to its end, so that every kernel search that it needs is
    /// done.
    pub fn has_run(&self, plan: &Plan) -> bool {
        self.measured.iter().any(|measured| measured.ratio.runs > 0 && measured.plan.is_like(plan))
    }
}

/// Frames, height and width of a request.
pub type Extents = (u32, u32, u32);

/// The extents of a request.
pub fn extents(request: &Request) -> Extents {
    (request.frames, request.height, request.width)
}

/// Pixels of all frames that a plan computes at once.
pub fn pixels(plan: &Plan, (frames, height, width): Extents) -> f64 {
    let frames = match plan.time {
        Time::Carried(chunk) => chunk.min(frames),
        Time::Whole | Time::Blended(_) => frames,
    };
    let (height, width) = plan.tile().map_or((height, width), |tile| (tile.height.min(height), tile.width.min(width)));
    (f64::from(frames) * f64::from(height) * f64::from(width) * f64::from(plan.batch)).max(1.0)
}
