//! The search: the plans that are tried, their scores, and the best one.

mod clips;

use tilewright_sdk::{
    Attempt, Backend, Cost, Failure, Kind, Objective, Plan, Precision, Request, Space, Tile, Time, host,
};

use crate::{
    UserBounds,
    calibration::{Correction, Corrections, extents, pixels},
    candidates::Candidate,
    chunks, divide,
    outcome_memory::OutcomeMemory,
    reason, width,
};

/// Estimates that a decision may ask for.
const MOST_ESTIMATES: u32 = 64;

/// The factor by which a peak may exceed its estimate if none of the kind was measured.
const MARGIN: f64 = 1.03;

/// Batches to try on the best plan with one tile at a time.
const BATCHES: [u32; 4] = [2, 4, 8, 16];

/// The factor on a price if the picture comes out a little different from the whole one.
const BLENDED: f64 = 1.05;

/// The time of a kernel search for one more shape on ROCm, in nanoseconds. It is near the low end
/// of the reports (from under a second to minutes), since a search is paid once and a slow plan
/// every time.
const KERNEL_SEARCH: f64 = 1e9;

/// The most time, relative to the fastest plan, that a plan may take under `leanest`.
const LEANEST_TIME: f64 = 4.0;

/// Within these factors two plans count as equal and the better picture wins: of memory under
/// `leanest`, of the price otherwise.
const ALIKE_MEMORY: f64 = 1.02;
const ALIKE_PRICE: f64 = 1.001;

/// The same for clips, where the chunk that delivers frames soonest wins.
const ALIKE_CLIP: f64 = 1.02;

/// The share of a failed plan's expected memory that the next plan may be expected to need.
const SHRINK: f64 = 0.7;

/// After this many failures for memory, only the leanest plan of all is left.
const PATIENCE: usize = 3;

/// A plan that may be answered.
#[derive(Clone, Debug)]
pub struct Priced {
    pub plan: Plan,
    /// Corrected by measurements, in nanoseconds and bytes.
    pub time: f64,
    pub peak: f64,
}

/// The result of asking for a price.
enum Answer {
    Fits(Priced),
    /// Larger plans of its kind need no price.
    TooMuch,
    /// Tried before, or without a price.
    Passed,
}

/// The conditions that failures put on the next plan.
#[derive(Debug, Default)]
struct Bounds {
    /// Only precisions wider than this one.
    wider_than: Option<Precision>,
    /// The most that may be expected.
    ceiling: Option<f64>,
    /// The expected need of the leanest plan that failed for memory.
    failed: Option<f64>,
    /// The space and precision of the last plan that failed for memory.
    last: Option<(Space, Precision)>,
    /// True at the last attempt.
    leanest: bool,
}

/// The search for one request.
pub struct Search<'a> {
    pub(crate) wishes: UserBounds,
    pub(crate) request: &'a Request,
    pub(crate) corrections: Corrections,
    pub(crate) wholes: Vec<Candidate>,
    /// The plan of a clip under way, whose causal cache goes on.
    pub(crate) begun: Option<&'a Plan>,
    /// The division of frames in which candidates are compared.
    pub(crate) anchor: Time,
    tried: &'a [Attempt],
    bounds: Bounds,
    /// The leanest plan that is smaller than the failed one, though not by the required factor.
    spare: Option<Priced>,
    /// The leanest exact plan that fits, though not with its margin.
    tight: Option<Priced>,
    estimates: u32,
}

