//! Putting a policy through the golden set: each request twice in fresh instances, and once in one that lives through all of it. At work
//! no instance does; what one remembers shows that its author counts on it, or that it means harm.

use std::{collections::BTreeSet, time::Duration};

use tilewright_plan::{FallbackReason, Learnt, Planner as _, words::counted};

use super::{
    finding::{Call, Finding, Problem, Severity, Step},
    golden::{self, GoldenRequest, Heard},
    judge,
    verdict::{GoldenSet, Worst},
};
use crate::{LoadedPolicy, Policy, PolicyError, limits::Limits};

/// Requests that may end by fuel or time before the rest is left out: each takes as long as a call may.
const MOST_EXHAUSTED: u32 = 3;

/// Fuel for the whole set, in calls that use up theirs. Every call may keep within its limit and all of them together still take a minute.
const MOST_CALLS: u64 = 30;

/// What a price that a policy asks for counts as, in units of fuel: about what working it out takes.
const PRICE_FUEL: u64 = 2000;

/// The share of a limit from which on it is mentioned.
const NEAR: f64 = 0.5;

/// A call, what came of it and what it took.
struct Turn {
    heard: Heard,
    /// Why an outcome could not be learnt from.
    unlearnt: Option<(FallbackReason, String)>,
    fuel: u64,
    elapsed: Duration,
    memory_bytes: usize,
}

impl Turn {
    /// Units of fuel, what the host did on the policy's behalf counted as such.
    fn spent(&self) -> u64 {
        let prices = self.heard.decision.as_ref().map_or(0, |decision| decision.candidates.len() as u64);
        self.fuel.saturating_add(prices * PRICE_FUEL)
    }
}

/// What the golden set showed.
pub(super) struct Trial {
    pub set: GoldenSet,
    pub worst: Worst,
    pub findings: Vec<Finding>,
}

/// Tries a policy with these settings on every request, in an order of the seed's.
///
/// # Errors
/// Where a fresh instance can't be put to work.
pub(super) fn try_out(policy: &LoadedPolicy, settings: &[(String, String)], seed: u32) -> Result<Trial, PolicyError> {
    let limits = policy.inspection().limits;
    let requests = golden::shuffled([golden::set(), golden::drawn(seed)].concat(), seed);
    let drawn = requests.iter().filter(|golden| golden::is_drawn(&golden.name)).count();
    let mut set = GoldenSet { requests: requests.len() as u32, seed, tried: 0, failing: 0 };
    let mut worst = Worst::default();
    let mut findings = Vec::new();
    let most_spent = limits.fuel.saturating_mul(MOST_CALLS);
    let (mut exhausted, mut spent) = (0, 0);
    let mut resident: Option<Policy> = None;
    for golden in &requests {
        set.tried += 1;
        let first = play(golden, &mut policy.configure(settings)?, &mut spent);
        let mut found: Vec<Finding> = first.iter().flat_map(|turn| told(golden, turn)).collect();
        let failed = found.iter().any(|finding| finding.severity == Severity::Error);
        if first.iter().any(is_exhausted) {
            exhausted += 1;
        } else {
            let second = play(golden, &mut policy.configure(settings)?, &mut spent);
            // By the clock alone: the fuel would have ended both.
            if second.iter().any(is_exhausted) {
                found.extend(second.iter().flat_map(|turn| told(golden, turn)));
            } else {
                found.extend(not_same(golden, &first, &second));
                measure(golden, &first, &second, &mut worst);
            }
            if !failed && first.iter().all(|turn| turn.heard.call != Call::Learn) {
                let living = match &mut resident {
                    Some(living) => living,
                    none => none.insert(policy.configure(settings)?.lasting()),
                };
                let turns = play(golden, living, &mut spent);
                // What the clock ended says nothing, and the instance is spent.
                if turns.iter().any(is_exhausted) {
                    resident = None;
                } else {
                    found.extend(remembers(golden, &first, &turns));
                }
            }
        }
        findings.extend(found);
        if exhausted == MOST_EXHAUSTED || spent > most_spent {
            break;
        }
    }
    if set.tried < set.requests {
        let left = set.requests - set.tried;
        // What was ended stands among the findings. What was not tried may be anything.
        let (severity, found) = match exhausted == MOST_EXHAUSTED {
            true => (Severity::Note, format!("{} ended by fuel or time", counted(exhausted, "request"))),
            false => {
                (Severity::Error, format!("more than {most_spent} units of fuel for {}", counted(set.tried, "request")))
            }
        };
        let found = format!("{found}; {left} more were not tried");
        findings.push(Finding::new(severity, Step::Golden, Problem::CutShort, found));
    }
    excuse(&mut findings, drawn);
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    set.failing = errors.filter_map(|finding| finding.request.as_deref()).collect::<BTreeSet<_>>().len() as u32;
    findings.extend(near_limits(&worst, &limits));
    findings.sort_by_key(|finding| finding.severity);
    Ok(Trial { set, worst, findings })
}

