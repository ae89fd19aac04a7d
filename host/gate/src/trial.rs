//! The run of a policy through the golden set: each request twice in new instances, and once in an
//! instance that lives through the whole set. In normal use no instance does. A policy that
//! remembers in it relies on memory that it will not have, or is hostile.

use std::{collections::BTreeSet, time::Duration};

use tilewright_plan::{FallbackReason, Planner, Stage, VariantOf, any, of_any, of_kinds, words::with_noun};
use tilewright_policy::{Limits, LoadedPolicy, Policy, PolicyError};

use crate::{
    finding::{Call, Finding, Problem, Severity, Step},
    golden::{self, CallResult, GoldenRequest},
    judge,
    verdict::{GoldenSet, StageSet, Worst},
    work::Judged,
};

/// Requests that may end by fuel or time before the rest is left out: each takes as long as a call
/// may.
const MOST_EXHAUSTED: u32 = 3;

/// Fuel for the whole set, as a multiple of a call's limit. Even calls within their limits may take
/// a minute together.
const MOST_CALLS: u64 = 30;

/// Units of fuel that a price asked for by a policy counts as: about the cost of computing it.
const PRICE_FUEL: u64 = 2000;

/// The share of a limit above which a finding mentions it.
const NEAR: f64 = 0.5;

/// A call, its result and its cost.
struct MeasuredCall<W: Judged> {
    result: CallResult<W>,
    /// The reason why the policy did not learn from an outcome.
    learn_failure: Option<(FallbackReason, String)>,
    fuel: u64,
    elapsed: Duration,
    memory_bytes: usize,
}

impl<W: Judged> MeasuredCall<W> {
    /// Units of fuel, including the host's work on the policy's behalf.
    fn fuel_spent(&self) -> u64 {
        let prices = self.result.decision.as_ref().map_or(0, |decision| decision.candidates.len() as u64);
        self.fuel.saturating_add(prices * PRICE_FUEL)
    }
}

/// The results of the golden set.
pub(crate) struct Trial {
    pub set: GoldenSet,
    pub stages: Vec<StageSet>,
    pub worst: Worst,
    pub findings: Vec<Finding>,
}

/// A request of any kind of work.
type AnyRequest = any!(Box<GoldenRequest>);

/// The stage and the name of a request.
fn stage_and_name(golden: &AnyRequest) -> (Stage, &str) {
    of_any!(golden, golden => (golden.stage, &golden.name))
}

/// All requests, in an order drawn from the seed.
fn all_requests(seed: u32) -> Vec<AnyRequest> {
    fn both<W: Judged + VariantOf<AnyRequest, Variant = Box<GoldenRequest<W>>>>(seed: u32) -> Vec<AnyRequest> {
        W::golden().into_iter().chain(W::draw(seed)).map(|golden| W::any(Box::new(golden))).collect()
    }
    golden::shuffle(of_kinds!(W => both::<W>(seed)).into_iter().flatten().collect(), seed)
}

/// The state of a run through the set.
struct Run<'a> {
    policy: &'a LoadedPolicy,
    settings: &'a [(String, String)],
    worst: Worst,
    exhausted: u32,
    spent: u64,
    /// The instance that lives through the whole set.
    resident: Option<Policy>,
}

