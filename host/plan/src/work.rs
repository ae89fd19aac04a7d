//! A kind of work that policies decide. Each has types of its own and a pair of the contract's
//! interfaces; everything else is written once for all of them.

use std::{fmt, hash::Hash, time::Duration};

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    AnyPlan, Dtype, Hint, Objective, Options, PlanOption, PoolStatistics, Precision, Record, Stage, VariantOf,
    records::AnyRecord,
};

/// Facts that are compared, recorded and sent to other threads.
pub trait Data:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T> Data for T where
    T: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

/// A kind of work.
pub trait Work: Data + Copy + Default + Eq + Hash + VariantOf<AnyRecord, Variant = Box<Record<Self>>> {
    /// The stages that it is done in, the usual one first.
    const STAGES: &'static [Stage];

    /// The work itself.
    type Request: Data;
    /// The plans that can be carried out.
    type Capabilities: Data + Default;
    /// The way in which work will be run.
    type Plan: Data + Eq + Hash + fmt::Display + Into<AnyPlan>;
    /// The expected cost of a plan.
    type Cost: Data + Copy + for<'a> From<&'a Self::ExactCost>;
    /// The measurements of a plan that was carried out.
    type Outcome: Data + Copy + From<Self::Measured>;
    /// A cost, exact to the bit, for replay.
    type ExactCost: Data + From<Self::Cost>;
    /// The part of an outcome that policies get.
    type Measured: Data + Copy + for<'a> From<&'a Self::Outcome>;

    /// The title of the published schema of its records.
    const RECORD_TITLE: &'static str;

    /// The types that a plan computes in.
    fn precision(plan: &Self::Plan) -> Precision;

    /// A plan's reason, for people.
    fn reason(plan: &Self::Plan) -> &str;

    /// The same, to be changed.
    fn reason_mut(plan: &mut Self::Plan) -> &mut String;

    /// The options that a plan sets.
    fn options(plan: &Self::Plan) -> &Options;

    /// The same, to be changed.
    fn options_mut(plan: &mut Self::Plan) -> &mut Options;

    /// The options that are offered.
    fn offered_options(capabilities: &Self::Capabilities) -> &[PlanOption];

    /// The same plan without its reason.
    fn without_reason(plan: &Self::Plan) -> Self::Plan {
        let mut plan = plan.clone();
        Self::reason_mut(&mut plan).clear();
        plan
    }

    /// True if both are carried out in the same way: they differ in their reasons at most.
    fn is_same_work(one: &Self::Plan, other: &Self::Plan) -> bool {
        Self::without_reason(one) == Self::without_reason(other)
    }

    /// True if an attempt goes on where a failed one ended, so that the result is of both plans.
    fn is_continued(request: &Self::Request) -> bool;

    /// The hints of a request, in which earlier programs wrote what has fields now.
    fn hints(_request: &Self::Request) -> &[Hint] {
        &[]
    }

    /// The capabilities in a request's hints, if all of them are there.
    fn capabilities_of_hints(_hints: &[Hint]) -> Option<Self::Capabilities> {
        None
    }

    /// The types that are offered.
    fn dtypes(capabilities: &Self::Capabilities) -> &[Dtype];

    /// True if two requests are of one model.
    fn is_same_model(one: &Self::Request, other: &Self::Request) -> bool;

    /// The model's family.
    fn family(request: &Self::Request) -> &str;

    /// Samples, frames, height and width; of texts their number, 1, 1 and the tokens of the
    /// longest.
    fn extents(request: &Self::Request) -> [u32; 4];

    /// The most bytes to hold at once.
    fn memory_limit(request: &Self::Request) -> u64;

    /// The aim of a decision.
    fn objective(request: &Self::Request) -> Objective;

    /// The same request with another limit and another aim.
    fn limited(request: &Self::Request, memory_limit: u64, objective: Objective) -> Self::Request;

    /// The time of a price that plans are compared by: of a sample that of a step.
    fn time(cost: &Self::Cost) -> Duration;

    /// Bytes of a price that the limit is compared with.
    fn held_bytes(cost: &Self::Cost) -> u64;

    /// Bytes of a price, wherever they are held: those of a host beside a device included.
    fn all_bytes(cost: &Self::Cost) -> u64 {
        Self::held_bytes(cost)
    }

    /// Time in seconds and memory in bytes of a price, as far as measurements correct them: the
    /// memory of samples and texts leaves weights out.
    fn priced(cost: &Self::Cost) -> [f64; 2];

