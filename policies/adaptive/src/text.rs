//! The search for a text encoder's plan.
//!
//! The first round prices f32 and the types that the device is fast in (on a processor f32 alone,
//! unless the objective is `fastest`), with sums in f32, on the device, and f32 on the host;
//! weights as stored and expanded. If none of these plans fits, the other narrow types are tried,
//! and after that the leanest of all is taken: estimates may be too high.
//!
//! The time is that of loading and running together, since most encoders run once. It counts half
//! as much again for narrow types, since every step of a sample follows the conditioning, and on
//! the host beside a device of its own, whose processor has other work. The host's trials correct
//! the prices of plans that ran three times, as for samples.
//!
//! An encoder stays loaded where the host offers that, if it takes at most half of the limit and
//! the objective is not `leanest`.

use tilewright_sdk::{
    Dtype, Objective, Precision,
    text::{self, Attempt, Choice, Cost, Place, Plan, Request, Trial},
};

use crate::contest::{self, SMALLER, TRIALS};

/// The factors on the price of narrow types, and of the host beside a device.
const NARROW: f64 = 1.5;
const BESIDE: f64 = 1.5;

/// The share of a limit up to which an encoder stays loaded.
const KEPT: f64 = 0.5;

/// The user's bounds on the search.
#[derive(Clone, Debug)]
pub struct Wishes {
    pub precision: Option<Precision>,
    pub choice: Choice,
}

type Priced = contest::Priced<Plan, Cost>;

/// Decides how an encoder is run.
pub fn decide(wishes: &Wishes, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
    let last = attempts.last();
    if last.is_some_and(Attempt::is_hopeless) {
        return Err("not finite even in f32: no plan mends that".into());
    }
    // A precision that was asked for is given up rather than the conditioning.
    let overflowed = attempts.iter().any(Attempt::overflowed);
    let precision = if overflowed { Some(Precision::Uniform(Dtype::F32)) } else { wishes.precision };
    let search = Search { request, attempts, precision, choice: wishes.choice, trials: text::trials(TRIALS) };
    let mut considered = search.priced(true);
    if !considered.iter().any(|priced| search.fits(priced)) {
        considered.extend(search.priced(false));
    }
    let fitting = considered.iter().filter(|priced| search.fits(priced)).count();
    let best = match fitting {
        0 => considered.into_iter().min_by(|one, other| one.held.total_cmp(&other.held)),
        _ => {
            considered.retain(|priced| search.fits(priced));
            contest::best(considered, request.objective, request.limit_bytes)
        }
    };
    let Priced { plan, held, .. } = best.ok_or("no plan is left to try")?;
    let has_room = held <= request.limit_bytes as f64 * KEPT;
    let keeps = request.capabilities.kept && has_room && request.objective != Objective::Leanest;
    let plan = Plan { kept: wishes.choice.kept.unwrap_or(keeps), ..plan };
    Ok(plan.because(contest::reason(last.map(Attempt::overflowed), request.objective, fitting)))
}

type Search<'a> = contest::Search<'a, Request, Attempt, Choice, Trial>;

