//! Comparison of two policies' decisions, and of their predicted costs.
//!
//! Each request is decided by fresh instances, so that nothing depends on the order. Only plans
//! after the host's checks are compared: reasons may differ. A recovery is compared as long as both
//! policies got the same input.

mod compared;
mod facts;
mod records;

use std::{io, path::PathBuf, sync::Arc};

use serde::Serialize;
use thiserror::Error;
use tilewright_gate::{Call, golden, work::Judged};
use tilewright_plan::{
    AnyPlan, Decision, Fallback, Planner, PolicyIdentity, Work, any, of_any, of_each, of_kinds, records::Damage,
};
use tilewright_policy::{LoadedPolicy, Policy, PolicyError};

pub(crate) use compared::Compared;
pub use facts::Pricing;
use facts::RequestPrices;
pub use records::{RecordedRequest, RecordedRequests, read};

/// The reason why policies can't be compared.
#[derive(Debug, Error)]
pub enum CompareError {
    /// A policy can't be loaded.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The records can't be read.
    #[error("records {}: can't be read: {}", path.display(), source)]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line is not a record.
    #[error("records {}: {damage}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, and its fault.
        damage: Damage,
    },
    /// There is nothing to compare on.
    #[error("records {}: there are none in the file: record some decisions, or export the history", path.display())]
    NoRecords {
        /// The file.
        path: PathBuf,
    },
}

/// A policy with its settings.
#[derive(Clone, Copy)]
pub struct Contender<'a> {
    /// Loaded.
    pub policy: &'a LoadedPolicy,
    /// As `KEY` and `VALUE`; the others keep their defaults.
    pub settings: &'a [(String, String)],
}

/// A part of a plan that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// The part's name in the plan.
    pub name: &'static str,
    /// A's value.
    pub a: String,
    /// B's value.
    pub b: String,
}

/// The cost of a plan of any kind of work: of a sample that of a step.
pub type AnyCost = any!(CostOf);

type CostOf<W> = <W as Work>::Cost;

/// Milliseconds of a price, of a text encoder with loading, and the bytes that a limit is compared
/// with.
fn figures(cost: &AnyCost) -> (f64, u64) {
    of_any!(cost, cost: W => (W::time_with_loading(cost).as_secs_f64() * 1e3, W::held_bytes(cost)))
}

/// A policy's decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The plan after checking.
    pub plan: AnyPlan,
    /// Set if it is the fallback's.
    pub fallback: Option<Fallback>,
    /// The plan's predicted cost; null if unknown.
    pub estimate: Option<AnyCost>,
    /// True if that is within the memory limit.
    pub fits: Option<bool>,
    /// The source of the price.
    pub pricing: Pricing,
}

/// A request that is decided differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The request.
    pub request: String,
    /// The call.
    pub call: Call,
    /// The parts of the plan that differ.
    pub fields: Vec<Field>,
    /// A's decision.
    pub a: Side,
    /// B's decision.
    pub b: Side,
    /// Expected time of B over A.
    pub time_ratio: Option<f64>,
    /// Expected memory of B over A.
    pub memory_ratio: Option<f64>,
}

/// The sum of all differences whose plans both have a price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DifferenceTotals {
    /// Differences with both prices.
    pub priced: u32,
    /// Milliseconds of A's plans together, and of B's.
    pub a_ms: f64,
    /// See `a_ms`.
    pub b_ms: f64,
    /// Bytes of A's peaks together, and of B's.
    pub a_bytes: u64,
    /// See `a_bytes`.
    pub b_bytes: u64,
    /// B's time together over A's; large requests count most.
    pub time_ratio: Option<f64>,
    /// B's memory together over A's.
    pub memory_ratio: Option<f64>,
    /// The geometric mean of the time ratios: every request counts alike.
    pub typical_time_ratio: Option<f64>,
    /// The same of memory.
    pub typical_memory_ratio: Option<f64>,
    /// Differences in which A's plan is over the limit and B's is not.
    pub only_a_over_limit: u32,
    /// The other way round.
    pub only_b_over_limit: u32,
}

/// The number of compared plans by the source of their price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prices {
    /// From the records.
    pub recorded: u32,
    /// By formula, scaled by the record's prices of other plans.
    pub scaled: u32,
    /// By formula.
    pub formula: u32,
}

