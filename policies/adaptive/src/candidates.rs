//! Candidates of the search: precisions and memory orders that are worth trying in every size. A
//! candidate that is worse than another in time and in memory for the whole picture is worse in
//! bands and tiles too, so one price per candidate saves a dozen.

use tilewright_sdk::{Cost, Dtype, Kind, Layout, Objective, Plan, Precision, Time};

use crate::search::{Search, with_margin};

/// Families in which f16 overflows as a type of its own: the KL autoencoders' activations go beyond
/// 65504.
const KL_FAMILIES: [&str; 4] = ["sd", "sdxl", "sd3", "flux"];

/// The families among them that overflow in f16 even if only convolutions run in it.
const OVERFLOWING: [&str; 1] = ["sdxl"];

/// The factors on a price for the rounding of narrow types.
const MIXED: f64 = 1.02;
const UNIFORM_HALF: f64 = 1.05;

/// The factor on the price of a type that may overflow, if another narrow one can't: an overflow
/// costs a second run.
const MAY_OVERFLOW: f64 = 1.5;

/// The most candidates of one round.
const MOST: usize = 3;

/// A precision in a memory order, with the price of the whole picture.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub precision: Precision,
    pub layout: Layout,
    /// The division of a clip's frames in the price.
    pub time: Time,
    /// The host's price.
    pub cost: Cost,
    /// Per kind of space: corrected time with the factor for rounding, peak with the same, and peak
    /// as compared with the limit.
    corrected: [[f64; 3]; 3],
}

impl Candidate {
    /// The whole picture with this candidate.
    pub fn plan(&self) -> Plan {
        Plan { layout: self.layout, time: self.time, ..Plan::whole(self.precision) }
    }

    /// The candidate with all frames of a clip together.
    pub fn at_once(&self) -> Self {
        Self { time: Time::Whole, ..*self }
    }

    /// True if the other one is no better in any respect.
    fn beats(&self, other: &Candidate) -> bool {
        self.corrected.as_flattened().iter().zip(other.corrected.as_flattened()).all(|(own, others)| own <= others)
    }

    fn time(&self) -> f64 {
        self.corrected[0][0]
    }

    fn peak(&self) -> f64 {
        self.corrected[0][2]
    }
}

impl Search<'_> {
    /// The factor on a price for rounding.
    pub(crate) fn rounding(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 1.0,
            Precision::Mixed(Dtype::F16) if self.is_kl() && self.request.is_fast(Dtype::Bf16) => MAY_OVERFLOW,
            Precision::Mixed(_) => MIXED,
            Precision::Uniform(_) => UNIFORM_HALF,
        }
    }

    fn is_kl(&self) -> bool {
        KL_FAMILIES.contains(&self.request.model.family.as_str())
    }

    /// The precisions of the first round, or of the second, which is only tried if nothing of the
    /// first fits.
    ///
    /// The first has f32 and the types that are faster; the second has the other narrow types. On a
    /// CPU all of them wait, accuracy first, unless the objective is `fastest`.
    pub(crate) fn precisions(&self, is_first: bool) -> Vec<Precision> {
        let mut precisions = Vec::with_capacity(6);
        let is_accurate = !self.request.has_gpu() && self.request.objective != Objective::Fastest;
        match self.wishes.precision {
            Some(precision) if is_first => precisions.push(precision),
            Some(_) => {}
            None => {
                if is_first {
                    precisions.push(Precision::Uniform(Dtype::F32));
                }
                // It saves no memory, so only its speed counts.
                if is_first && self.request.is_fast(Dtype::Tf32) {
                    precisions.push(Precision::Mixed(Dtype::Tf32));
                }
                self.narrow(&mut precisions, |dtype| {
                    self.request.offers(dtype) && is_first == (!is_accurate && self.request.is_fast(dtype))
                });
            }
        }
        precisions.retain(|precision| self.allows(*precision));
        precisions
    }

    /// The precisions of a round, each in the memory orders that are left.
    pub(crate) fn kinds(&self, is_first: bool) -> Vec<(Precision, Layout)> {
        let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
        let layouts = layouts.into_iter().filter(|layout| self.begun.is_none_or(|begun| begun.layout == *layout));
        let precisions = self.precisions(is_first).into_iter();
        precisions.flat_map(|precision| layouts.clone().map(move |layout| (precision, layout))).collect()
    }

    fn narrow(&self, precisions: &mut Vec<Precision>, is_wanted: impl Fn(Dtype) -> bool) {
        let always_overflows = OVERFLOWING.contains(&self.request.model.family.as_str());
        for dtype in [Dtype::Bf16, Dtype::F16].into_iter().filter(|dtype| is_wanted(*dtype)) {
            let overflows = dtype == Dtype::F16 && self.is_kl();
            let has_bf16 = precisions.contains(&Precision::Mixed(Dtype::Bf16)) || self.request.is_fast(Dtype::Bf16);
            // The same price as bf16's if both are slow, and a risk besides.
            if overflows && has_bf16 && (always_overflows || !self.request.is_fast(Dtype::F16)) {
                continue;
            }
            precisions.push(Precision::Mixed(dtype));
            if !overflows {
                precisions.push(Precision::Uniform(dtype));
            }
        }
    }

    /// Prices the whole picture in every precision and memory order, and keeps the best candidates:
    /// at most the two fastest and the leanest.
    pub(crate) fn find_candidates(&mut self, is_first: bool) -> Vec<Candidate> {
        let plan = |(precision, layout)| Plan { layout, time: self.anchor, ..Plan::whole(precision) };
        let mut plans: Vec<Plan> = self.kinds(is_first).into_iter().map(plan).collect();
        let costs = self.estimates(&mut plans);
        let priced = plans.iter().zip(costs);
        let candidates: Vec<Candidate> =
            priced.filter_map(|(plan, cost)| Some(self.make_candidate(plan, cost.ok()?))).collect();
        self.wholes.extend(&candidates);
        let mut kept: Vec<Candidate> = Vec::with_capacity(candidates.len());
        for (index, candidate) in candidates.iter().enumerate() {
            let beaten = |(other, rival): (usize, &Candidate)| {
                other != index && rival.beats(candidate) && (other < index || !candidate.beats(rival))
            };
            if !candidates.iter().enumerate().any(beaten) {
                kept.push(*candidate);
            }
        }
        // Sorting would be a tenth of the module's size.
        while kept.len() > MOST {
            let by = |what: fn(&Candidate) -> f64| {
                kept.iter().enumerate().map(move |(index, candidate)| (index, what(candidate)))
            };
            let leanest = by(Candidate::peak).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index);
            let slowest =
                by(Candidate::time).filter(|(index, _)| Some(*index) != leanest).max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((slowest, _)) = slowest else { break };
            kept.remove(slowest);
        }
        kept
    }

    fn make_candidate(&self, plan: &Plan, cost: Cost) -> Candidate {
        let Plan { precision, layout, time, .. } = *plan;
        let pixels = self.pixels(plan);
        // A clip's tiles run over all its frames.
        let is_carried = matches!(time, Time::Carried(_));
        let manners = [(Kind::Whole, is_carried), (Kind::Exact, is_carried), (Kind::Blended, false)];
        let rounding = self.rounding(precision);
        let corrected = manners.map(|manner| {
            let correction = self.corrections.of_manner(manner, precision, layout, pixels);
            let peak = cost.held() as f64 * correction.memory;
            let time = cost.elapsed_ns as f64 * correction.time;
            [time * rounding, peak * rounding, with_margin(peak, &correction)]
        });
        Candidate { precision, layout, time, cost, corrected }
    }
}
