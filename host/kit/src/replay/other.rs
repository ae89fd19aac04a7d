//! Another policy before the same questions. What its plans are worth is said only from like and like: both measured, or both priced by
//! the host. Where the policy needed a price that no record holds, what it would have decided is not known.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;
use tilewright_plan::{Plan, exchange::Price, exchange::RecordedQuestion};
use tilewright_statistics::median;

use super::{
    Makes, Recorded, ReplayError, Spoken, Work,
    again::{call_again, reason},
    bare,
    facts::Prices,
};

/// What the two plans' worth is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Both were carried out on this device, for this model at this size: medians of time, the most held.
    Measured,
    /// The host priced both, for this model at this size on this device.
    Estimated,
}

/// What a plan is worth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worth {
    /// Time.
    pub elapsed_ms: f64,
    /// The most held, in bytes.
    pub peak_bytes: u64,
}

/// What can be said of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherVerdict {
    /// The plan that was carried out then.
    Same,
    /// Another plan, and what it is worth is known.
    Compared,
    /// Another plan, and the records don't tell what it is worth.
    NotPriced,
    /// What it would have decided is not known: it asked for what the records don't hold, or ran into the limit of time.
    NotKnown,
}

/// A decision by another policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OtherRow {
    /// Of its record, counted from 1.
    pub line: u64,
    /// Which session.
    pub session: String,
    /// Which call of it.
    pub sequence: u64,
    /// `decide` or `recover`.
    pub call: &'static str,
    /// What can be said.
    pub verdict: OtherVerdict,
    /// What was carried out.
    pub recorded: Plan,
    /// What the other policy came to; with prices missing, only what it came to without them.
    pub other: Plan,
    /// Why the host's default stands in for it, where it does.
    pub fallback: Option<String>,
    /// What the two are known from.
    pub basis: Option<Basis>,
    /// What the recorded plan is worth.
    pub recorded_worth: Option<Worth>,
    /// What the other is worth.
    pub other_worth: Option<Worth>,
    /// Prices that it asked for and no record holds.
    pub missing_prices: usize,
    /// It asked for trials and the record holds none.
    pub missing_trials: bool,
}

/// How many of each, and what the difference comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OtherTotals {
    /// Records that were read.
    pub records: usize,
    /// Those made without `--record full`: only their outcomes count.
    pub ordinary: usize,
    /// Decisions and recoveries.
    pub decisions: usize,
    /// The same plan.
    pub same: usize,
    /// Another plan of known worth.
    pub compared: usize,
    /// Another plan of unknown worth.
    pub not_priced: usize,
    /// Nothing known.
    pub not_known: usize,
    /// The share of decisions for which nothing can be said, from 0 to 1.
    pub nothing_said: f64,
    /// Of the decisions compared: time of the other plans less that of the recorded ones, where both were measured.
    pub measured_difference_ms: f64,
    /// The same where both were priced.
    pub estimated_difference_ms: f64,
    /// Time of the recorded plans among those compared.
    pub compared_ms: f64,
}

/// What another policy would have decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Other {
    /// Every decision, session by session.
    pub decisions: Vec<OtherRow>,
    /// Calls of `learn` that failed.
    pub failed_to_learn: usize,
    /// How many of each.
    pub totals: OtherTotals,
}

/// What the records tell of one kind of work.
#[derive(Default)]
struct Known {
    prices: Arc<Prices>,
    /// Nanoseconds, and bytes.
    measured: HashMap<Plan, Vec<(u64, u64)>>,
}