/// Two policies beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// A's identity.
    pub a: PolicyIdentity,
    /// B's identity.
    pub b: PolicyIdentity,
    /// `golden`, or the file of the records.
    pub requests_from: String,
    /// Requests.
    pub requests: u32,
    /// Decisions that were compared.
    pub compared: u32,
    /// Equal decisions.
    pub alike: u32,
    /// The sum of the differences.
    pub worth: DifferenceTotals,
    /// The sources of the prices of differing plans.
    pub prices: Prices,
    /// The differences, in the order of the requests.
    pub differences: Vec<Difference>,
}

/// Compares two policies on the golden set.
///
/// # Errors
/// [`CompareError::Policy`] if one can't be loaded.
pub fn on_golden(a: Contender<'_>, b: Contender<'_>) -> Result<Comparison, CompareError> {
    let golden = of_kinds!(W => W::golden());
    let count = of_each!(&golden, requests => requests.len()).into_iter().sum();
    let both = [a, b].map(|contender| contender.limit_time(count));
    let [a, b] = [(a, &both[0]), (b, &both[1])].map(|(contender, policy)| Contender { policy, ..contender });
    let mut comparison = Comparison::new(a, b, "golden".into())?;
    of_each!(&golden, requests => comparison.play(requests, [a, b])?);
    Ok(comparison.sum_up())
}

/// Compares two policies on recorded requests; `from` names them in the comparison.
///
/// # Errors
/// [`CompareError::Policy`] if one can't be loaded.
pub fn on_records(
    a: Contender<'_>,
    b: Contender<'_>,
    from: &str,
    requests: &RecordedRequests,
) -> Result<Comparison, CompareError> {
    let count = of_each!(requests, requests => requests.len()).into_iter().sum();
    let both = [a, b].map(|contender| contender.limit_time(count));
    let [a, b] = [(a, &both[0]), (b, &both[1])].map(|(contender, policy)| Contender { policy, ..contender });
    let mut comparison = Comparison::new(a, b, from.into())?;
    of_each!(requests, requests => comparison.ask(requests, [a, b])?);
    Ok(comparison.sum_up())
}

impl Contender<'_> {
    /// The policy with processor time for this number of requests.
    fn limit_time(&self, requests: usize) -> LoadedPolicy {
        self.policy.clone().with_time_budget(self.policy.inspection().limits.time_budget(requests))
    }
}

