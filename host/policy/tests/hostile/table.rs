//! The corpus as a table: a row is a guest and what becomes of it. For every row: the host stays
//! up, holds no more than [`MEMORY`] above what it held before, answers within [`ANSWER`], says
//! why, and the next decisions are right, the guest's own and its neighbour's.

use std::{
    fs,
    num::NonZero,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tilewright_plan::{Attempt, Failure, FallbackReason, Planner, Question, Stage};
use tilewright_policy::{Policy, PolicyHost};

use crate::{
    guest::{Guest, HEALTHY, named},
    heard::heard,
    scene::{Prices, decide, device, host, hostile_request, is_right, offer, outcome, put_to_work, request},
};

/// The most memory that a guest may take beyond the process's own.
const MEMORY: u64 = 64 << 20;

/// The longest that an answer may take: the policy's clock is 250 ms, and its last tick has to be
/// seen.
const ANSWER: Duration = Duration::from_millis(300);

/// On a busy machine the wall clock says little about a single try, so the fastest of this many
/// counts. If more threads run than there are cores, the policies' clock itself is late, and an
/// answer may take [`BUSY`] times as long.
const TRIES: usize = 5;
const BUSY: u32 = 2;

/// A guest, and what becomes of it.
pub struct Row {
    pub name: &'static str,
    pub guest: Source,
    pub outcome: Outcome,
}

/// The source of a guest.
pub enum Source {
    /// A healthy one, a part of it replaced.
    Parts(Guest),
    /// WebAssembly text.
    Text(&'static str),
    /// A component as text, to which the names of a policy are added.
    Named(&'static str),
    /// Made by a function.
    Bytes(fn() -> Vec<u8>),
}

/// The expected behaviour of a guest; the texts are part of the message for the user.
#[derive(Clone, Copy)]
pub enum Outcome {
    /// It is not put to work.
    Refused(&'static str),
    /// Its answer to the hostile request is replaced by the host's default.
    Falls(FallbackReason, &'static str),
    /// So is its answer after a failure.
    FallsRecovering(FallbackReason, &'static str),
    /// It fails while it learns, which the log says.
    FailsLearning(&'static str),
    /// It does no harm, and its answers are right.
    Right,
}

/// The cost of a row.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub took: Duration,
    pub bytes: u64,
}

impl Source {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Source::Parts(guest) => guest.build(),
            Source::Text(text) => wat::parse_str(text).unwrap_or_else(|error| panic!("{error}")),
            Source::Named(text) => named(text),
            Source::Bytes(make) => make(),
        }
    }
}

/// One guest at a time, so that what is measured is its own.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resident bytes now, after the mark of the most was taken back to them.
pub fn resident() -> u64 {
    // If the kernel refuses, the mark shows only what went over every earlier row.
    let _ = fs::write("/proc/self/clear_refs", "5");
    status("VmRSS:")
}

/// Resident bytes of a host that has done what is ordinary. Taken once for a whole table: what one
/// guest leaves behind counts for the next.
pub fn normal(host: &PolicyHost) -> u64 {
    drop(put_to_work(host, &HEALTHY));
    resident()
}

/// The most resident bytes since [`resident`].
pub fn most_resident() -> u64 {
    status("VmHWM:")
}

fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Tries every row, and fails with a line for each that is not contained.
pub fn contain(subject: &str, rows: &[Row]) {
    let _alone = alone();
    let host = host();
    let mut beside = put_to_work(&host, &HEALTHY);
    let normal = normal(&host);
    let mut worst = [("", Cost::default()); 2];
    let mut failures = Vec::new();
    for row in rows {
        match tried(row, &host, &mut beside, normal) {
            Ok(cost) => {
                if cost.took >= worst[0].1.took {
                    worst[0] = (row.name, cost);
                }
                if cost.bytes >= worst[1].1.bytes {
                    worst[1] = (row.name, cost);
                }
            }
            Err(why) => failures.push(format!("{}: {why}", row.name)),
        }
    }
    let [(slowest, Cost { took, .. }), (largest, Cost { bytes, .. })] = worst;
    println!("{subject}: {} guests; slowest {slowest}, {took:?}; largest {largest}, {} KiB", rows.len(), bytes >> 10);
    assert!(failures.is_empty(), "{subject}:\n{}", failures.join("\n"));
}

fn tried(row: &Row, host: &PolicyHost, beside: &mut Policy, normal: u64) -> Result<Cost, String> {
    let bytes = row.guest.bytes();
    let mut least = Cost { took: Duration::MAX, bytes: 0 };
    for _ in 0..TRIES {
        let before = resident().min(normal + bytes.len() as u64);
        let took = once(row.outcome, host, &bytes)?;
        let held = most_resident().saturating_sub(before);
        if held > MEMORY {
            return Err(format!("the host held {} KiB more", held >> 10));
        }
        is_right(&decide(beside, &request())).map_err(|why| format!("its neighbour: {why}"))?;
        least = Cost { took: least.took.min(took), bytes: least.bytes.max(held) };
        if least.took <= ANSWER {
            return Ok(least);
        }
    }
    if least.took <= ANSWER * BUSY && is_busy() { Ok(least) } else { Err(format!("an answer took {:?}", least.took)) }
}

/// True if more threads ran in the last minute than there are cores.
fn is_busy() -> bool {
    let load = fs::read_to_string("/proc/loadavg").ok().and_then(|load| load.split(' ').next()?.parse::<f64>().ok());
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    load.is_some_and(|load| load > cores as f64)
}

/// Puts the guest through what it was made for. Returns the longest that an answer took.
fn once(outcome: Outcome, host: &PolicyHost, bytes: &[u8]) -> Result<Duration, String> {
    let started = Instant::now();
    let policy = host.load("guest.wasm", bytes).and_then(|loaded| loaded.configure(&[]));
    let loading = started.elapsed();
    let mut policy = match (policy, outcome) {
        (Ok(_), Outcome::Refused(_)) => return Err("it was put to work".into()),
        (Ok(policy), _) => policy,
        (Err(error), Outcome::Refused(why)) => {
            let said = error.to_string();
            // As in `is_as_told`: on a busy machine the clock may run out before the fuel.
            let clock = why.contains("all 50000000") && loading.as_millis() >= 250 && said.contains("no answer within");
            let fits = said.starts_with("policy guest") && (said.contains(why) || clock) && is_one_line(&said);
            return if fits { Ok(loading) } else { Err(format!("refused with '{said}'")) };
        }
        (Err(error), _) => return Err(format!("refused with '{error}'")),
    };
    let asking = match outcome {
        Outcome::Refused(_) => Duration::ZERO,
        Outcome::Right => right(&mut policy)?,
        Outcome::Falls(reason, detail) => falls(&mut policy, reason, detail)?,
        Outcome::FallsRecovering(reason, detail) => falls_recovering(&mut policy, reason, detail)?,
        Outcome::FailsLearning(said) => fails_learning(&mut policy, said)?,
    };
    Ok(loading.max(asking))
}

fn right(policy: &mut Policy) -> Result<Duration, String> {
    let started = Instant::now();
    let decision = decide(policy, &hostile_request());
    let took = started.elapsed();
    is_right(&decision)?;
    is_right(&decide(policy, &request()))?;
    Ok(took)
}

/// The hostile request falls back twice for the same reason at the same cost, with right decisions
/// between; the third failure in a row takes the policy out of service, unless it was an honest
/// error.
fn falls(policy: &mut Policy, reason: FallbackReason, detail: &str) -> Result<Duration, String> {
    let mut longest = Duration::ZERO;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let started = Instant::now();
        let decision = decide(policy, &hostile_request());
        longest = longest.max(started.elapsed());
        let Some(fallback) = decision.fallback.clone() else { return Err(format!("no fallback: {decision:?}")) };
        let fell = (fallback.reason, fallback.detail.as_str());
        is_as_told(fell, (reason, detail), longest)?;
        let tidy = decision.plan.reason.starts_with("native default")
            && decision.log.len() <= 64
            && decision.candidates.len() <= 4096
            && decision.adjusted.is_empty();
        if !tidy {
            return Err(format!("more than the default is left: {decision:?}"));
        }
        // The clock ends a call at no certain instruction.
        if fallback.reason != FallbackReason::Timeout {
            seen.push((fallback, decision.fuel));
        }
        is_right(&decide(policy, &request()))?;
    }
    if seen.len() == 2 && seen[0] != seen[1] {
        return Err(format!("the same inputs fail in different ways: {seen:?}"));
    }
    for _ in 0..3 {
        decide(policy, &hostile_request());
    }
    if reason == FallbackReason::Error {
        is_right(&decide(policy, &request())).map_err(|why| format!("an honest error is an answer: {why}"))?;
        return Ok(longest);
    }
    let decision = decide(policy, &request());
    let out = decision.fallback.as_ref().is_some_and(|fallback| fallback.reason == FallbackReason::OutOfService);
    if out && (decision.fuel, &decision.answer) == (0, &None) { Ok(longest) } else { Err("still in service".into()) }
}

fn falls_recovering(policy: &mut Policy, reason: FallbackReason, detail: &str) -> Result<Duration, String> {
    let plan = decide(policy, &request()).plan;
    let attempts = [Attempt { plan, failure: Failure::OutOfMemory { bytes: 1 } }];
    let started = Instant::now();
    let decision = policy.decide(
        &Question::new(Stage::Decode, &hostile_request(), &device(), &offer()).after(&attempts),
        Arc::new(Prices),
    );
    let took = started.elapsed();
    let Some(fallback) = &decision.fallback else { return Err(format!("no fallback: {decision:?}")) };
    is_as_told((fallback.reason, &fallback.detail), (reason, detail), took)?;
    if decision.plan.space.tile().is_none() {
        return Err(format!("the default is no smaller: {:?}", decision.plan));
    }
    is_right(&decide(policy, &request()))?;
    Ok(took)
}

fn fails_learning(policy: &mut Policy, said: &str) -> Result<Duration, String> {
    let plan = decide(policy, &request()).plan;
    let started = Instant::now();
    let lines = heard(|| {
        policy.learn(&Question::new(Stage::Decode, &hostile_request(), &device(), &offer()), &plan, &outcome());
    });
    let took = started.elapsed();
    let clock = said == "out-of-fuel" && took.as_millis() >= 250;
    let is_told = |line: &String| line.contains(said) || clock && line.contains("timeout");
    if !lines.iter().any(|line| line.contains("failed to learn") && is_told(line)) {
        return Err(format!("the log says {lines:?}"));
    }
    is_right(&decide(policy, &request()))?;
    Ok(took)
}

/// Fails unless a reason and its detail are those of the row. On a machine so busy that the time
/// ran out before the fuel, a timeout is as good.
fn is_as_told(said: (FallbackReason, &str), told: (FallbackReason, &str), took: Duration) -> Result<(), String> {
    let clock = said.0 == FallbackReason::Timeout && told.0 == FallbackReason::OutOfFuel && took.as_millis() >= 250;
    if clock || (said.0 == told.0 && said.1.contains(told.1) && is_one_line(said.1)) {
        return Ok(());
    }
    Err(format!("fell back for '{}: {}'", said.0, said.1))
}

fn is_one_line(text: &str) -> bool {
    !text.contains('\n') && text.chars().count() <= 500
}