impl<'a> Search<'a> {
    /// Looks up earlier measurements, and the bounds that the failed attempts set.
    pub fn new(wishes: UserBounds, memory: &OutcomeMemory, request: &'a Request, tried: &'a [Attempt]) -> Self {
        let corrections = Corrections::new(request, memory);
        let estimates = corrections.count_estimates();
        let bounds = Bounds::default();
        let begun = request.begun();
        let mut search = Self {
            wishes,
            request,
            corrections,
            wholes: Vec::new(),
            begun,
            anchor: Time::Whole,
            tried,
            bounds,
            spare: None,
            tight: None,
            estimates,
        };
        let mut peaks = Vec::new();
        for attempt in tried {
            match attempt.failure {
                Failure::NonFinite(_) => {
                    let failed = attempt.plan.precision;
                    let widest = search.bounds.wider_than.is_none_or(|known| width(failed) > width(known));
                    search.bounds.wider_than = if widest { Some(failed) } else { search.bounds.wider_than };
                }
                Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                    let cost = search.estimate(&attempt.plan);
                    let expected = cost.map_or(request.limit_bytes, |cost| cost.held()) as f64;
                    peaks.push((attempt, expected, expected * search.corrections.of(&attempt.plan).memory));
                }
            }
        }
        search.bounds.failed = peaks.iter().map(|(.., corrected)| *corrected).min_by(f64::total_cmp);
        search.bounds.ceiling = search.bounds.failed.map(|failed| SHRINK * failed);
        search.bounds.leanest = peaks.len() >= PATIENCE;
        if let Some((attempt, ..)) = peaks.last() {
            search.bounds.last = Some((attempt.plan.space, attempt.plan.precision));
            // The chunk that the user asked for did not fit.
            search.wishes.chunk = 0;
        }
        for (attempt, expected, _) in peaks {
            search.corrections.note(attempt, expected);
        }
        if request.offers_carried() && !begun.is_some_and(|begun| begun.time == Time::Whole) {
            search.anchor = chunks::natural(request);
        }
        search
    }

    /// The best plan that fits and was not tried before.
    pub fn best(&mut self) -> Option<Priced> {
        if self.request.offers_carried() {
            return self.best_clip();
        }
        let mut fitting = Vec::new();
        let mut rounds: Vec<Vec<Candidate>> = Vec::with_capacity(2);
        let bands = divide::bands(self.request);
        // The leanest plan of all is among the smallest tiles, whatever lies between.
        let tiles = match self.bounds.leanest {
            true => divide::small_tiles(self.request, &self.wishes),
            false => divide::tiles(self.request, &self.wishes),
        };
        for is_first in [true, false] {
            let round = self.find_candidates(is_first);
            for candidate in &round {
                self.enumerate(candidate, &bands, &mut fitting);
                if self.may_blend() {
                    self.ascend(candidate, &tiles, &mut fitting);
                }
            }
            rounds.push(round);
            if !self.bounds.leanest && !fitting.is_empty() {
                break;
            }
        }
        if !self.may_blend() {
            fitting.extend(self.tight.take().filter(|_| fitting.is_empty()));
            for round in &rounds {
                if fitting.is_empty() {
                    round.iter().for_each(|candidate| self.ascend(candidate, &tiles, &mut fitting));
                }
            }
        }
        if fitting.is_empty() && !self.bounds.leanest {
            let small = divide::small_tiles(self.request, &self.wishes);
            for candidate in rounds.iter().flatten() {
                self.ascend(candidate, &small, &mut fitting);
            }
        }
        if self.bounds.failed.is_some() && !self.bounds.leanest && fitting.iter().any(is_exact) {
            fitting.retain(is_exact);
        }
        match self.pick(&fitting).cloned() {
            Some(best) => Some(self.enlarge_batch(best, fitting.len())),
            None => self.spare.take().map(|spare| self.add_reason(spare, 1)),
        }
    }

    /// True if tiles compete with exact plans: the user allows it, or memory ran out so often that
    /// nothing else can be relied on.
    pub(crate) fn may_blend(&self) -> bool {
        self.request.allows_blended || self.bounds.leanest
    }

    /// The last plan's space in the best of the wider types, if one of those fits.
    pub fn keeping(&mut self, last: &Plan) -> Option<Priced> {
        for is_first in [true, false] {
            let plan = |(precision, layout)| Plan { precision, layout, reason: String::new(), ..last.clone() };
            let plans = self.kinds(is_first).into_iter().map(plan).collect();
            let mut fitting = Vec::new();
            self.price_all(plans, &mut fitting);
            if let Some(best) = self.pick(&fitting).cloned() {
                return Some(self.add_reason(best, fitting.len()));
            }
        }
        None
    }

    /// True if a type may be used: after an overflow it has to be wider, and under way no narrower.
    pub(crate) fn allows(&self, precision: Precision) -> bool {
        self.bounds.wider_than.is_none_or(|failed| width(precision) > width(failed))
            && self.begun.is_none_or(|begun| width(precision) >= width(begun.precision))
    }

    /// The host's prices of plans, as many as there are estimates left for; the other plans are
    /// removed.
    pub(crate) fn estimates(&mut self, plans: &mut Vec<Plan>) -> Vec<Result<Cost, String>> {
        plans.truncate((MOST_ESTIMATES - self.estimates) as usize);
        self.estimates += plans.len() as u32;
        if plans.is_empty() { Vec::new() } else { host::estimate(plans) }
    }

    /// The host's price of a plan, while there are estimates left.
    pub(crate) fn estimate(&mut self, plan: &Plan) -> Option<Cost> {
        if self.estimates == MOST_ESTIMATES {
            return None;
        }
        self.estimates += 1;
        host::estimate_one(plan).ok()
    }

    /// Whole and every band. Larger bands need no price if the smallest is too much.
    fn enumerate(&mut self, candidate: &Candidate, bands: &[u32], fitting: &mut Vec<Priced>) {
        if let Answer::Fits(whole) = self.judge(candidate.plan(), candidate.cost) {
            fitting.push(whole);
        }
        let mut bands = bands.iter().map(|height| candidate.plan().exact(self.request, *height));
        let Some(smallest) = bands.next() else { return };
        match self.price(smallest) {
            Answer::Fits(priced) => fitting.push(priced),
            Answer::TooMuch => return,
            Answer::Passed => {}
        }
        self.price_all(bands.collect(), fitting);
    }

    /// Tiles from the smallest up, as far as they fit.
    fn ascend(&mut self, candidate: &Candidate, tiles: &[Tile], fitting: &mut Vec<Priced>) {
        for tile in tiles {
            match self.price(candidate.plan().blended(self.request, *tile)) {
                Answer::Fits(priced) => fitting.push(priced),
                Answer::TooMuch => break,
                Answer::Passed => {}
            }
        }
    }

    /// Adds those of the plans that fit, priced with one question.
    fn price_all(&mut self, mut plans: Vec<Plan>, fitting: &mut Vec<Priced>) {
        let costs = self.estimates(&mut plans);
        for (plan, cost) in plans.into_iter().zip(costs) {
            if let Ok(cost) = cost
                && let Answer::Fits(priced) = self.judge(plan, cost)
            {
                fitting.push(priced);
            }
        }
    }

    fn price(&mut self, plan: Plan) -> Answer {
        match self.estimate(&plan) {
            Some(cost) => self.judge(plan, cost),
            None => Answer::Passed,
        }
    }

    /// The judgement on a plan with its corrected price.
    fn judge(&mut self, plan: Plan, cost: Cost) -> Answer {
        let correction = self.corrections.of(&plan);
        let searches = match self.request.device.backend {
            Backend::Rocm if !self.corrections.has_run(&plan) => f64::from(cost.shapes.saturating_sub(1)),
            _ => 0.0,
        };
        let time = cost.elapsed_ns as f64 * correction.time + searches * KERNEL_SEARCH;
        let peak = cost.held() as f64 * correction.memory;
        let tried = self.tried.iter().any(|attempt| plan.repeats(attempt));
        let priced = Priced { plan, time, peak };
        let limit = self.request.limit_bytes as f64;
        if with_margin(peak, &correction) > limit {
            let is_below = peak <= limit && self.bounds.ceiling.is_none_or(|ceiling| peak <= ceiling);
            let is_leaner = self.tight.as_ref().is_none_or(|tight| peak < tight.peak);
            if is_exact(&priced) && is_below && is_leaner && !tried {
                self.tight = Some(priced);
            }
            return Answer::TooMuch;
        }
        if tried {
            return Answer::Passed;
        }
        if self.bounds.ceiling.is_some_and(|ceiling| peak > ceiling) {
            let smaller = self.bounds.failed.is_none_or(|failed| peak < failed);
            if smaller && self.spare.as_ref().is_none_or(|spare| peak < spare.peak) {
                self.spare = Some(priced);
            }
            return Answer::TooMuch;
        }
        Answer::Fits(priced)
    }

    fn pick<'p>(&self, fitting: &'p [Priced]) -> Option<&'p Priced> {
        if self.bounds.leanest {
            return fitting.iter().min_by(|a, b| a.peak.total_cmp(&b.peak));
        }
        let is_leanest = self.request.objective == Objective::Leanest;
        let quickest = fitting.iter().map(|priced| priced.time).min_by(f64::total_cmp)?;
        let in_time = |priced: &&Priced| !is_leanest || priced.time <= LEANEST_TIME * quickest;
        let least = fitting.iter().filter(in_time).map(|priced| self.score(priced)).min_by(f64::total_cmp)?;
        let is_clip = self.request.offers_carried();
        let factor = if is_clip { ALIKE_CLIP } else { ALIKE_PRICE };
        let alike = least * if is_leanest { ALIKE_MEMORY } else { factor };
        let alike = fitting.iter().filter(in_time).filter(|priced| self.score(priced) <= alike);
        let then = |priced: &Priced| if is_leanest { priced.time } else { self.score(priced) };
        // The first of equals wins.
        let preference = |priced: &Priced| match is_clip {
            true => chunks::preference(self.request, priced.plan.time),
            false => 0,
        };
        let before = |priced: &Priced| (priced.plan.kind(), preference(priced));
        alike.min_by(|a, b| before(a).cmp(&before(b)).then(then(a).total_cmp(&then(b))))
    }

    /// The objective's score: the lowest is best.
    fn score(&self, priced: &Priced) -> f64 {
        let blended = if priced.plan.kind() == Kind::Blended { BLENDED } else { 1.0 };
        let dearer = blended * self.rounding(priced.plan.precision);
        let share = priced.peak / (self.request.limit_bytes as f64).max(1.0);
        match self.request.objective {
            Objective::Fastest => priced.time * dearer,
            Objective::Balanced => priced.time * dearer * (1.0 + share / 2.0),
            // A blend is not the whole's output: that counts if memory is equal, and only then.
            Objective::Leanest => share * self.rounding(priced.plan.precision),
        }
    }

    /// The plan with as large a batch as improves it, with its reason.
    fn enlarge_batch(&mut self, mut best: Priced, fitting: usize) -> Priced {
        let work = self.work(&best.plan);
        let single = Plan { reason: String::new(), ..best.plan.clone() };
        let batches = BATCHES.into_iter().filter(|batch| *batch <= work);
        let mut larger = Vec::new();
        self.price_all(batches.map(|batch| Plan { batch, ..single.clone() }).collect(), &mut larger);
        for priced in larger {
            if self.score(&priced) < self.score(&best) {
                best = priced;
            }
        }
        self.add_reason(best, fitting)
    }

    fn add_reason(&self, mut best: Priced, fitting: usize) -> Priced {
        best.plan.reason = reason::of(self, &best, fitting, self.bounds.leanest);
        best
    }

    /// The number of samples or tiles that could run together.
    fn work(&self, plan: &Plan) -> u32 {
        let tile = match plan.kind() {
            Kind::Blended => plan.tile(),
            Kind::Whole | Kind::Exact => None,
        };
        let Some(tile) = tile else { return self.request.batch };
        let along = |extent: u32, side: u32| match side >= extent {
            true => 1,
            false => (extent - side).div_ceil((side - tile.overlap).max(1)) + 1,
        };
        let tiles = along(self.request.height, tile.height).saturating_mul(along(self.request.width, tile.width));
        tiles.saturating_mul(self.request.batch)
    }

    /// Pixels that the plan computes at once.
    pub(crate) fn pixels(&self, plan: &Plan) -> f64 {
        pixels(plan, extents(self.request))
    }
}

/// The peak that is compared with the limit.
pub fn with_margin(peak: f64, correction: &Correction) -> f64 {
    if correction.is_measured { peak } else { peak * MARGIN }
}

/// True if the output is that of the whole picture.
fn is_exact(priced: &Priced) -> bool {
    priced.plan.kind() != Kind::Blended
}
