//! Another policy with the same questions. Costs are compared only if both plans were measured, or
//! both were priced by the host. If the policy needed a price that no record holds, its decision is
//! unknown.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;
use tilewright_plan::{
    AnyPlan,
    exchange::{Estimate, RecordedQuestion},
};
use tilewright_statistics::median;

use super::{
    MakePlanner, Recorded, RecordedCall, ReplayError, Replayed, Work,
    facts::Prices,
    same_policy::{call_again, reason},
};

/// The source of both plans' costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Both were carried out on this device, for this model at this size: median time, highest
    /// memory.
    Measured,
    /// The host priced both, for this model at this size on this device.
    Estimated,
}

/// The cost of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanCost {
    /// The time; of a sample, that of a step.
    pub elapsed_ms: f64,
    /// The highest memory use, in bytes.
    pub peak_bytes: u64,
}

/// The result of comparing a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanVerdict {
    /// The recorded plan.
    Same,
    /// Another plan, with a known cost.
    Compared,
    /// Another plan, without a cost in the records.
    NotPriced,
    /// Unknown: it asked for something that the records don't hold, or timed out.
    NotKnown,
}

/// A decision by another policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OtherPolicyRow {
    /// The line of its record, counted from 1.
    pub line: u64,
    /// The session.
    pub session: String,
    /// The number of the call in the session.
    pub sequence: u64,
    /// `decide` or `recover`.
    pub call: &'static str,
    /// The result of the comparison.
    pub verdict: PlanVerdict,
    /// The plan that was carried out.
    pub recorded: AnyPlan,
    /// The other policy's plan; if prices are missing, its plan without them.
    pub other: AnyPlan,
    /// The reason of a fallback, if there was one.
    pub fallback: Option<String>,
    /// The source of both costs.
    pub basis: Option<Basis>,
    /// The cost of the recorded plan.
    pub recorded_worth: Option<PlanCost>,
    /// The cost of the other plan.
    pub other_worth: Option<PlanCost>,
    /// Prices that it asked for and no record holds.
    pub missing_prices: usize,
    /// True if it asked for trials and the record holds none.
    pub missing_trials: bool,
}

/// The number of decisions with each result, and the sum of the differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OtherPolicyTotals {
    /// Records that were read.
    pub records: usize,
    /// Records made without `--record full`: only their outcomes count.
    pub ordinary: usize,
    /// Decisions and recoveries.
    pub decisions: usize,
    /// The same plan.
    pub same: usize,
    /// Another plan of known cost.
    pub compared: usize,
    /// Another plan of unknown cost.
    pub not_priced: usize,
    /// Unknown.
    pub not_known: usize,
    /// The share of decisions without a known result, from 0 to 1.
    pub nothing_said: f64,
    /// Time of the other plans minus that of the recorded ones, over the decisions compared, if
    /// both were measured.
    pub measured_difference_ms: f64,
    /// The same, if both were priced.
    pub estimated_difference_ms: f64,
    /// Time of the recorded plans among those compared.
    pub compared_ms: f64,
}

/// The report on another policy's decisions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OtherPolicyReport {
    /// Every decision, session by session.
    pub decisions: Vec<OtherPolicyRow>,
    /// Calls of `learn` that failed.
    pub failed_to_learn: usize,
    /// The number of decisions with each result.
    pub totals: OtherPolicyTotals,
}

impl OtherPolicyReport {
    /// The report on the decisions of both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.decisions.extend(other.decisions);
        let (records, ordinary) =
            (self.totals.records + other.totals.records, self.totals.ordinary + other.totals.ordinary);
        self.totals = totals([records, ordinary], &self.decisions);
        self.failed_to_learn += other.failed_to_learn;
        self
    }
}

/// The known costs for one kind of work.
struct WorkCosts<W: Replayed> {
    prices: Arc<Prices<W>>,
    measured: HashMap<W::Plan, Vec<W::Outcome>>,
}

impl<W: Replayed> Default for WorkCosts<W> {
    fn default() -> Self {
        Self { prices: Arc::default(), measured: HashMap::new() }
    }
}