/// Tries a policy with these settings on every request of the stages that it answers, in an order
/// drawn from the seed.
///
/// # Errors
/// If a new instance can't be put to work.
pub(crate) fn try_out(policy: &LoadedPolicy, settings: &[(String, String)], seed: u32) -> Result<Trial, PolicyError> {
    let limits = policy.inspection().limits;
    let answered = &policy.description().stages;
    let mut requests = all_requests(seed);
    requests.retain(|golden| answered.contains(&stage_and_name(golden).0));
    let drawn = requests.iter().filter(|golden| golden::is_drawn(stage_and_name(golden).1)).count();
    let time_budget = limits.time_budget(requests.len());
    let policy = &policy.clone().with_time_budget(time_budget);
    let mut set = GoldenSet { requests: requests.len() as u32, seed, tried: 0, failing: 0 };
    let mut findings = Vec::new();
    let most_spent = limits.fuel.saturating_mul(MOST_CALLS);
    let mut run = Run { policy, settings, worst: Worst::default(), exhausted: 0, spent: 0, resident: None };
    let of_stage = |stage| {
        let requests = requests.iter().filter(|golden| stage_and_name(golden).0 == stage).count() as u32;
        StageSet { stage, requests, tried: 0, failing: 0 }
    };
    let mut stages: Vec<StageSet> = answered.iter().map(|stage| of_stage(*stage)).collect();
    for golden in &requests {
        set.tried += 1;
        let found = of_any!(golden, golden => run.try_request(golden)?);
        if policy.check_time_budget().is_err() {
            // Some answers were the host's.
            set.tried -= 1;
            break;
        }
        findings.extend(found);
        if run.exhausted == MOST_EXHAUSTED || run.spent > most_spent {
            break;
        }
    }
    let Run { worst, exhausted, spent, .. } = run;
    if set.tried < set.requests {
        let left = set.requests - set.tried;
        // Requests that ended by fuel or time have findings of their own; untried requests may hide
        // anything.
        let tried = with_noun(set.tried, "request");
        let (severity, found) = if exhausted == MOST_EXHAUSTED {
            (Severity::Note, format!("{} ended by fuel or time", with_noun(exhausted, "request")))
        } else if spent > most_spent {
            (Severity::Error, format!("more than {most_spent} units of fuel for {tried}"))
        } else {
            let seconds = time_budget.as_secs_f64();
            (Severity::Error, format!("more than {seconds:.2} s of processor time for {tried} and the next"))
        };
        let found = format!("{found}; {left} more were not tried");
        findings.push(Finding::new(severity, Step::Golden, Problem::CutShort, found));
    }
    excuse(&mut findings, drawn);
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let failing: BTreeSet<&str> = errors.filter_map(|finding| finding.request.as_deref()).collect();
    set.failing = failing.len() as u32;
    for (index, golden) in requests.iter().enumerate() {
        let (stage, name) = stage_and_name(golden);
        if let Some(of_stage) = stages.iter_mut().find(|of_stage| of_stage.stage == stage) {
            of_stage.tried += u32::from(index < set.tried as usize);
            of_stage.failing += u32::from(failing.contains(name));
        }
    }
    findings.extend(near_limits(&worst, &limits));
    findings.sort_by_key(|finding| finding.severity);
    Ok(Trial { set, stages, worst, findings })
}

impl Run<'_> {
    /// Tries one request, in two new instances and in the one that lives.
    fn try_request<W: Judged>(&mut self, golden: &GoldenRequest<W>) -> Result<Vec<Finding>, PolicyError>
    where
        Policy: Planner<W>,
    {
        let first = play(golden, &mut self.policy.configure(self.settings)?, &mut self.spent);
        let mut found: Vec<Finding> = first.iter().flat_map(|call| judge_call(golden, call)).collect();
        let failed = found.iter().any(|finding| finding.severity == Severity::Error);
        if first.iter().any(is_exhausted) {
            self.exhausted += 1;
            return Ok(found);
        }
        let second = play(golden, &mut self.policy.configure(self.settings)?, &mut self.spent);
        // These ended by the clock alone: the fuel would have ended both runs.
        if second.iter().any(is_exhausted) {
            found.extend(second.iter().flat_map(|call| judge_call(golden, call)));
        } else {
            found.extend(find_nondeterminism(golden, &first, &second));
            measure(golden, &first, &second, &mut self.worst);
        }
        if !failed && first.iter().all(|call| call.result.call != Call::Learn) {
            let living = match &mut self.resident {
                Some(living) => living,
                none => none.insert(self.policy.configure(self.settings)?.lasting()),
            };
            let calls = play(golden, living, &mut self.spent);
            // A call that ended by fuel or time shows nothing, and its instance can't be used
            // again.
            if calls.iter().any(is_exhausted) {
                self.resident = None;
            } else {
                found.extend(find_memory(golden, &first, &calls));
            }
        }
        Ok(found)
    }
}

/// The share of drawn requests on which a rule of thumb may choose badly: one in this many.
const EXCUSED: usize = 4;

/// Turns bad choices on drawn requests into notes, unless there are many. An honest rule of thumb
/// chooses badly now and then, and a verdict must not depend on the draw. A module that only knows
/// the fixed requests chooses badly on most others.
fn excuse(findings: &mut [Finding], drawn: usize) {
    let is_choice = |finding: &Finding| {
        matches!(finding.problem, Problem::OverLimit | Problem::Repeats)
            && finding.request.as_deref().is_some_and(golden::is_drawn)
    };
    // A warning fails no module, so it does not count here: a policy with a rule of its own may
    // have many.
    let chosen = findings.iter().filter(|finding| is_choice(finding) && finding.severity == Severity::Error);
    let requests: BTreeSet<&str> = chosen.filter_map(|finding| finding.request.as_deref()).collect();
    if requests.len() * EXCUSED <= drawn {
        findings.iter_mut().filter(|finding| is_choice(finding)).for_each(|finding| finding.severity = Severity::Note);
    }
}