/// The share of the drawn requests on which a rule of thumb may choose badly: one in so many.
const EXCUSED: usize = 4;

/// Makes notes of bad choices on drawn requests, unless there are many. An honest rule of thumb chooses badly now and then, and a verdict
/// may not hang on what was drawn; a module that only knows the fixed requests chooses badly on most others.
fn excuse(findings: &mut [Finding], drawn: usize) {
    let is_choice = |finding: &Finding| {
        matches!(finding.problem, Problem::OverLimit | Problem::Repeats)
            && finding.request.as_deref().is_some_and(golden::is_drawn)
    };
    let chosen = findings.iter().filter(|finding| is_choice(finding));
    let requests: BTreeSet<&str> = chosen.filter_map(|finding| finding.request.as_deref()).collect();
    if requests.len() * EXCUSED <= drawn {
        findings.iter_mut().filter(|finding| is_choice(finding)).for_each(|finding| finding.severity = Severity::Note);
    }
}

/// Asks a policy everything of a request, and adds what that took to `spent`, in units of fuel.
fn play(golden: &GoldenRequest, policy: &mut Policy, spent: &mut u64) -> Vec<Turn> {
    let mut turns = Vec::new();
    golden.play(policy, |policy, heard| {
        let decision = heard.decision.as_ref();
        let learnt = if decision.is_some() { Learnt::default() } else { policy.learnt() };
        let fuel = decision.map_or(learnt.fuel, |decision| decision.fuel);
        let unlearnt = learnt.failure.map(|failure| (failure.reason, failure.detail));
        let memory_bytes = policy.memory_bytes();
        let elapsed = decision.map_or(Duration::ZERO, |decision| decision.elapsed);
        turns.push(Turn { unlearnt, fuel, elapsed, memory_bytes, heard });
    });
    *spent = turns.iter().fold(*spent, |spent, turn| spent.saturating_add(turn.spent()));
    turns
}

fn is_exhausted(turn: &Turn) -> bool {
    let fallback = turn.heard.decision.as_ref().and_then(|decision| decision.fallback.as_ref());
    let reason = fallback.map(|fallback| fallback.reason).or(turn.unlearnt.as_ref().map(|(reason, _)| *reason));
    matches!(reason, Some(FallbackReason::OutOfFuel | FallbackReason::Timeout))
}

/// What there is to say of a call by itself.
fn told(golden: &GoldenRequest, turn: &Turn) -> Vec<Finding> {
    match &turn.unlearnt {
        Some((reason, detail)) => {
            let problem = judge::failure(*reason).unwrap_or(Problem::Trap);
            let found = Finding::new(Severity::Error, Step::Golden, problem, detail.clone());
            vec![found.at(golden, turn.heard.call)]
        }
        None => judge::judge(golden, &turn.heard),
    }
}

/// Where two fresh instances part: the first difference, since later calls follow from it.
fn not_same(golden: &GoldenRequest, first: &[Turn], second: &[Turn]) -> Option<Finding> {
    let (call, found) = first.iter().zip(second).find_map(|(one, other)| parted(one, other))?;
    Some(Finding::new(Severity::Error, Step::Golden, Problem::NotSame, found).at(golden, call))
}

/// Where an instance that heard of other requests before answers otherwise than a fresh one. Other fuel is no matter: memory that was asked
/// for before need not be asked for again.
fn remembers(golden: &GoldenRequest, fresh: &[Turn], living: &[Turn]) -> Option<Finding> {
    let answer =
        |turn: &Turn| turn.heard.decision.as_ref().map(|decision| (decision.plan.clone(), decision.answer.clone()));
    let (one, other) = fresh.iter().zip(living).find(|(one, other)| answer(one) != answer(other))?;
    let (call, found) = parted(one, other)?;
    let found = format!("{found}, in an instance that decided before");
    Some(Finding::new(Severity::Error, Step::Golden, Problem::Remembers, found).at(golden, call))
}

fn parted(one: &Turn, other: &Turn) -> Option<(Call, String)> {
    let by_answer = judge::difference(&one.heard, &other.heard);
    let by_fuel = || (one.fuel != other.fuel).then(|| format!("{} units of fuel, then {}", one.fuel, other.fuel));
    Some((one.heard.call, by_answer.or_else(by_fuel)?))
}

/// The most that calls took. Of two times the lower counts: what only one of them took, something else took.
fn measure(golden: &GoldenRequest, first: &[Turn], second: &[Turn], worst: &mut Worst) {
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

/// Whole nanoseconds, so that JSON gives back what it was given.
pub(super) fn milliseconds(duration: Duration) -> f64 {
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
pub(super) fn reasons(findings: &[Finding]) -> Vec<&'static str> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let kinds: BTreeSet<Problem> = errors.map(|finding| finding.problem).collect();
    kinds.into_iter().map(Problem::name).collect()
}