/// Asks another policy every recorded question, as it was recorded: it gets the recorded failures
/// and outcomes, not those of its own plans.
///
/// # Errors
/// [`ReplayError::Policy`] if it can't be put to work.
pub fn replay_other_policy<W: Replayed>(
    recorded: &Recorded<W>,
    make_planner: &mut MakePlanner<'_, W>,
) -> Result<OtherPolicyReport, ReplayError> {
    let known = KnownWork::of(recorded);
    let (mut decisions, mut failed_to_learn) = (Vec::new(), 0);
    for session in &recorded.sessions {
        let mut planner = make_planner(&session.policy).map_err(ReplayError::Policy)?;
        for RecordedCall { line, call } in &session.calls {
            let nothing = WorkCosts::default();
            let known = known.about(&Work::of::<W>(call.stage(), &call.request, &call.device)).unwrap_or(&nothing);
            let (reply, missing) = call_again(planner.as_mut(), call, known.prices.clone());
            let (Some(now), Some(then)) = (reply.plan.clone(), call.reply.plan.clone()) else {
                failed_to_learn += usize::from(reply.fallback.is_some());
                continue;
            };
            debug_assert!(!matches!(call.question, RecordedQuestion::Learn { .. }));
            let prices = |plan: &W::Plan| known.price(plan, &call.heard.estimates);
            let worth =
                known.find_measurement(&then).zip(known.find_measurement(&now)).map(|pair| (Basis::Measured, pair));
            let worth = worth.or_else(|| Some((Basis::Estimated, prices(&then).zip(prices(&now))?)));
            let certain = missing.prices.is_empty()
                && !missing.trials
                && reason(&reply) != Some(tilewright_plan::FallbackReason::Timeout);
            let verdict = match (certain, W::is_same_work(&now, &then), &worth) {
                (false, ..) => PlanVerdict::NotKnown,
                (true, true, _) => PlanVerdict::Same,
                (true, false, Some(_)) => PlanVerdict::Compared,
                (true, false, None) => PlanVerdict::NotPriced,
            };
            let worth = worth.filter(|_| matches!(verdict, PlanVerdict::Same | PlanVerdict::Compared));
            decisions.push(OtherPolicyRow {
                line: *line,
                session: session.name.clone(),
                sequence: call.sequence,
                call: call.question.name(),
                verdict,
                recorded: then.into(),
                other: now.into(),
                fallback: reply.fallback.map(|fallback| fallback.to_string()),
                basis: worth.map(|(basis, _)| basis),
                recorded_worth: worth.map(|(_, (recorded, _))| recorded),
                other_worth: worth.map(|(_, (_, other))| other),
                missing_prices: missing.prices.len(),
                missing_trials: missing.trials,
            });
        }
    }
    let totals = totals([recorded.records, recorded.ordinary], &decisions);
    Ok(OtherPolicyReport { decisions, failed_to_learn, totals })
}

fn totals([records, ordinary]: [usize; 2], decisions: &[OtherPolicyRow]) -> OtherPolicyTotals {
    let count = |verdict| decisions.iter().filter(|row| row.verdict == verdict).count();
    let mut totals = OtherPolicyTotals {
        records,
        ordinary,
        decisions: decisions.len(),
        same: count(PlanVerdict::Same),
        compared: count(PlanVerdict::Compared),
        not_priced: count(PlanVerdict::NotPriced),
        not_known: count(PlanVerdict::NotKnown),
        ..OtherPolicyTotals::default()
    };
    totals.nothing_said = (totals.not_priced + totals.not_known) as f64 / decisions.len().max(1) as f64;
    for row in decisions.iter().filter(|row| row.verdict == PlanVerdict::Compared) {
        let (Some(basis), Some(then), Some(now)) = (row.basis, row.recorded_worth, row.other_worth) else { continue };
        let sum = match basis {
            Basis::Measured => &mut totals.measured_difference_ms,
            Basis::Estimated => &mut totals.estimated_difference_ms,
        };
        *sum += now.elapsed_ms - then.elapsed_ms;
        totals.compared_ms += then.elapsed_ms;
    }
    totals
}

/// The known costs, by kind of work. Records have a handful of kinds.
struct KnownWork<W: Replayed>(Vec<(Work, WorkCosts<W>)>);

impl<W: Replayed> KnownWork<W> {
    fn of(recorded: &Recorded<W>) -> Self {
        let mut known_work = Self(Vec::new());
        for found in &recorded.found {
            let known = known_work.entry(&found.work);
            known.measured.entry(found.plan.clone()).or_default().push(found.outcome);
        }
        for RecordedCall { call, .. } in recorded.sessions.iter().flat_map(|session| &session.calls) {
            let known = known_work.entry(&Work::of::<W>(call.stage(), &call.request, &call.device));
            let prices = Arc::make_mut(&mut known.prices);
            // A device that was measured again has new prices: the latest count.
            let heard = call.heard.estimates.iter();
            prices.extend(heard.map(|heard| (W::without_reason(&heard.plan), heard.price.clone())));
        }
        known_work
    }

    fn entry(&mut self, work: &Work) -> &mut WorkCosts<W> {
        let place = self.0.iter().position(|(known, _)| known == work).unwrap_or_else(|| {
            self.0.push((work.clone(), WorkCosts::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    fn about(&self, work: &Work) -> Option<&WorkCosts<W>> {
        self.0.iter().find(|(known, _)| known == work).map(|(_, known)| known)
    }
}

/// Seconds and bytes.
fn plan_cost([seconds, bytes]: [f64; 2]) -> PlanCost {
    PlanCost { elapsed_ms: seconds * 1e3, peak_bytes: bytes as u64 }
}

impl<W: Replayed> WorkCosts<W> {
    fn find_measurement(&self, plan: &W::Plan) -> Option<PlanCost> {
        let found: Vec<[f64; 2]> = self.measured.get(&W::without_reason(plan))?.iter().map(W::measured).collect();
        let times: Vec<f64> = found.iter().map(|[seconds, _]| *seconds).collect();
        let seconds = median(&times)?;
        Some(plan_cost([seconds, found.iter().map(|[_, bytes]| *bytes).fold(0.0, f64::max)]))
    }

    /// The price in this call, or else in any other about the same work.
    fn price(&self, plan: &W::Plan, heard: &[Estimate<W>]) -> Option<PlanCost> {
        let plan = W::without_reason(plan);
        let own = heard.iter().find(|estimate| W::is_same_work(&estimate.plan, &plan)).map(|estimate| &estimate.price);
        let cost = own.or_else(|| self.prices.get(&plan))?.cost().ok()?;
        Some(plan_cost(W::priced(&cost)))
    }
}
