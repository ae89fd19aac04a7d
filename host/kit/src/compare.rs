//! Comparison of two policies' decisions, and of their predicted costs.
//!
//! Each request is decided by fresh instances, so that nothing depends on the order. Only plans
//! after the host's checks are compared: reasons may differ. A recovery is compared as long as both
//! policies got the same input.

mod facts;
mod records;

use std::{io, path::PathBuf, sync::Arc};

use serde::Serialize;
use thiserror::Error;
use tilewright_gate::{Call, golden};
use tilewright_plan::{Cost, Decision, Fallback, Plan, Planner, PolicyIdentity, Release, records::Damage};
use tilewright_policy::{LoadedPolicy, PolicyError};

pub use facts::Pricing;
use facts::RequestPrices;
pub use records::{RecordedRequest, read};

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
    #[error("records {}: there are none in the file: write some with 'tilewright decode --record FILE' or 'tilewright history export FILE'", path.display())]
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
    /// Its name in the plan.
    pub name: &'static str,
    /// A's value.
    pub a: String,
    /// B's value.
    pub b: String,
}

/// A policy's decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The plan after checking.
    pub plan: Plan,
    /// Set if it is the fallback's.
    pub fallback: Option<Fallback>,
    /// Its predicted cost; null if unknown.
    pub estimate: Option<Cost>,
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
    let requests = golden::set();
    let both = [a, b].map(|contender| contender.limit_time(requests.len()));
    let [a, b] = [(a, &both[0]), (b, &both[1])].map(|(contender, policy)| Contender { policy, ..contender });
    let mut comparison = Comparison::new(a, b, "golden".into())?;
    for golden in requests {
        comparison.requests += 1;
        let [first, second] = [a, b].map(|contender| {
            let mut heard = Vec::new();
            let mut policy = contender.policy.configure(contender.settings)?;
            golden.play(&mut policy, |_, turn| heard.push(turn));
            Ok::<_, PolicyError>(heard)
        });
        let facts = RequestPrices::by_formula(golden.costs());
        let mut has_same_inputs = true;
        for (one, other) in first?.into_iter().zip(second?) {
            // The inputs differ from here on: the failure, or the result of another plan.
            if one.attempts != other.attempts || !has_same_inputs {
                break;
            }
            let plan = |turn: &golden::CallResult| turn.decision.as_ref().map(|decision| decision.plan.clone());
            has_same_inputs = !golden.learns() || plan(&one) == plan(&other);
            if let (Some(one), Some(other), call) = (one.decision, other.decision, one.call) {
                comparison.add(&golden.name, call, golden.request.memory_limit, &facts, one, other);
            }
        }
        both.iter().try_for_each(LoadedPolicy::check_time_budget)?;
    }
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
    requests: &[RecordedRequest],
) -> Result<Comparison, CompareError> {
    let both = [a, b].map(|contender| contender.limit_time(requests.len()));
    let [a, b] = [(a, &both[0]), (b, &both[1])].map(|(contender, policy)| Contender { policy, ..contender });
    let mut comparison = Comparison::new(a, b, from.into())?;
    for recorded in requests {
        comparison.requests += 1;
        let RecordedRequest { request, attempts, .. } = recorded;
        let costs = Arc::new(recorded.costs());
        let decide = |contender: Contender<'_>| -> Result<Decision, PolicyError> {
            let mut policy = contender.policy.configure(contender.settings)?;
            Ok(policy.decide(&recorded.question(), costs.clone()))
        };
        let call = if attempts.is_empty() { Call::Decide } else { Call::Recover };
        let (one, other) = (decide(a)?, decide(b)?);
        both.iter().try_for_each(LoadedPolicy::check_time_budget)?;
        comparison.add(&recorded.name, call, request.memory_limit, &costs, one, other);
    }
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

    fn add(&mut self, request: &str, call: Call, limit: u64, facts: &RequestPrices, a: Decision, b: Decision) {
        self.compared += 1;
        let fields = fields(&a.plan, &b.plan);
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
            let fits = estimate.map(|cost| cost.peak_bytes <= limit);
            Side { plan: decision.plan, fallback: decision.fallback, estimate, fits, pricing }
        });
        let ratio = |of: fn(&Cost) -> f64| {
            let (one, other) = (of(a.estimate.as_ref()?), of(b.estimate.as_ref()?));
            (one > 0.0).then(|| other / one)
        };
        let time_ratio = ratio(|cost| cost.elapsed.as_secs_f64());
        let memory_ratio = ratio(|cost| cost.peak_bytes as f64);
        self.differences.push(Difference { request: request.into(), call, fields, a, b, time_ratio, memory_ratio });
    }

    fn sum_up(mut self) -> Self {
        let mut worth = DifferenceTotals::default();
        for Difference { a, b, .. } in &self.differences {
            if let (Some(one), Some(other)) = (&a.estimate, &b.estimate) {
                worth.priced += 1;
                worth.a_ms += one.elapsed.as_secs_f64() * 1e3;
                worth.b_ms += other.elapsed.as_secs_f64() * 1e3;
                worth.a_bytes = worth.a_bytes.saturating_add(one.peak_bytes);
                worth.b_bytes = worth.b_bytes.saturating_add(other.peak_bytes);
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

/// The parts of two plans that differ; the reason is none.
fn fields(a: &Plan, b: &Plan) -> Vec<Field> {
    let word = |release: Release| match release {
        Release::Keep => "keep",
        Release::AtEnd => "at-end",
        Release::EachStep => "each-step",
    };
    let rows: [(&'static str, String, String); 8] = [
        ("space", a.space.to_string(), b.space.to_string()),
        ("time", a.time.to_string(), b.time.to_string()),
        ("batch", a.batch.to_string(), b.batch.to_string()),
        ("precision", a.precision.to_string(), b.precision.to_string()),
        ("layout", a.layout.to_string(), b.layout.to_string()),
        ("release", word(a.release).into(), word(b.release).into()),
        ("offload", a.offload.to_string(), b.offload.to_string()),
        ("prefetch", a.prefetch.to_string(), b.prefetch.to_string()),
    ];
    rows.into_iter().filter(|(_, a, b)| a != b).map(|(name, a, b)| Field { name, a, b }).collect()
}

#[cfg(test)]
mod tests;
