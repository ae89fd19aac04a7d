//! The same policy once more: every call must be equal to its record.

use std::sync::Arc;

use serde::Serialize;
use tilewright_plan::{
    Fallback, FallbackReason, Planner, Question,
    exchange::{Call, RecordedQuestion, Reply},
};

use super::{
    MakePlanner, Recorded, RecordedCall, ReplayError, Replayed, Session,
    facts::{Missing, Prices, RecordedAnswers},
};

/// Prices that a note names.
const NAMED: usize = 2;

/// The result of comparing a call with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallVerdict {
    /// Equal in every respect.
    Equal,
    /// Different in some respect.
    Different,
    /// Unknown: a timeout decided, or earlier calls are not in the file.
    NotReproducible,
}

/// A respect in which a call differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// `answer`, `plan`, `adjusted`, `fallback` or `fuel`.
    pub what: &'static str,
    /// The recorded value.
    pub recorded: String,
    /// The replayed value.
    pub replayed: String,
}

/// A call that was made again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SamePolicyRow {
    /// The line of its record, counted from 1.
    pub line: u64,
    /// The session.
    pub session: String,
    /// The number of the call in the session.
    pub sequence: u64,
    /// `decide`, `recover` or `learn`.
    pub call: &'static str,
    /// The result of the comparison.
    pub verdict: CallVerdict,
    /// The differences.
    pub differences: Vec<Difference>,
    /// The reason, as far as it is known.
    pub note: Option<String>,
}

/// The number of calls with each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SamePolicyTotals {
    /// Records that were read.
    pub records: usize,
    /// Records made without `--record full`, which can't be replayed.
    pub ordinary: usize,
    /// Sessions of policies.
    pub sessions: usize,
    /// Calls made again.
    pub calls: usize,
    /// Calls that are equal.
    pub equal: usize,
    /// Calls that differ.
    pub different: usize,
    /// Calls whose result is unknown.
    pub not_reproducible: usize,
}

/// The report of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SamePolicyReport {
    /// Every call, session by session.
    pub calls: Vec<SamePolicyRow>,
    /// The number of calls with each result.
    pub totals: SamePolicyTotals,
}

impl SamePolicyReport {
    /// Both reports as one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.calls.extend(other.calls);
        let (one, other) = (self.totals, other.totals);
        let read = [one.records + other.records, one.ordinary + other.ordinary, one.sessions + other.sessions];
        self.totals = totals(read, &self.calls);
        self
    }
}

/// Makes every recorded call again, each session in a policy of its own.
///
/// # Errors
/// [`ReplayError::Policy`] if a session's policy can't be put to work.
pub fn replay_same_policy<W: Replayed>(
    recorded: &Recorded<W>,
    make_planner: &mut MakePlanner<'_, W>,
) -> Result<SamePolicyReport, ReplayError> {
    let mut calls = Vec::new();
    for session in &recorded.sessions {
        replay(session, make_planner, &mut calls)?;
    }
    let totals = totals([recorded.records, recorded.ordinary, recorded.sessions.len()], &calls);
    Ok(SamePolicyReport { calls, totals })
}

fn totals([records, ordinary, sessions]: [usize; 3], calls: &[SamePolicyRow]) -> SamePolicyTotals {
    let count = |verdict| calls.iter().filter(|row| row.verdict == verdict).count();
    SamePolicyTotals {
        records,
        ordinary,
        sessions,
        calls: calls.len(),
        equal: count(CallVerdict::Equal),
        different: count(CallVerdict::Different),
        not_reproducible: count(CallVerdict::NotReproducible),
    }
}

