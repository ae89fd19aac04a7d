//! The enumeration: which plans are looked at, what each counts, and which one is best.

use tilewright_sdk::{Attempt, Backend, Dtype, Layout, Objective, Plan, Precision, Request, Space, Tile, host};

use crate::{Adaptive, Corrections, width};

/// Sides of tiles to consider, in pixels.
const SIDES: [u32; 7] = [256, 384, 512, 768, 1024, 1536, 2048];

/// Sides for when nothing larger fits.
const SMALL_SIDES: [u32; 4] = [192, 128, 96, 64];

/// Batches to try on the best plan with one tile at a time.
const BATCHES: [u32; 4] = [2, 4, 8, 16];

/// What counts on top of a price where the picture comes out a little different from the whole one in f32.
const BLENDED: f64 = 1.05;
const MIXED: f64 = 1.02;
const UNIFORM_HALF: f64 = 1.05;

/// Where f16 overflows as a type of its own: the KL autoencoders' activations go beyond 65504.
const KL_FAMILIES: [&str; 4] = ["sd", "sdxl", "sd3", "flux"];

/// Under `leanest`, how much longer than the quickest plan a plan may take.
const LEANEST_TIME: f64 = 4.0;

/// What a plan has to stay within.
pub struct Limits {
    pub peak_bytes: f64,
    /// Only precisions wider than this one.
    pub wider_than: Option<Precision>,
}

/// A plan that fits, with its corrected price.
#[derive(Clone)]
struct Priced {
    plan: Plan,
    nanoseconds: f64,
    peak_bytes: f64,
}

/// The search for one request.
pub struct Search<'a> {
    policy: Adaptive,
    request: &'a Request,
    corrections: Corrections,
    priced: u32,
}

impl<'a> Search<'a> {
    /// Looks up what was measured before.
    pub fn new(policy: &Adaptive, request: &'a Request) -> Self {
        Self { policy: *policy, request, corrections: Corrections::new(request), priced: 0 }
    }

    /// Gives up on the precision that the user set.
    pub fn widen(&mut self) {
        self.policy.precision = None;
    }

    /// What is measured over what is expected of a plan's memory.
    pub fn memory_ratio(&self, plan: &Plan) -> f64 {
        self.corrections.of(plan).1
    }