impl Search<'_> {
    /// Precisions: f32 and what is faster, and for the last round the other narrow types. On a
    /// processor all of them wait, accuracy first, unless the objective is `fastest`.
    fn precisions(&self, is_first: bool) -> Vec<Precision> {
        match self.precision {
            Some(precision) if is_first => return vec![precision],
            Some(_) => return Vec::new(),
            None => {}
        }
        let is_accurate = !self.request.has_gpu() && self.request.objective != Objective::Fastest;
        let is_wanted =
            |dtype: &Dtype| self.request.offers(*dtype) && is_first == (!is_accurate && self.request.is_fast(*dtype));
        let mut precisions = if is_first { vec![Precision::Uniform(Dtype::F32)] } else { Vec::new() };
        for dtype in [Dtype::Bf16, Dtype::F16].iter().filter(|dtype| is_wanted(dtype)) {
            // T5's values overflow in f16 where bf16, as fast, has room for them.
            if *dtype == Dtype::F16 && self.request.offers(Dtype::Bf16) {
                continue;
            }
            precisions.push(Precision::Mixed(*dtype));
        }
        precisions
    }

    /// The plans of a round as the user wishes them, each once, with their prices. Plans that
    /// were tried, and those without a price, are left out.
    fn priced(&self, is_first: bool) -> Vec<Priced> {
        let capabilities = &self.request.capabilities;
        let mut wished: Vec<Plan> = Vec::with_capacity(12);
        for precision in self.precisions(is_first) {
            for place in &capabilities.places {
                // The types that a device is fast in are not those of the processor beside it.
                let is_narrow = precision.dtype() != Dtype::F32;
                if is_first && is_narrow && self.is_beside(*place) && self.precision.is_none() {
                    continue;
                }
                for weights in &capabilities.weights {
                    let plan = Plan { weights: *weights, ..Plan::plain(precision, *place) };
                    let plan = Plan { kept: false, ..self.choice.apply(plan) };
                    if !wished.contains(&plan) && !self.attempts.iter().any(|attempt| plan.repeats(attempt)) {
                        wished.push(plan);
                    }
                }
            }
        }
        if wished.is_empty() {
            return Vec::new();
        }
        let costs = text::estimate(&wished);
        contest::correct(
            wished,
            costs,
            |plan, cost| self.runs(plan, cost),
            |plan, cost, own| {
                let time = seconds(cost.elapsed_ns, cost.load_ns) * self.factor(&plan) * own;
                Priced { plan, cost, time, held: cost.held() as f64, all: cost.all() as f64 }
            },
        )
    }

    /// The runs of a plan, and the least ratio of measured to priced time.
    fn runs(&self, plan: &Plan, cost: &Cost) -> (usize, f64) {
        let price = seconds(cost.elapsed_ns, cost.load_ns).max(1e-9);
        let outcomes = self.trials.iter().filter(|trial| trial.plan.is_like(plan)).map(|trial| trial.outcome);
        outcomes.fold((0, f64::INFINITY), |(runs, least), outcome| {
            (runs + 1, least.min(seconds(outcome.elapsed_ns, outcome.load_ns) / price))
        })
    }

    /// The factor on a price for rounding and for the place. One type alone, or one that the user
    /// chose, is not weighed against others.
    fn factor(&self, plan: &Plan) -> f64 {
        let rounding = if plan.precision.dtype() == Dtype::F32 { 1.0 } else { NARROW };
        rounding * if self.is_beside(plan.place) { BESIDE } else { 1.0 }
    }

    /// True of the processor beside a device of its own.
    fn is_beside(&self, place: Place) -> bool {
        place == Place::Host && self.request.usual_place() == Place::Device
    }

    /// True if a plan is within the limit and within what is free on the host, and holds less than
    /// plans of its place that failed for memory.
    fn fits(&self, priced: &Priced) -> bool {
        let free = self.request.host.free_bytes;
        let is_smaller = |attempt: &Attempt| {
            if attempt.overflowed() || attempt.plan.place != priced.plan.place {
                return true;
            }
            let failed = text::estimate_one(&attempt.plan).map_or(f64::INFINITY, |cost| cost.all() as f64);
            priced.all <= failed * SMALLER
        };
        priced.held <= self.request.limit_bytes as f64
            && (free == 0 || priced.cost.host_bytes <= free)
            && self.attempts.iter().all(is_smaller)
    }
}

