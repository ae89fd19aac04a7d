//! The kinds of work that the gate asks about, as far as judging differs.

use std::time::Duration;

use tilewright_plan::{
    Cost, Denoise, DenoiseCost, DenoiseOutcome, DenoisePlan, Dtype, GuidanceOrder, Layout, Options, Outcome, Place,
    Plan, Precision, Products, Release, Space, Text, TextCost, TextOutcome, TextPlan, Tile, Time, UnderWay, Vae,
    WeightForm,
};
use tilewright_policy::{Governed, oracle};

use crate::golden::{CallResult, Golden, GoldenRequest};

/// Work whose plans are judged.
pub trait Judged: Golden + Governed {
    /// The same plan in another type.
    fn in_type(plan: Self::Plan, dtype: Dtype) -> Self::Plan;

    /// A plan in a few words.
    fn show(plan: &Self::Plan) -> String {
        plan.to_string()
    }

    /// A plan that a policy is unlikely to answer.
    fn odd(golden: &GoldenRequest<Self>) -> Self::Plan;

    /// The leanest plans of every kind; the request decides which of them is the leanest.
    fn leanest(golden: &GoldenRequest<Self>) -> Vec<Self::Plan>;

    /// A plan after checking; none if it makes no sense.
    fn legal(
        mut plan: Self::Plan,
        golden: &GoldenRequest<Self>,
        under_way: Option<&UnderWay<Self>>,
    ) -> Option<Self::Plan> {
        oracle::check_answer(&mut plan, &golden.question().going_on(under_way)).ok().map(|_| plan)
    }

    /// True if the host carries out an exact plan in this answer's place, since the user does not
    /// allow blended ones.
    fn is_replaced(_answer: &Self::Plan, _golden: &GoldenRequest<Self>, _result: &CallResult<Self>) -> bool {
        false
    }

    /// The outcome of a plan of this price: a third more time and 5 % more memory.
    fn outcome(cost: Option<Self::Cost>) -> Self::Outcome;
}

/// Measured over priced time, and memory, of outcomes that policies learn from.
const SLOWER: f64 = 4.0 / 3.0;

fn more(bytes: u64) -> u64 {
    bytes / 20 * 21
}

impl Judged for Vae {
    fn in_type(plan: Plan, dtype: Dtype) -> Plan {
        Plan { precision: Precision::Uniform(dtype), ..plan }
    }

    /// `blended 512×512/64, carried 4, bf16`.
    fn show(plan: &Plan) -> String {
        let time = if plan.time == Time::Whole { String::new() } else { format!(", {}", plan.time) };
        let batch = if plan.batch > 1 { format!(", {} together", plan.batch) } else { String::new() };
        format!("{}{time}, {}{batch}", plan.space, plan.precision)
    }

    fn odd(golden: &GoldenRequest) -> Plan {
        Plan { layout: Layout::ChannelsFirst, ..golden.plain() }
    }

    fn leanest(golden: &GoldenRequest) -> Vec<Plan> {
        let request = &golden.request;
        let least = golden.capabilities.tile_least;
        let side = |side: u32| Space::Blended(Tile { height: side, width: side, overlap: 0 });
        let spaces =
            [Space::Whole, Space::Exact(Tile { height: least, width: request.width, overlap: 0 }), side(least)];
        let times = [Time::Whole, Time::Carried { frames: 1 }];
        let precisions = golden.capabilities.dtypes.iter().map(|dtype| Precision::Uniform(*dtype));
        let plans = precisions.flat_map(move |precision| {
            spaces.into_iter().flat_map(move |space| {
                times.into_iter().map(move |time| Plan {
                    space,
                    time,
                    batch: 1,
                    precision,
                    layout: Layout::ChannelsFirst,
                    release: Release::EachStep,
                    offload: golden.capabilities.offload,
                    prefetch: 0,
                    options: Options::none(),
                    reason: String::new(),
                })
            })
        });
        plans.collect()
    }