impl Comparison {
    fn new(a: Contender<'_>, b: Contender<'_>, requests_from: String) -> Result<Self, PolicyError> {
        let who = |contender: Contender<'_>| {
            Ok::<_, PolicyError>(contender.policy.configure(contender.settings)?.identity().clone())
        };
        Ok(Self {
            a: who(a)?,
            b: who(b)?,
            requests_from,
            requests: 0,
            compared: 0,
            alike: 0,
            worth: DifferenceTotals::default(),
            prices: Prices::default(),
            differences: Vec::new(),
        })
    }

    /// Compares the policies on golden requests, if both answer their kind: the host's own plans
    /// need no comparison.
    fn play<W: Compared>(
        &mut self,
        requests: &[golden::GoldenRequest<W>],
        both: [Contender<'_>; 2],
    ) -> Result<(), CompareError> {
        let answers = |contender: &Contender<'_>| {
            contender.policy.description().stages.iter().any(|stage| W::STAGES.contains(stage))
        };
        if !both.iter().all(answers) {
            return Ok(());
        }
        for golden in requests {
            self.requests += 1;
            let [first, second] = both.map(|contender| {
                let mut heard = Vec::new();
                let mut policy = contender.policy.configure(contender.settings)?;
                golden.play(&mut policy as &mut dyn Planner<W>, |_, turn| heard.push(turn));
                Ok::<_, PolicyError>(heard)
            });
            let facts = RequestPrices::by_formula(golden.costs());
            let mut has_same_inputs = true;
            for (one, other) in first?.into_iter().zip(second?) {
                // The inputs differ from here on: the failure, or the result of another plan.
                if one.attempts != other.attempts || !has_same_inputs {
                    break;
                }
                let plan = |turn: &golden::CallResult<W>| turn.decision.as_ref().map(|decision| decision.plan.clone());
                has_same_inputs = !golden.learns() || plan(&one) == plan(&other);
                if let (Some(one), Some(other), call) = (one.decision, other.decision, one.call) {
                    self.add((&golden.name, call), W::memory_limit(&golden.request), &facts, [one, other]);
                }
            }
            both.iter().try_for_each(|contender| contender.policy.check_time_budget())?;
        }
        Ok(())
    }

    /// Compares the policies on recorded requests.
    fn ask<W: Compared>(
        &mut self,
        requests: &[RecordedRequest<W>],
        both: [Contender<'_>; 2],
    ) -> Result<(), CompareError> {
        for recorded in requests {
            self.requests += 1;
            let costs = Arc::new(recorded.costs());
            let decide = |contender: Contender<'_>| -> Result<Decision<W>, PolicyError> {
                let mut policy: Policy = contender.policy.configure(contender.settings)?;
                Ok((&mut policy as &mut dyn Planner<W>).decide(&recorded.question(), costs.clone()))
            };
            let call = if recorded.attempts.is_empty() { Call::Decide } else { Call::Recover };
            let decisions = [decide(both[0])?, decide(both[1])?];
            both.iter().try_for_each(|contender| contender.policy.check_time_budget())?;
            self.add((&recorded.name, call), W::memory_limit(&recorded.request), &costs, decisions);
        }
        Ok(())
    }

    fn add<W: Compared>(
        &mut self,
        (request, call): (&str, Call),
        limit: u64,
        facts: &RequestPrices<W>,
        [a, b]: [Decision<W>; 2],
    ) {
        self.compared += 1;
        let mut fields = W::fields(&a.plan, &b.plan);
        fields.extend(compared::options::<W>(&a.plan, &b.plan));
        if fields.is_empty() {
            self.alike += 1;
            return;
        }
        let [a, b] = [a, b].map(|decision| {
            let (estimate, pricing) = facts.price(&decision.plan);
            match pricing {
                Pricing::Recorded => self.prices.recorded += 1,
                Pricing::Scaled => self.prices.scaled += 1,
                Pricing::Formula => self.prices.formula += 1,
            }
            let estimate = estimate.map(|cost| W::any(cost));
            let fits = estimate.map(|cost| figures(&cost).1 <= limit);
            Side { plan: decision.plan.into(), fallback: decision.fallback, estimate, fits, pricing }
        });
        let ratio = |of: fn(&AnyCost) -> f64| {
            let (one, other) = (of(a.estimate.as_ref()?), of(b.estimate.as_ref()?));
            (one > 0.0).then(|| other / one)
        };
        let time_ratio = ratio(|cost| figures(cost).0);
        let memory_ratio = ratio(|cost| figures(cost).1 as f64);
        self.differences.push(Difference { request: request.into(), call, fields, a, b, time_ratio, memory_ratio });
    }

    fn sum_up(mut self) -> Self {
        let mut worth = DifferenceTotals::default();
        for Difference { a, b, .. } in &self.differences {
            if let (Some(one), Some(other)) = (&a.estimate, &b.estimate) {
                let ((a_ms, a_bytes), (b_ms, b_bytes)) = (figures(one), figures(other));
                worth.priced += 1;
                worth.a_ms += a_ms;
                worth.b_ms += b_ms;
                worth.a_bytes = worth.a_bytes.saturating_add(a_bytes);
                worth.b_bytes = worth.b_bytes.saturating_add(b_bytes);
            }
            worth.only_a_over_limit += u32::from((a.fits, b.fits) == (Some(false), Some(true)));
            worth.only_b_over_limit += u32::from((a.fits, b.fits) == (Some(true), Some(false)));
        }
        worth.time_ratio = (worth.a_ms > 0.0).then(|| worth.b_ms / worth.a_ms);
        worth.memory_ratio = (worth.a_bytes > 0).then(|| worth.b_bytes as f64 / worth.a_bytes as f64);
        worth.typical_time_ratio = typical(self.differences.iter().filter_map(|difference| difference.time_ratio));
        worth.typical_memory_ratio = typical(self.differences.iter().filter_map(|difference| difference.memory_ratio));
        self.worth = worth;
        self
    }
}

/// The geometric mean.
fn typical(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) =
        ratios.filter(|ratio| *ratio > 0.0).fold((0.0, 0u32), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests;