/// Asks a policy a request with all calls that follow, and adds the cost to `spent`, in units of
/// fuel.
fn play<W: Judged>(golden: &GoldenRequest<W>, policy: &mut Policy, spent: &mut u64) -> Vec<MeasuredCall<W>>
where
    Policy: Planner<W>,
{
    let mut calls = Vec::new();
    let mut before = policy.time_taken();
    golden.play(policy, |policy, result| {
        let decision = result.decision.as_ref();
        let fuel = decision.map_or(result.report.fuel, |decision| decision.fuel);
        let learn_failure = result.report.failure.clone().map(|failure| (failure.reason, failure.detail));
        let memory_bytes = policy.memory_bytes();
        // The processor's time, since the wall's says more about the machine than about the policy.
        let taken = policy.time_taken();
        let elapsed = if decision.is_some() { taken.saturating_sub(before) } else { Duration::ZERO };
        before = taken;
        calls.push(MeasuredCall { learn_failure, fuel, elapsed, memory_bytes, result });
    });
    *spent = calls.iter().fold(*spent, |spent, call| spent.saturating_add(call.fuel_spent()));
    calls
}

fn is_exhausted<W: Judged>(call: &MeasuredCall<W>) -> bool {
    let fallback = call.result.decision.as_ref().and_then(|decision| decision.fallback.as_ref());
    let reason = fallback.map(|fallback| fallback.reason).or(call.learn_failure.as_ref().map(|(reason, _)| *reason));
    matches!(reason, Some(FallbackReason::OutOfFuel | FallbackReason::Timeout))
}

/// The findings about a call by itself.
fn judge_call<W: Judged>(golden: &GoldenRequest<W>, call: &MeasuredCall<W>) -> Vec<Finding> {
    match &call.learn_failure {
        Some((reason, detail)) => {
            let problem = judge::failure(*reason).unwrap_or(Problem::Trap);
            let found = Finding::new(Severity::Error, Step::Golden, problem, detail.clone());
            vec![found.at(golden, call.result.call)]
        }
        None => judge::judge(golden, &call.result),
    }
}

/// The first difference between two new instances; later ones follow from it.
fn find_nondeterminism<W: Judged>(
    golden: &GoldenRequest<W>,
    first: &[MeasuredCall<W>],
    second: &[MeasuredCall<W>],
) -> Option<Finding> {
    let (call, found) = first.iter().zip(second).find_map(|(one, other)| find_difference(one, other))?;
    Some(Finding::new(Severity::Error, Step::Golden, Problem::NotSame, found).at(golden, call))
}

/// The first answer of an instance with earlier requests that differs from a new one's. A
/// difference in fuel does not matter: memory that was allocated before need not be allocated
/// again.
fn find_memory<W: Judged>(
    golden: &GoldenRequest<W>,
    fresh: &[MeasuredCall<W>],
    living: &[MeasuredCall<W>],
) -> Option<Finding> {
    let answer = |call: &MeasuredCall<W>| {
        call.result.decision.as_ref().map(|decision| (decision.plan.clone(), decision.answer.clone()))
    };
    let (one, other) = fresh.iter().zip(living).find(|(one, other)| answer(one) != answer(other))?;
    let (call, found) = find_difference(one, other)?;
    let found = format!("{found}, in an instance that decided before");
    Some(Finding::new(Severity::Error, Step::Golden, Problem::Remembers, found).at(golden, call))
}

fn find_difference<W: Judged>(one: &MeasuredCall<W>, other: &MeasuredCall<W>) -> Option<(Call, String)> {
    let by_answer = judge::difference(&one.result, &other.result);
    let by_fuel = || (one.fuel != other.fuel).then(|| format!("{} units of fuel, then {}", one.fuel, other.fuel));
    Some((one.result.call, by_answer.or_else(by_fuel)?))
}