fn seconds(elapsed_ns: u64, load_ns: u64) -> f64 {
    (elapsed_ns as f64 + load_ns as f64) / 1e9
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{
        Backend, Device, Failure, HostMemory, Memory, StoredType, WeightForm, Weights,
        text::{Capabilities, Model, Outcome, Stub},
    };

    use super::*;

    const GIB: u64 = 1 << 30;

    fn request(backend: Backend, limit_bytes: u64) -> Request {
        let places = if backend == Backend::Cpu { vec![Place::Host] } else { vec![Place::Device, Place::Host] };
        Request {
            model: Model {
                kind: "t5-xxl".into(),
                weights: Weights {
                    stored_bytes: 9 * GIB,
                    stored_types: vec![StoredType { name: "bf16".into(), bytes: 9 * GIB }],
                },
                blocks: 24,
                width: 4096,
                head_width: 64,
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
            host: HostMemory { total_bytes: 64 * GIB, free_bytes: 48 * GIB, transfer_rate: 20 * GIB },
            limit_bytes,
            objective: Objective::Balanced,
            tokens: vec![256],
            capabilities: Capabilities {
                dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
                places,
                weights: vec![WeightForm::Packed, WeightForm::Expanded],
                kept: false,
                options: vec![],
            },
            hints: vec![],
        }
    }

    fn auto() -> Wishes {
        Wishes { precision: None, choice: Choice::default() }
    }

    /// A second of loading, as much in f32 and half of it in narrow types, and ten times as much on
    /// the host of a device; expanded weights take their type's bytes.
    fn install(is_gpu: bool, trials: Vec<Trial>) {
        let estimate = move |plan: &Plan| {
            let narrow = plan.precision.dtype() != Dtype::F32;
            let weights = match plan.weights {
                WeightForm::Packed => 9 * GIB,
                WeightForm::Expanded => {
                    if narrow {
                        9 * GIB
                    } else {
                        18 * GIB
                    }
                }
            };
            let peak = if narrow { GIB / 2 } else { GIB };
            let is_beside = is_gpu && plan.place == Place::Host;
            let slower = if is_beside { 10 } else { 1 };
            let elapsed_ns = if narrow { 500_000_000 } else { 1_000_000_000 } * slower;
            let [peak_bytes, weights_bytes, host_bytes] =
                if is_beside { [0, 0, peak + weights] } else { [peak, weights, 0] };
            let memory = Memory { peak_bytes, weights_bytes };
            Ok(Cost { memory, elapsed_ns, load_ns: 1_000_000_000, host_bytes })
        };
        Stub { estimate: Box::new(estimate), trials }.install();
    }

    #[test]
    fn accuracy_comes_first_while_there_is_room_and_the_host_last() {
        install(true, vec![]);
        let at = |limit| {
            let plan = decide(&auto(), &request(Backend::Cuda, limit), &[]).unwrap();
            (plan.precision, plan.place, plan.weights)
        };
        let wide = Precision::Uniform(Dtype::F32);
        let mixed = Precision::Mixed(Dtype::Bf16);
        assert_eq!(at(40 * GIB), (wide, Place::Device, WeightForm::Packed));
        assert_eq!(at(9 * GIB + GIB / 2), (mixed, Place::Device, WeightForm::Packed));
        assert_eq!(at(4 * GIB), (wide, Place::Host, WeightForm::Packed));
        install(false, vec![]);
        let at = |limit| decide(&auto(), &request(Backend::Cpu, limit), &[]).unwrap();
        assert_eq!(at(40 * GIB).precision, wide);
        assert_eq!(at(9 * GIB + GIB / 2).precision, mixed);
        assert!(at(GIB).reason.contains("leanest"));
    }

    #[test]
    fn a_processor_that_is_fast_in_a_narrow_type_uses_it_if_time_is_all_that_counts() {
        let estimate = |plan: &Plan| {
            let elapsed_ns = if plan.precision.dtype() == Dtype::F32 { 1_000_000_000 } else { 500_000_000 };
            let memory = Memory { peak_bytes: GIB, weights_bytes: GIB };
            Ok(Cost { memory, elapsed_ns, load_ns: 0, host_bytes: 0 })
        };
        Stub { estimate: Box::new(estimate), trials: vec![] }.install();
        let precision = |objective, fast: &[Dtype]| {
            let mut request = Request { objective, ..request(Backend::Cpu, 40 * GIB) };
            request.device.fast_dtypes = fast.to_vec();
            decide(&auto(), &request, &[]).unwrap().precision
        };
        let (wide, mixed) = (Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16));
        assert_eq!(precision(Objective::Fastest, &[Dtype::Bf16, Dtype::F32]), mixed);
        assert_eq!(precision(Objective::Fastest, &[Dtype::F32]), wide);
        assert_eq!(precision(Objective::Balanced, &[Dtype::Bf16, Dtype::F32]), wide);
    }

    #[test]
    fn wishes_are_kept_and_failures_are_avoided() {
        install(true, vec![]);
        let request = request(Backend::Cuda, 40 * GIB);
        let choice = Choice { place: Some(Place::Host), kept: Some(true), weights: None };
        let wishes = Wishes { precision: Some(Precision::Uniform(Dtype::F16)), choice };
        let first = decide(&wishes, &request, &[]).unwrap();
        assert_eq!((first.precision, first.place, first.kept), (Precision::Uniform(Dtype::F16), Place::Host, true));
        let failed = |plan: &Plan, failure| Attempt { plan: plan.clone(), failure };
        let wider = decide(&wishes, &request, &[failed(&first, Failure::NonFinite(3))]).unwrap();
        assert_eq!(wider.precision, Precision::Uniform(Dtype::F32));
        assert!(decide(&wishes, &request, &[failed(&wider, Failure::NonFinite(3))]).is_err());
        let first = decide(&auto(), &request, &[]).unwrap();
        let next = decide(&auto(), &request, &[failed(&first, Failure::OutOfMemory(1))]).unwrap();
        assert_eq!(next.place, Place::Host, "nothing of the device's plans holds a tenth less: {next:?}");
    }

    #[test]
    fn an_encoder_stays_where_it_is_offered_and_there_is_room() {
        install(true, vec![]);
        let mut request = request(Backend::Cuda, 40 * GIB);
        request.capabilities.kept = true;
        assert!(decide(&auto(), &request, &[]).unwrap().kept);
        request.limit_bytes = 12 * GIB;
        assert!(!decide(&auto(), &request, &[]).unwrap().kept);
        request.limit_bytes = 40 * GIB;
        request.objective = Objective::Leanest;
        assert!(!decide(&auto(), &request, &[]).unwrap().kept);
    }

    #[test]
    fn a_plan_that_took_longer_three_times_gives_way_to_another() {
        let request = request(Backend::Cuda, 40 * GIB);
        install(true, vec![]);
        let first = decide(&auto(), &request, &[]).unwrap();
        let other = Plan { weights: WeightForm::Expanded, ..first.clone() };
        let trial = |plan: &Plan, slower: u64| {
            let Cost { memory, elapsed_ns, load_ns, host_bytes } = text::estimate_one(plan).unwrap();
            let elapsed_ns = elapsed_ns * slower;
            let outcome = Outcome { memory, elapsed_ns, load_ns, host_bytes, attempts: 1 };
            Trial { plan: plan.clone(), outcome }
        };
        let trials: Vec<Trial> = [trial(&first, 9), trial(&other, 1), trial(&other, 1)]
            .into_iter()
            .flat_map(|trial| [trial.clone(), trial.clone(), trial])
            .collect();
        install(true, trials);
        assert!(!decide(&auto(), &request, &[]).unwrap().is_like(&first));
    }
}