    /// The price with the time and memory of [`Self::priced`] times these factors. `None` if that
    /// is no time.
    fn corrected(cost: Self::Cost, factors: [f64; 2]) -> Option<Self::Cost>;

    /// The time of an outcome from the request to the result, without loading weights.
    fn elapsed(outcome: &Self::Outcome) -> Duration;

    /// Bytes of an outcome that the limit is compared with.
    fn measured_bytes(outcome: &Self::Outcome) -> u64;

    /// Bytes of an outcome, wherever they were held.
    fn all_measured(outcome: &Self::Outcome) -> u64 {
        Self::measured_bytes(outcome)
    }

    /// Time in seconds and memory in bytes of an outcome, as [`Self::priced`].
    fn measured(outcome: &Self::Outcome) -> [f64; 2];

    /// The outcome with other time and memory, as [`Self::priced`]. `None` if that is no time.
    fn remeasured(outcome: Self::Outcome, figures: [f64; 2]) -> Option<Self::Outcome>;

    /// The memory pool's work in an outcome.
    fn pool(outcome: &Self::Outcome) -> PoolStatistics;

    /// Attempts until an outcome.
    fn attempts(outcome: &Self::Outcome) -> u32;

    /// The part of a request that makes no sense, if any.
    fn fault_of_request(request: &Self::Request) -> Option<String>;

    /// The part of an offer that makes no sense, if any.
    fn fault_of_capabilities(capabilities: &Self::Capabilities) -> Option<String>;

    /// The part of both that makes no sense, if any.
    fn fault(request: &Self::Request, capabilities: &Self::Capabilities) -> Option<String> {
        Self::fault_of_request(request).or_else(|| Self::fault_of_capabilities(capabilities))
    }
}

/// The facts of a kind of work that all types have under the same names. `$time` is the time of
/// costs and outcomes that plans are compared by.
macro_rules! named_alike {
    ($time:ident) => {
        fn precision(plan: &Self::Plan) -> Precision {
            plan.precision
        }

        fn reason(plan: &Self::Plan) -> &str {
            &plan.reason
        }

        fn reason_mut(plan: &mut Self::Plan) -> &mut String {
            &mut plan.reason
        }

        fn options(plan: &Self::Plan) -> &Options {
            &plan.options
        }

        fn options_mut(plan: &mut Self::Plan) -> &mut Options {
            &mut plan.options
        }

        fn offered_options(capabilities: &Self::Capabilities) -> &[PlanOption] {
            &capabilities.options
        }

        fn dtypes(capabilities: &Self::Capabilities) -> &[Dtype] {
            &capabilities.dtypes
        }

        fn is_same_model(one: &Self::Request, other: &Self::Request) -> bool {
            one.model == other.model
        }

        fn memory_limit(request: &Self::Request) -> u64 {
            request.memory_limit
        }

        fn objective(request: &Self::Request) -> Objective {
            request.objective
        }

        fn limited(request: &Self::Request, memory_limit: u64, objective: Objective) -> Self::Request {
            let mut request = request.clone();
            (request.memory_limit, request.objective) = (memory_limit, objective);
            request
        }

        fn time(cost: &Self::Cost) -> Duration {
            cost.$time
        }

        fn priced(cost: &Self::Cost) -> [f64; 2] {
            [cost.$time.as_secs_f64(), cost.peak_bytes as f64]
        }

        fn corrected(mut cost: Self::Cost, [time, memory]: [f64; 2]) -> Option<Self::Cost> {
            cost.$time = Duration::try_from_secs_f64(cost.$time.as_secs_f64() * time).ok()?;
            cost.peak_bytes = (cost.peak_bytes as f64 * memory) as u64;
            Some(cost)
        }

        fn elapsed(outcome: &Self::Outcome) -> Duration {
            outcome.elapsed
        }

        fn measured(outcome: &Self::Outcome) -> [f64; 2] {
            [outcome.$time.as_secs_f64(), outcome.peak_bytes as f64]
        }

        fn remeasured(mut outcome: Self::Outcome, [seconds, bytes]: [f64; 2]) -> Option<Self::Outcome> {
            outcome.$time = Duration::try_from_secs_f64(seconds).ok()?;
            outcome.peak_bytes = bytes as u64;
            Some(outcome)
        }

        fn pool(outcome: &Self::Outcome) -> PoolStatistics {
            outcome.pool
        }

        fn attempts(outcome: &Self::Outcome) -> u32 {
            outcome.attempts
        }
    };
}

pub(crate) use named_alike;