fn replay<W: Replayed>(
    session: &Session<W>,
    make_planner: &mut MakePlanner<'_, W>,
    rows: &mut Vec<SamePolicyRow>,
) -> Result<(), ReplayError> {
    let mut make = || make_planner(&session.policy).map_err(ReplayError::Policy);
    let mut planner = make()?;
    let mut next = 0;
    // Calls that are missing and timeouts, then or now, make the results of later calls unknown.
    let (mut gap, mut timeouts, mut forgot): (Option<(u64, u64)>, u32, bool) = (None, 0, false);
    for recorded_call in &session.calls {
        let RecordedCall { line, call } = recorded_call;
        if call.sequence > next {
            gap = gap.or(Some((next, call.sequence - 1)));
        }
        next = call.sequence.saturating_add(1);
        let mut row = SamePolicyRow {
            line: *line,
            session: session.name.clone(),
            sequence: call.sequence,
            call: call.question.name(),
            verdict: CallVerdict::Equal,
            differences: Vec::new(),
            note: None,
        };
        if reason(&call.reply) == Some(FallbackReason::Timeout) {
            // A question without an answer changes nothing. An outcome is forgotten, both now and
            // by older programs, which kept their instances.
            timeouts += 1;
            row.verdict = CallVerdict::NotReproducible;
            row.note = Some("timed out, which can't be reproduced: not asked again".into());
            rows.push(row);
            continue;
        }
        let (reply, missing) = call_again(planner.as_mut(), call, Arc::default());
        row.differences = differences(&call.reply, &reply);
        let out_of_service = [&call.reply, &reply].map(|reply| reason(reply) == Some(FallbackReason::OutOfService));
        (row.verdict, row.note) = match () {
            () if row.differences.is_empty() => (CallVerdict::Equal, None),
            () if reason(&reply) == Some(FallbackReason::Timeout) => {
                planner = make()?;
                forgot = true;
                let note = "timed out in the replay only: try again on an idle machine";
                (CallVerdict::NotReproducible, Some(note.to_owned()))
            }
            () if forgot => {
                let note = "an earlier call timed out in the replay, and the outcomes before it are lost: try again on an idle machine";
                (CallVerdict::NotReproducible, Some(note.to_owned()))
            }
            // A policy that is no longer asked learns nothing either.
            () if timeouts > 0 && (out_of_service.contains(&true) || is_unasked(call)) => {
                let note = "an earlier call timed out, which decided if the policy was still asked";
                (CallVerdict::NotReproducible, Some(note.to_owned()))
            }
            () if timeouts > 0 => {
                let note = "an earlier call timed out, and the outcomes before it may have been lost";
                (CallVerdict::NotReproducible, Some(note.to_owned()))
            }
            () => match gap {
                Some((first, last)) => {
                    let calls =
                        if first == last { format!("call {first} is") } else { format!("calls {first} to {last} are") };
                    let note = format!("{calls} not in the file, and the policy may remember them");
                    (CallVerdict::NotReproducible, Some(note))
                }
                None => (CallVerdict::Different, note(&missing)),
            },
        };
        rows.push(row);
    }
    Ok(())
}

/// Makes one call again, with the record in the host's place.
pub(super) fn call_again<W: Replayed>(
    planner: &mut dyn Planner<W>,
    call: &Call<W>,
    elsewhere: Arc<Prices<W>>,
) -> (Reply<W>, Missing<W>) {
    let costs = RecordedAnswers::new(&call.heard, elsewhere);
    let (Call { request, device, question: recorded, .. }, under_way) = (call, call.under_way());
    // The default, for an outcome in an old record, adds nothing to the request's hints.
    let capabilities = recorded.offer().map(|offer| offer.capabilities.clone()).unwrap_or_default();
    let question = Question::first(call.stage(), request, device, &capabilities)
        .going_on(under_way.as_ref())
        .after(recorded.attempts());
    let reply = match recorded {
        RecordedQuestion::Learn { plan, measured, .. } => planner.learn(&question, plan, &(*measured).into()).into(),
        RecordedQuestion::Decide { .. } | RecordedQuestion::Recover { .. } => {
            (&planner.decide(&question, costs.clone())).into()
        }
    };
    (reply, costs.missing())
}

/// True for a call of `learn` without fuel: a policy that was asked can't have learned without any.
fn is_unasked<W: Replayed>(call: &Call<W>) -> bool {
    matches!(call.question, RecordedQuestion::Learn { .. }) && call.reply.fuel == 0 && call.reply.fallback.is_none()
}

pub(super) fn reason<W: Replayed>(reply: &Reply<W>) -> Option<FallbackReason> {
    reply.fallback.as_ref().map(|fallback| fallback.reason)
}

fn note<W: Replayed>(missing: &Missing<W>) -> Option<String> {
    let prices = match &missing.prices[..] {
        [] => None,
        prices => {
            let named: Vec<_> = prices.iter().take(NAMED).map(W::describe).collect();
            let more = if prices.len() > NAMED { ", …" } else { "" };
            Some(format!("asked for {} prices that are not in the record: {}{more}", prices.len(), named.join("; ")))
        }
    };
    let trials = missing.trials.then(|| "asked for trials that are not in the record".to_owned());
    let notes: Vec<_> = prices.into_iter().chain(trials).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

fn differences<W: Replayed>(recorded: &Reply<W>, replayed: &Reply<W>) -> Vec<Difference> {
    let plan = |plan: &Option<W::Plan>| plan.as_ref().map_or("none".to_owned(), W::describe_fully);
    let lines = |lines: &[String]| if lines.is_empty() { "nothing".to_owned() } else { lines.join("; ") };
    let fallback = |reply: &Reply<W>| reply.fallback.as_ref().map_or("none".to_owned(), Fallback::to_string);
    let each = |what, recorded: String, replayed: String| Difference { what, recorded, replayed };
    let mut found = Vec::new();
    if recorded.answer != replayed.answer {
        found.push(each("answer", plan(&recorded.answer), plan(&replayed.answer)));
    }
    if recorded.plan != replayed.plan {
        found.push(each("plan", plan(&recorded.plan), plan(&replayed.plan)));
    }
    if recorded.adjusted != replayed.adjusted {
        found.push(each("adjusted", lines(&recorded.adjusted), lines(&replayed.adjusted)));
    }
    if recorded.fallback != replayed.fallback {
        found.push(each("fallback", fallback(recorded), fallback(replayed)));
    }
    if recorded.fuel != replayed.fuel {
        found.push(each("fuel", recorded.fuel.to_string(), replayed.fuel.to_string()));
    }
    found
}
