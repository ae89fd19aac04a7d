//! The search for a sample's plan.
//!
//! The first round prices the whole sample at once: every type that the device is fast in (on a CPU
//! f32 alone, unless the objective is `fastest`), weights as stored and expanded, passes together
//! and in turn. If one of these plans fits, the best of them is taken. The second round divides
//! them: weights streamed or on the host, samples one by one, feed-forward layers in parts. Memory
//! is short then, so `balanced` takes the fastest that fits. `leanest` goes through both rounds. If
//! nothing fits, a third round tries the other narrow types, and after that the leanest of all is
//! taken: estimates may be too high. At last, a plan with feed-forward layers in parts is tried
//! with fewer of them.
//!
//! The host's trials correct the prices of plans that ran: the fastest run's ratio of measured to
//! priced time, over the median of all such plans' ratios, which is the machine's. It counts after
//! three runs, so that a machine that was busy for one of them changes no decision. The highest
//! ratio of memory counts at once.
//!
//! Prices leave out what a division costs besides the work, so the time counts 2 % more for samples
//! one by one, 3 % for parts of feed-forward layers, 5 % for streamed blocks and 15 % for blocks
//! that come when their turns do.

use tilewright_sdk::{
    Dtype, Objective, Precision, Release, WeightForm,
    denoise::{self, Attempt, Attention, Choice, Cost, Guidance, Outcome, Plan, Products, Request, Residency, Trial},
};

use crate::contest::{self, SMALLER, TRIALS};

/// The factors on the price of narrow types, since they round.
const MIXED: f64 = 1.02;
const UNIFORM: f64 = 1.05;
const INTEGERS: f64 = 1.05;

/// The factors on the price of divisions.
const ONE_BY_ONE: f64 = 1.02;
const IN_PARTS: f64 = 1.03;
const STREAMED: f64 = 1.05;
const BLOCK_BY_BLOCK: f64 = 1.15;

/// Parts of a feed-forward layer in the second round, in the plans that hold least, and for a plan
/// that is best with more of them.
const PARTS: [u32; 2] = [1, 8];
const MOST_PARTS: u32 = 32;
const FEWER_PARTS: [u32; 2] = [2, 4];

/// Queries of a piece of attention.
const QUERIES: u32 = 1024;

/// The user's bounds on the search.
#[derive(Clone, Debug)]
pub struct Wishes {
    pub precision: Option<Precision>,
    pub release: Release,
    pub choice: Choice,
}

type Priced = contest::Priced<Plan, Cost>;

/// Decides how a sample is run.
pub fn decide(wishes: &Wishes, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
    let last = attempts.last();
    let overflowed = attempts.iter().any(Attempt::overflowed);
    if last.is_some_and(Attempt::is_hopeless) {
        return Err("not finite even in f32: no plan mends that".into());
    }
    // A precision that was asked for is given up rather than the sample.
    let precision = if overflowed { Some(Precision::Uniform(Dtype::F32)) } else { wishes.precision };
    let choice = Choice { products: wishes.choice.products.filter(|_| !overflowed), ..wishes.choice.clone() };
    let search = Search { request, attempts, precision, choice, trials: denoise::trials(TRIALS) };
    let limit = match last {
        Some(last) if !last.overflowed() => {
            let failed = denoise::estimate_one(&last.plan).map_or(request.limit_bytes, |cost| cost.held());
            (request.limit_bytes as f64).min(failed as f64 * SMALLER)
        }
        _ => request.limit_bytes as f64,
    };
    let count = |considered: &[Priced]| considered.iter().filter(|priced| priced.held <= limit).count();
    let mut considered = search.priced(search.first_round());
    let mut fitting = count(&considered);
    let is_short = fitting == 0;
    if is_short || request.objective == Objective::Leanest {
        considered.extend(search.priced(search.divided(true)));
        fitting = count(&considered);
    }
    if fitting == 0 {
        considered.extend(search.priced(search.divided(false)));
        fitting = count(&considered);
    }
    let best = match fitting {
        0 => considered.into_iter().min_by(|one, other| one.held.total_cmp(&other.held)),
        _ => {
            considered.retain(|priced| priced.held <= limit);
            search.best(considered, is_short).and_then(|best| search.with_fewer_parts(best, limit, is_short))
        }
    };
    let best = best.ok_or("no plan is left to try")?;
    let plan = Plan { release: wishes.release, ..best.plan };
    Ok(plan.because(contest::reason(last.map(Attempt::overflowed), search.objective(is_short), fitting)))
}

type Search<'a> = contest::Search<'a, Request, Attempt, Choice, Trial>;