    fn is_replaced(answer: &Plan, golden: &GoldenRequest, result: &CallResult) -> bool {
        let under_way = result.under_way.as_ref();
        let question = golden.question().going_on(under_way).after(&result.attempts);
        let legal = Self::legal(answer.clone(), golden, under_way);
        let carried_out = result.decision.as_ref().map(|decision| &decision.plan);
        // Settings may allow what the request does not: then the answer stands.
        legal.is_some_and(|legal| {
            let exact = oracle::exact_in_place_of(&legal, &question, &*golden.costs());
            exact.is_some() && exact.as_ref() == carried_out
        })
    }

    fn outcome(cost: Option<Cost>) -> Outcome {
        Outcome {
            elapsed: cost.map(|cost| cost.elapsed.mul_f64(SLOWER)).unwrap_or_default(),
            peak_bytes: cost.map_or(1 << 30, |cost| more(cost.peak_bytes)),
            attempts: 1,
            ..Outcome::default()
        }
    }
}

impl Judged for Denoise {
    fn in_type(plan: DenoisePlan, dtype: Dtype) -> DenoisePlan {
        DenoisePlan { precision: Precision::Uniform(dtype), products: Products::Precision, ..plan }
    }

    fn odd(_golden: &GoldenRequest<Self>) -> DenoisePlan {
        DenoisePlan { feed_forward: 3, guidance: GuidanceOrder::InTurn, ..DenoisePlan::plain() }
    }

    fn leanest(golden: &GoldenRequest<Self>) -> Vec<DenoisePlan> {
        let plan = |dtype: &Dtype| DenoisePlan {
            precision: Precision::Uniform(*dtype),
            weights: WeightForm::Packed,
            ahead: Some(0),
            samples: Some(1),
            feed_forward: 8,
            release: Release::EachStep,
            ..DenoisePlan::plain()
        };
        golden.capabilities.dtypes.iter().map(plan).collect()
    }

    fn outcome(cost: Option<DenoiseCost>) -> DenoiseOutcome {
        let step = cost.map(|cost| cost.step.mul_f64(SLOWER)).unwrap_or_default();
        DenoiseOutcome {
            elapsed: step * 20,
            step,
            peak_bytes: cost.map_or(1 << 30, |cost| more(cost.peak_bytes)),
            weights_bytes: cost.map_or(1 << 30, |cost| cost.weights_bytes),
            moved_bytes: cost.map_or(0, |cost| 20 * cost.moved_bytes),
            attempts: 1,
            ..DenoiseOutcome::default()
        }
    }
}

impl Judged for Text {
    fn in_type(plan: TextPlan, dtype: Dtype) -> TextPlan {
        TextPlan { precision: Precision::Uniform(dtype), ..plan }
    }

    fn odd(_golden: &GoldenRequest<Self>) -> TextPlan {
        TextPlan { weights: WeightForm::Expanded, ..TextPlan::plain(Place::Host) }
    }

    fn leanest(golden: &GoldenRequest<Self>) -> Vec<TextPlan> {
        let capabilities = &golden.capabilities;
        let plan = |dtype: &Dtype| {
            let precision = Precision::Uniform(*dtype);
            let weights = capabilities.weights.iter();
            let plans = weights.flat_map(move |weights| {
                capabilities.places.iter().map(move |place| TextPlan {
                    precision,
                    weights: *weights,
                    ..TextPlan::plain(*place)
                })
            });
            plans.collect::<Vec<_>>()
        };
        capabilities.dtypes.iter().flat_map(plan).collect()
    }

    fn outcome(cost: Option<TextCost>) -> TextOutcome {
        let slower = |time: Duration| time.mul_f64(SLOWER);
        TextOutcome {
            elapsed: cost.map(|cost| slower(cost.elapsed)).unwrap_or_default(),
            load: cost.map(|cost| slower(cost.load)).unwrap_or_default(),
            peak_bytes: cost.map_or(1 << 30, |cost| more(cost.peak_bytes)),
            weights_bytes: cost.map_or(1 << 30, |cost| cost.weights_bytes),
            host_bytes: cost.map_or(0, |cost| cost.host_bytes),
            attempts: 1,
            ..TextOutcome::default()
        }
    }
}