    /// The best plan that fits and was not tried before.
    pub fn best(&mut self, limits: &Limits, tried: &[Attempt]) -> Option<Plan> {
        for sides in [&SIDES[..], &SMALL_SIDES[..]] {
            let mut fitting = Vec::new();
            for precision in self.precisions(limits) {
                for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                    self.enumerate(precision, layout, sides, limits, tried, &mut fitting);
                }
            }
            let count = fitting.len();
            // Accuracy first: a CPU gains little from narrow types, so there they only count where f32 does not fit.
            let is_wide = |priced: &Priced| priced.plan.precision == Precision::Uniform(Dtype::F32);
            if self.request.device.backend == Backend::Cpu && fitting.iter().any(is_wide) {
                fitting.retain(is_wide);
            }
            if let Some(best) = self.pick(&fitting, limits) {
                return Some(self.batched(best, count, limits, tried));
            }
        }
        None
    }

    fn precisions(&self, limits: &Limits) -> Vec<Precision> {
        let mut precisions = Vec::with_capacity(5);
        match self.policy.precision {
            Some(precision) => precisions.push(precision),
            None => {
                precisions.push(Precision::Uniform(Dtype::F32));
                // A type that is no faster is not worth its rounding, but bf16 may be what fits on a CPU.
                let is_cpu = self.request.device.backend == Backend::Cpu;
                let may_fit = |dtype| is_cpu && dtype == Dtype::Bf16 && self.request.offers(dtype);
                let wanted = |dtype: &Dtype| self.request.is_fast(*dtype) || may_fit(*dtype);
                for dtype in [Dtype::Bf16, Dtype::F16].into_iter().filter(wanted) {
                    precisions.push(Precision::Mixed(dtype));
                    let overflows = dtype == Dtype::F16 && KL_FAMILIES.contains(&self.request.model.family.as_str());
                    if !overflows {
                        precisions.push(Precision::Uniform(dtype));
                    }
                }
            }
        }
        precisions.retain(|precision| limits.wider_than.is_none_or(|failed| width(*precision) > width(failed)));
        precisions
    }

    /// Prices whole and every tile size, one at a time, and keeps what fits.
    fn enumerate(
        &mut self,
        precision: Precision,
        layout: Layout,
        sides: &[u32],
        limits: &Limits,
        tried: &[Attempt],
        fitting: &mut Vec<Priced>,
    ) {
        let plan = Plan { layout, ..Plan::whole(precision) };
        let small = sides[0] < SIDES[0];
        if !small {
            fitting.extend(self.price(plan.clone(), limits, tried));
        }
        for side in sides {
            let wanted = small || (self.policy.min_tile..=self.policy.max_tile).contains(side);
            if wanted && *side < self.request.longest() {
                let overlap = self.policy.overlap.unwrap_or(side / 8).min(side / 4);
                let tile =
                    Tile { height: (*side).min(self.request.height), width: (*side).min(self.request.width), overlap };
                fitting.extend(self.price(Plan { space: Space::Blended(tile), ..plan.clone() }, limits, tried));
            }
        }
    }

    fn price(&mut self, plan: Plan, limits: &Limits, tried: &[Attempt]) -> Option<Priced> {
        self.priced += 1;
        let cost = host::estimate(&plan).ok()?;
        let (time, memory) = self.corrections.of(&plan);
        let peak_bytes = cost.peak_bytes as f64 * memory;
        let new = !tried.iter().any(|attempt| attempt.plan.is_like(&plan));
        let fits = peak_bytes <= limits.peak_bytes;
        (fits && new).then_some(Priced { nanoseconds: cost.elapsed_ns as f64 * time, peak_bytes, plan })
    }

    fn pick<'p>(&self, fitting: &'p [Priced], limits: &Limits) -> Option<&'p Priced> {
        let quickest = fitting.iter().map(|priced| priced.nanoseconds).min_by(f64::total_cmp)?;
        let score = |priced: &Priced| match self.request.objective {
            Objective::Leanest if priced.nanoseconds > LEANEST_TIME * quickest => (f64::INFINITY, priced.nanoseconds),
            _ => self.score(priced, limits),
        };
        // The first of equals wins, and whole plans come first.
        fitting.iter().min_by(|a, b| {
            let (a, b) = (score(a), score(b));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
        })
    }

    /// What counts, least first, and what decides between equals.
    fn score(&self, priced: &Priced, limits: &Limits) -> (f64, f64) {
        let blended = if priced.plan.tile().is_some() { BLENDED } else { 1.0 };
        let rounded = match priced.plan.precision {
            Precision::Uniform(Dtype::F32) => 1.0,
            Precision::Mixed(_) => MIXED,
            Precision::Uniform(_) => UNIFORM_HALF,
        };
        let time = priced.nanoseconds * blended * rounded;
        let share = priced.peak_bytes / limits.peak_bytes.max(1.0);
        match self.request.objective {
            Objective::Fastest => (time, share),
            Objective::Balanced => (time * (1.0 + share / 2.0), share),
            Objective::Leanest => (share * blended * rounded, time),
        }
    }

    /// The plan with as large a batch as makes it better, with its reason.
    fn batched(&mut self, best: &Priced, fitting: usize, limits: &Limits, tried: &[Attempt]) -> Plan {
        let mut best = best.clone();
        let work = match best.plan.space {
            Space::Whole => self.request.batch,
            _ => self.tiles(&best.plan),
        };
        for batch in BATCHES.into_iter().filter(|batch| *batch <= work) {
            let plan = Plan { batch, ..best.plan.clone() };
            if let Some(priced) = self.price(plan, limits, tried)
                && self.score(&priced, limits).0 < self.score(&best, limits).0
            {
                best = priced;
            }
        }
        let objective = match self.request.objective {
            Objective::Fastest => "fastest of ",
            Objective::Balanced => "best balance of ",
            Objective::Leanest => "leanest of ",
        };
        let reason =
            [objective, &fitting.to_string(), " plans that fit, ", &self.priced.to_string(), " priced"].concat();
        best.plan.because(reason)
    }

    fn tiles(&self, plan: &Plan) -> u32 {
        let Some(tile) = plan.tile() else { return self.request.batch };
        let along = |extent: u32, side: u32| match side >= extent {
            true => 1,
            false => (extent - side).div_ceil((side - tile.overlap).max(1)) + 1,
        };
        along(self.request.height, tile.height) * along(self.request.width, tile.width) * self.request.batch
    }
}