impl Search<'_> {
    /// Plans of everything at once.
    fn first_round(&self) -> Vec<Plan> {
        let mut plans = Vec::with_capacity(12);
        for precision in self.precisions(true) {
            let plain = Plan::plain(precision).reusing(self.request);
            for weights in [WeightForm::Packed, WeightForm::Expanded] {
                for guidance in self.orders() {
                    let plan = Plan { weights, guidance: *guidance, ..plain.clone() };
                    for products in self.products(weights) {
                        let plan = Plan { products: *products, ..plan.clone() };
                        plans.extend(
                            self.attentions().iter().map(|attention| Plan { attention: *attention, ..plan.clone() }),
                        );
                    }
                }
            }
        }
        plans
    }

    /// Plans that are divided, with the passes in turn, in the types of the first rounds or of the
    /// last.
    fn divided(&self, is_first: bool) -> Vec<Plan> {
        let mut plans = Vec::with_capacity(48);
        let mut all = self.precisions(is_first);
        // f32 holds twice as much as a narrow type that is fast: a search for room needs no price
        // of it.
        if all.len() > 1 && is_first {
            all.retain(|precision| precision.dtype() != Dtype::F32);
        }
        let samples: &[Option<u32>] = if self.request.batch > 1 { &[None, Some(1)] } else { &[None] };
        for precision in all {
            // Integers hold about as much.
            let products = self.products(WeightForm::Packed).last().copied().unwrap_or(Products::Precision);
            let plain = Plan { products, ..Plan::plain(precision) }.reusing(self.request);
            for residency in [Residency::Resident, Residency::Streamed(1), Residency::Host] {
                for samples in samples {
                    for feed_forward in PARTS {
                        let plan = Plan { residency, samples: *samples, feed_forward, ..plain.clone() };
                        plans.extend(self.with_least_scores(plan));
                    }
                }
            }
            let samples = samples.last().copied().flatten();
            let least = Plan { residency: Residency::Host, samples, feed_forward: MOST_PARTS, ..plain };
            plans.extend(self.with_least_scores(least));
        }
        plans
    }

    /// The best of a plan that fits and the same plan with feed-forward layers in fewer parts.
    fn with_fewer_parts(&self, best: Priced, limit: f64, is_short: bool) -> Option<Priced> {
        let fewer = FEWER_PARTS.into_iter().filter(|parts| *parts < best.plan.feed_forward);
        let fewer = fewer.map(|feed_forward| Plan { feed_forward, ..best.plan.clone() }).collect();
        let mut considered = self.priced(fewer);
        considered.retain(|priced| priced.held <= limit);
        considered.insert(0, best);
        self.best(considered, is_short)
    }

    /// Precisions: f32 and what is faster, and for the last round the other narrow types. On a CPU
    /// all of them wait: accuracy first.
    fn precisions(&self, is_first: bool) -> Vec<Precision> {
        match self.precision {
            Some(precision) if is_first => return vec![precision],
            Some(_) => return Vec::new(),
            None => {}
        }
        let is_wanted = |dtype: &Dtype| {
            let is_accurate = !self.request.has_gpu() && self.request.objective != Objective::Fastest;
            let is_fast = !is_accurate && self.request.is_fast(*dtype);
            self.request.offers(*dtype) && is_first == is_fast
        };
        let mut precisions = if is_first { vec![Precision::Uniform(Dtype::F32)] } else { Vec::new() };
        for dtype in [Dtype::Bf16, Dtype::F16].iter().filter(|dtype| is_wanted(dtype)) {
            // It may overflow where bf16, as fast, can't.
            if *dtype == Dtype::F16 && self.request.is_fast(Dtype::Bf16) {
                continue;
            }
            precisions.extend([Precision::Mixed(*dtype), Precision::Uniform(*dtype)]);
        }
        precisions
    }

    /// Ways of attention: without a fused kernel its scores are in memory, so pieces hold less.
    fn attentions(&self) -> &'static [Attention] {
        match self.request.capabilities.fused_attention {
            true => &[Attention::Fused],
            false => &[Attention::Fused, Attention::Pieces(QUERIES)],
        }
    }

    /// The plan by the way of attention that holds least.
    fn with_least_scores(&self, plan: Plan) -> Option<Plan> {
        self.attentions().last().map(|attention| Plan { attention: *attention, ..plan })
    }

    fn orders(&self) -> &'static [Guidance] {
        match self.request.passes {
            ..2 => &[Guidance::InTurn],
            _ => &[Guidance::InTurn, Guidance::Together],
        }
    }

    /// The plans as the user wishes them, each once, with their prices. Plans that were tried, and
    /// those without a price, are left out.
    fn priced(&self, plans: Vec<Plan>) -> Vec<Priced> {
        let mut wished: Vec<Plan> = Vec::with_capacity(plans.len());
        for plan in plans {
            let mut plan = self.choice.apply(plan, self.request);
            if plan.weights == WeightForm::Expanded {
                let streams = self.choice.residency.is_some_and(|residency| residency != Residency::Resident);
                if streams && self.choice.weights.is_none() {
                    continue;
                }
                plan.residency = Residency::Resident;
            }
            if !wished.contains(&plan) && !self.attempts.iter().any(|attempt| plan.repeats(attempt)) {
                wished.push(plan);
            }
        }
        if wished.is_empty() {
            return Vec::new();
        }
        let costs = denoise::estimate(&wished);
        let runs = |plan: &Plan, cost: &Cost| {
            let ratio = |outcome: Outcome| outcome.step_ns as f64 / cost.step_ns.max(1) as f64;
            self.outcomes(plan).fold((0, f64::INFINITY), |(runs, least), outcome| (runs + 1, least.min(ratio(outcome))))
        };
        contest::correct(wished, costs, runs, |plan, cost, own| {
            let factor = self.rounding(&plan) * division(&plan) * own;
            let memory = |outcome: Outcome| outcome.memory.peak_bytes as f64 / cost.memory.peak_bytes.max(1) as f64;
            let memory = self.outcomes(&plan).map(memory).reduce(f64::max).unwrap_or(1.0);
            let held = cost.memory.peak_bytes as f64 * memory + cost.memory.weights_bytes as f64;
            Priced { plan, time: cost.step_ns as f64 * factor / 1e9, cost, held, all: held }
        })
    }

    /// The measured runs of a plan.
    fn outcomes(&self, plan: &Plan) -> impl Iterator<Item = Outcome> {
        self.trials.iter().filter(|trial| trial.plan.is_like(plan)).map(|trial| trial.outcome)
    }

    /// The factor on a price for rounding. One type alone, or one that the user chose, is not
    /// weighed against others.
    fn rounding(&self, plan: &Plan) -> f64 {
        let operands = if plan.products == Products::Precision { 1.0 } else { INTEGERS };
        let precision = match plan.precision {
            Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 1.0,
            Precision::Mixed(_) => MIXED,
            Precision::Uniform(_) => UNIFORM,
        };
        operands * precision
    }

    /// The operands of products in a form of weights: 8-bit integers only if time is all that
    /// counts, where the host has them.
    fn products(&self, weights: WeightForm) -> &'static [Products] {
        let has_integers = self.request.capabilities.int8_products && weights == WeightForm::Packed;
        match has_integers && self.request.objective == Objective::Fastest {
            true => &[Products::Precision, Products::Int8],
            false => &[Products::Precision],
        }
    }

    /// The objective of the choice: while memory is short, the fastest that fits is balanced.
    fn objective(&self, is_short: bool) -> Objective {
        match self.request.objective {
            Objective::Balanced if is_short => Objective::Fastest,
            objective => objective,
        }
    }

    fn best(&self, fitting: Vec<Priced>, is_short: bool) -> Option<Priced> {
        contest::best(fitting, self.objective(is_short), self.request.limit_bytes)
    }
}