/// The highest cost of a call. The lower of two times counts: one may have found its data in the
/// processor's cache, and the other not.
fn measure<W: Judged>(
    golden: &GoldenRequest<W>,
    first: &[MeasuredCall<W>],
    second: &[MeasuredCall<W>],
    worst: &mut Worst,
) {
    for (one, other) in first.iter().zip(second) {
        if one.fuel >= worst.fuel {
            worst.fuel = one.fuel;
            worst.fuel_request = Some(golden.name.clone());
        }
        let elapsed_ms = milliseconds(one.elapsed.min(other.elapsed));
        if elapsed_ms >= worst.elapsed_ms {
            worst.elapsed_ms = elapsed_ms;
            worst.elapsed_request = Some(golden.name.clone());
        }
        worst.memory_bytes = worst.memory_bytes.max(one.memory_bytes as u64);
    }
}

/// Whole nanoseconds, so that the number survives JSON.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn near_limits(worst: &Worst, limits: &Limits) -> Vec<Finding> {
    let rows = [
        ("fuel", worst.fuel as f64, limits.fuel as f64, &worst.fuel_request),
        ("milliseconds", worst.elapsed_ms, limits.wall_ms as f64, &worst.elapsed_request),
        ("bytes of memory", worst.memory_bytes as f64, limits.memory_bytes as f64, &None),
    ];
    let near = rows.into_iter().filter(|(_, used, most, _)| *used > NEAR * most);
    near.map(|(what, used, most, request)| {
        let found = format!("{used:.0} {what}, of {most:.0} allowed");
        let finding = Finding::new(Severity::Warning, Step::Golden, Problem::NearLimit, found);
        Finding { request: request.clone(), ..finding }
    })
    .collect()
}

/// The kinds of failure among findings of severity error, each once, in their order.
pub(crate) fn reasons(findings: &[Finding]) -> Vec<&'static str> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let kinds: BTreeSet<Problem> = errors.map(|finding| finding.problem).collect();
    kinds.into_iter().map(Problem::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_counts_the_golden_set() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
        let page = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap().replace('\n', " ");
        let all = all_requests(7);
        let count = |stages: &[Stage], drawn: bool| {
            let is_counted = |golden: &&AnyRequest| {
                let (stage, name) = stage_and_name(golden);
                stages.contains(&stage) && golden::is_drawn(name) == drawn
            };
            all.iter().filter(is_counted).count()
        };
        let [decode, encode, denoise, text] = [Stage::Decode, Stage::Encode, Stage::Denoise, Stage::Text];
        let whole = [decode, encode, denoise, text];
        let [decodes, encodes, samples, texts] = whole.map(|stage| count(&[stage], false));
        let (fixed, drawn) = (count(&whole, false), count(&whole, true));
        let contains = |page: &str, words: String| assert!(page.contains(&words), "{words}");
        let checking = page("checking.md");
        contains(
            &checking,
            format!(
                "{fixed} fixed requests ({decodes} decodes, {encodes} encodes, {samples} samples and {texts} texts), \
                 and {drawn} that are drawn"
            ),
        );
        contains(&checking, format!("for all {}", fixed + drawn));
        // A new project answers no texts, and the page's own policy no samples.
        let first = page("first-policy.md");
        let [fixed, drawn] = [false, true].map(|drawn| count(&[decode, encode, denoise], drawn));
        contains(&first, format!("asks the policy {} questions", fixed + drawn));
        contains(&first, format!("{fixed} are fixed and {drawn} are drawn"));
        let pictures: usize = [false, true].map(|drawn| count(&[decode, encode], drawn)).iter().sum();
        contains(&first, format!("now asks {pictures} questions"));
    }

    #[test]
    fn a_warning_does_not_count_against_a_drawn_request() {
        let found = |severity, problem, number: usize| Finding {
            request: Some(format!("drawn {number}: x")),
            ..Finding::new(severity, Step::Golden, problem, "")
        };
        let warnings = (1..20).map(|number| found(Severity::Warning, Problem::OverLimit, number));
        let mut findings: Vec<_> = warnings.collect();
        findings.push(found(Severity::Error, Problem::Repeats, 0));
        excuse(&mut findings, 32);
        assert!(findings.iter().all(|finding| finding.severity != Severity::Error), "one error in 32 is excused");

        let mut findings: Vec<_> = (0..9).map(|number| found(Severity::Error, Problem::Repeats, number)).collect();
        excuse(&mut findings, 32);
        assert!(findings.iter().all(|finding| finding.severity == Severity::Error), "nine in 32 are not");
    }
}