/// Asks another policy every recorded question, as it was recorded: what failed then and what was learnt then is told to it, whatever it would have
/// chosen itself.
///
/// # Errors
/// [`ReplayError::Policy`] where it can't be put to work.
pub fn other(recorded: &Recorded, makes: &mut Makes<'_>) -> Result<Other, ReplayError> {
    let known = Library::of(recorded);
    let (mut decisions, mut failed_to_learn) = (Vec::new(), 0);
    for session in &recorded.sessions {
        let mut planner = makes(&session.policy).map_err(ReplayError::Policy)?;
        for Spoken { line, call } in &session.calls {
            let known = known.about(&Work::of(call.stage(), &call.request, &call.device));
            let (reply, missing) = call_again(planner.as_mut(), call, known.prices.clone());
            let (Some(now), Some(then)) = (reply.plan.clone(), call.reply.plan.clone()) else {
                failed_to_learn += usize::from(reply.fallback.is_some());
                continue;
            };
            debug_assert!(!matches!(call.question, RecordedQuestion::Learn { .. }));
            let prices = |plan: &Plan| known.price(plan, &call.heard.estimates);
            let worth = known.measured(&then).zip(known.measured(&now)).map(|pair| (Basis::Measured, pair));
            let worth = worth.or_else(|| Some((Basis::Estimated, prices(&then).zip(prices(&now))?)));
            let certain = missing.prices.is_empty()
                && !missing.trials
                && reason(&reply) != Some(tilewright_plan::FallbackReason::Timeout);
            let verdict = match (certain, bare(&now) == bare(&then), &worth) {
                (false, ..) => OtherVerdict::NotKnown,
                (true, true, _) => OtherVerdict::Same,
                (true, false, Some(_)) => OtherVerdict::Compared,
                (true, false, None) => OtherVerdict::NotPriced,
            };
            let worth = worth.filter(|_| matches!(verdict, OtherVerdict::Same | OtherVerdict::Compared));
            decisions.push(OtherRow {
                line: *line,
                session: session.name.clone(),
                sequence: call.sequence,
                call: call.question.name(),
                verdict,
                recorded: then,
                other: now,
                fallback: reply.fallback.map(|fallback| format!("{}: {}", fallback.reason, fallback.detail)),
                basis: worth.map(|(basis, _)| basis),
                recorded_worth: worth.map(|(_, (recorded, _))| recorded),
                other_worth: worth.map(|(_, (_, other))| other),
                missing_prices: missing.prices.len(),
                missing_trials: missing.trials,
            });
        }
    }
    let totals = totals(recorded, &decisions);
    Ok(Other { decisions, failed_to_learn, totals })
}

fn totals(recorded: &Recorded, decisions: &[OtherRow]) -> OtherTotals {
    let count = |verdict| decisions.iter().filter(|row| row.verdict == verdict).count();
    let mut totals = OtherTotals {
        records: recorded.records,
        ordinary: recorded.ordinary,
        decisions: decisions.len(),
        same: count(OtherVerdict::Same),
        compared: count(OtherVerdict::Compared),
        not_priced: count(OtherVerdict::NotPriced),
        not_known: count(OtherVerdict::NotKnown),
        ..OtherTotals::default()
    };
    totals.nothing_said = (totals.not_priced + totals.not_known) as f64 / decisions.len().max(1) as f64;
    for row in decisions.iter().filter(|row| row.verdict == OtherVerdict::Compared) {
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

/// What is known, by kind of work. Records are of a handful of kinds.
struct Library(Vec<(Work, Known)>);

impl Library {
    fn of(recorded: &Recorded) -> Self {
        let mut library = Self(Vec::new());
        for found in &recorded.found {
            let known = library.entry(&found.work);
            known.measured.entry(found.plan.clone()).or_default().push((found.elapsed_ns, found.peak_bytes));
        }
        for Spoken { call, .. } in recorded.sessions.iter().flat_map(|session| &session.calls) {
            let known = library.entry(&Work::of(call.stage(), &call.request, &call.device));
            let prices = Arc::make_mut(&mut known.prices);
            // A device that was measured anew has new prices: the latest hold.
            prices.extend(call.heard.estimates.iter().map(|heard| (bare(&heard.plan), heard.price.clone())));
        }
        library
    }

    fn entry(&mut self, work: &Work) -> &mut Known {
        let place = self.0.iter().position(|(known, _)| known == work).unwrap_or_else(|| {
            self.0.push((work.clone(), Known::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    fn about(&self, work: &Work) -> &Known {
        static NOTHING: std::sync::LazyLock<Known> = std::sync::LazyLock::new(Known::default);
        self.0.iter().find(|(known, _)| known == work).map_or(&NOTHING, |(_, known)| known)
    }
}

impl Known {
    fn measured(&self, plan: &Plan) -> Option<Worth> {
        let found = self.measured.get(&bare(plan))?;
        let times: Vec<f64> = found.iter().map(|(elapsed_ns, _)| *elapsed_ns as f64 / 1e6).collect();
        let elapsed_ms = median(&times)?;
        Some(Worth { elapsed_ms, peak_bytes: found.iter().map(|(_, peak)| *peak).max()? })
    }

    /// As this call heard it, or else any other about the same work.
    fn price(&self, plan: &Plan, heard: &[tilewright_plan::exchange::Estimate]) -> Option<Worth> {
        let plan = bare(plan);
        let own = heard.iter().find(|estimate| bare(&estimate.plan) == plan).map(|estimate| &estimate.price);
        match own.or_else(|| self.prices.get(&plan))? {
            Price::Cost(cost) => Some(Worth { elapsed_ms: cost.elapsed_ns as f64 / 1e6, peak_bytes: cost.peak_bytes }),
            Price::Error(_) => None,
        }
    }
}