/// The factor on a price for what a division costs besides the work.
fn division(plan: &Plan) -> f64 {
    let residency = match plan.residency {
        Residency::Resident => 1.0,
        Residency::Streamed(_) => STREAMED,
        Residency::Host => BLOCK_BY_BLOCK,
    };
    let samples = if plan.samples.is_some() { ONE_BY_ONE } else { 1.0 };
    let parts = if plan.feed_forward > 1 { IN_PARTS } else { 1.0 };
    residency * samples * parts
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{
        Backend, Device, Failure, HostMemory, Memory, StoredType, Weights,
        denoise::{Capabilities, Model, Stub},
    };

    use super::*;

    const GIB: u64 = 1 << 30;

    fn request(backend: Backend, limit_bytes: u64) -> Request {
        Request {
            model: Model {
                family: "flux".into(),
                parameters: 12_000_000_000,
                weights: Weights {
                    stored_bytes: 24 * GIB,
                    stored_types: vec![StoredType { name: "bf16".into(), bytes: 24 * GIB }],
                },
                blocks: 57,
                largest_block_bytes: GIB / 2,
                experts: 1,
            },
            device: Device {
                backend,
                name: "test".into(),
                arch: "test".into(),
                compute_units: 1,
                total_bytes: 64 * GIB,
                free_bytes: 64 * GIB,
                unified: false,
                fast_dtypes: vec![Dtype::Bf16, Dtype::F16],
            },
            host: HostMemory { total_bytes: 64 * GIB, free_bytes: 64 * GIB, transfer_rate: 20 * GIB },
            limit_bytes,
            objective: Objective::Balanced,
            batch: 2,
            frames: 1,
            height: 128,
            width: 128,
            text_tokens: 512,
            image_tokens: 4096,
            steps: 20,
            passes: 2,
            sampler: "euler".into(),
            capabilities: Capabilities {
                dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
                fp8_products: false,
                int8_products: false,
                fused_attention: true,
                queries_least: 16,
                ahead_most: 64,
                parts_most: 64,
                reuse_most: 0.0,
                options: vec![],
            },
            under_way: None,
            hints: vec![],
        }
    }

    fn auto() -> Wishes {
        Wishes { precision: None, release: Release::Keep, choice: Choice::default() }
    }

    /// A second a step in f32 and half of it in narrow types; streaming from a host costs a tenth,
    /// blocks on the host half as much again.
    fn install() {
        install_with(vec![]);
    }

    fn install_with(trials: Vec<Trial>) {
        let estimate = |plan: &Plan| {
            let narrow = plan.precision.dtype() != Dtype::F32;
            let expanded = if narrow { 24 * GIB } else { 48 * GIB };
            let (weights_bytes, slower) = match (plan.weights, plan.residency) {
                (WeightForm::Expanded, _) => (expanded, 1.0),
                (_, Residency::Resident) => (24 * GIB, 1.0),
                (_, Residency::Streamed(ahead)) => (GIB + GIB / 2 * u64::from(ahead), 1.1),
                (_, Residency::Host) => (GIB, 1.5),
            };
            let at_once = if plan.guidance == Guidance::Together { 2 } else { 1 };
            let samples = plan.samples.unwrap_or(2);
            let peak_bytes = u64::from(at_once * samples) * GIB / u64::from(plan.feed_forward).min(4);
            let saved = if plan.guidance == Guidance::Together { 0.95 } else { 1.0 };
            let one_by_one = if samples == 1 { 1.1 } else { 1.0 };
            let seconds = if narrow { 0.5 } else { 1.0 } * slower * saved * one_by_one;
            let memory = Memory { peak_bytes, weights_bytes };
            Ok(Cost { memory, moved_bytes: 0, step_ns: (seconds * 1e9) as u64 })
        };
        Stub { estimate: Box::new(estimate), trials }.install();
    }

    #[test]
    fn everything_runs_at_once_where_there_is_room() {
        install();
        let plan = decide(&auto(), &request(Backend::Cuda, 60 * GIB), &[]).unwrap();
        assert_eq!((plan.residency, plan.guidance), (Residency::Resident, Guidance::Together));
        assert_eq!(plan.precision, Precision::Mixed(Dtype::Bf16));
        let plan = decide(&auto(), &request(Backend::Cpu, 60 * GIB), &[]).unwrap();
        assert_eq!(plan.precision, Precision::Uniform(Dtype::F32), "accuracy first");
        let request = Request { objective: Objective::Fastest, ..request(Backend::Cpu, 60 * GIB) };
        assert_eq!(decide(&auto(), &request, &[]).unwrap().precision, Precision::Mixed(Dtype::Bf16));
    }

    /// Packed weights are expanded in each product on a GPU, which the host prices.
    #[test]
    fn weights_are_expanded_once_where_that_is_worth_their_room() {
        let decided = |slower: f64, limit: u64| {
            let estimate = move |plan: &Plan| {
                let is_packed = plan.weights == WeightForm::Packed;
                let seconds = if plan.precision.dtype() == Dtype::F32 { 2.0 } else { 1.0 };
                let step_ns = (seconds * 1e9 * if is_packed { slower } else { 1.0 }) as u64;
                let weights_bytes = if is_packed { 7 * GIB } else { 24 * GIB };
                Ok(Cost { memory: Memory { peak_bytes: GIB, weights_bytes }, moved_bytes: 0, step_ns })
            };
            Stub { estimate: Box::new(estimate), trials: vec![] }.install();
            decide(&auto(), &request(Backend::Cuda, limit), &[]).unwrap().weights
        };
        assert_eq!(decided(1.3, 80 * GIB), WeightForm::Expanded);
        assert_eq!(decided(1.02, 80 * GIB), WeightForm::Packed, "hardly slower in a third of the memory");
        assert_eq!(decided(1.3, 20 * GIB), WeightForm::Packed, "the only ones that fit");
    }

    #[test]
    fn integers_are_multiplied_if_time_is_all_that_counts() {
        let estimate = |plan: &Plan| {
            let integers = plan.products == Products::Int8;
            let narrow = plan.precision.dtype() != Dtype::F32;
            let seconds = if integers { 0.7 } else { 1.2 } - if narrow { 0.2 } else { 0.0 };
            let step_ns = (seconds * 1e9) as u64;
            let weights_bytes = if plan.residency == Residency::Resident { 12 * GIB } else { GIB };
            let memory = Memory { peak_bytes: GIB, weights_bytes };
            Ok(Cost { memory, moved_bytes: 0, step_ns })
        };
        Stub { estimate: Box::new(estimate), trials: vec![] }.install();
        let decided = |objective, int8_products| {
            let mut request = Request { objective, ..request(Backend::Cpu, 60 * GIB) };
            request.capabilities.int8_products = int8_products;
            let plan = decide(&auto(), &request, &[]).unwrap();
            (plan.products, plan.weights, plan.precision)
        };
        let (wide, mixed) = (Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16));
        assert_eq!(decided(Objective::Fastest, true), (Products::Int8, WeightForm::Packed, mixed));
        assert_eq!(decided(Objective::Fastest, false).0, Products::Precision);
        assert_eq!(decided(Objective::Balanced, true), (Products::Precision, WeightForm::Packed, wide));
        let mut short = Request { objective: Objective::Fastest, ..request(Backend::Cpu, 6 * GIB) };
        short.capabilities.int8_products = true;
        assert_eq!(decide(&auto(), &short, &[]).unwrap().products, Products::Int8);
    }

    #[test]
    fn where_memory_is_short_weights_are_streamed_and_work_is_divided() {
        install();
        let at = |limit| decide(&auto(), &request(Backend::Cuda, limit), &[]).unwrap();
        let streamed = at(8 * GIB);
        assert_eq!((streamed.residency, streamed.samples), (Residency::Streamed(1), None));
        let tight = at(GIB + GIB / 2);
        assert_eq!((tight.residency, tight.feed_forward > 1), (Residency::Host, true));
        let none = at(GIB / 2);
        assert!(none.reason.contains("leanest"), "{}", none.reason);
    }

    #[test]
    fn a_plan_that_took_longer_three_times_gives_way_to_another() {
        let request = request(Backend::Cuda, 60 * GIB);
        install();
        let first = decide(&auto(), &request, &[]).unwrap();
        let others = Plan { guidance: Guidance::InTurn, ..first.clone() };
        let runs = |count: usize, slower: u64| {
            install();
            let trial = |plan: &Plan, slower: u64| {
                let Cost { memory, step_ns, .. } = denoise::estimate_one(plan).unwrap();
                let step_ns = step_ns * slower;
                let outcome = Outcome { memory, elapsed_ns: 0, step_ns, load_ns: 0, moved_bytes: 0, attempts: 1 };
                Trial { plan: plan.clone(), outcome }
            };
            let of_first = std::iter::repeat_n(trial(&first, slower), count);
            let trials = of_first.chain(std::iter::repeat_n(trial(&others, 1), 3)).collect();
            install_with(trials);
            decide(&auto(), &request, &[]).unwrap().is_like(&first)
        };
        assert!(runs(0, 1) && runs(3, 1));
        assert!(runs(2, 3), "a busy machine");
        assert!(!runs(3, 3));
    }

    #[test]
    fn wishes_are_kept_and_failures_are_avoided() {
        install();
        let request = request(Backend::Cuda, 60 * GIB);
        let wishes = Wishes {
            precision: Some(Precision::Uniform(Dtype::F16)),
            choice: Choice { guidance: Some(Guidance::InTurn), ..Choice::default() },
            ..auto()
        };
        let first = decide(&wishes, &request, &[]).unwrap();
        assert_eq!((first.precision, first.guidance), (Precision::Uniform(Dtype::F16), Guidance::InTurn));
        let failed = |plan: &Plan, failure| Attempt { plan: plan.clone(), failure };
        let wider = decide(&wishes, &request, &[failed(&first, Failure::NonFinite(3))]).unwrap();
        assert_eq!(wider.precision, Precision::Uniform(Dtype::F32));
        assert!(decide(&wishes, &request, &[failed(&wider, Failure::NonFinite(3))]).is_err());
        let smaller = decide(&auto(), &request, &[failed(&first, Failure::OutOfMemory(1))]).unwrap();
        let held = |plan: &Plan| denoise::estimate_one(plan).unwrap().held();
        assert!(held(&smaller) < held(&first), "{smaller:?}");
    }
}
