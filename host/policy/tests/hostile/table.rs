//! The corpus as a table: a row is a guest and what becomes of it. For every row: the host stays
//! up, holds no more than [`MEMORY`] above what it held before, answers though its clocks stand
//! still, says why, and the next decisions are right, the guest's own and its neighbour's.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    /// The answer to the hostile request is replaced by the host's default.
    Falls(FallbackReason, &'static str),
    /// So is its answer after a failure.
    FallsRecovering(FallbackReason, &'static str),
    /// It fails while it learns, which the log says.
    FailsLearning(&'static str),
    /// It does no harm, and its answers are right.
    Right,
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
    let mut worst = ("", 0);
    let mut failures = Vec::new();
    for row in rows {
        match tried(row, &host, &mut beside, normal) {
            Ok(bytes) if bytes >= worst.1 => worst = (row.name, bytes),
            Ok(_) => {}
            Err(why) => failures.push(format!("{}: {why}", row.name)),
        }
    }
    let (largest, bytes) = worst;
    println!("{subject}: {} guests; largest {largest}, {} KiB", rows.len(), bytes >> 10);
    assert!(failures.is_empty(), "{subject}:\n{}", failures.join("\n"));
}

/// Tries a row. Returns the bytes that the host held besides.
fn tried(row: &Row, host: &PolicyHost, beside: &mut Policy, normal: u64) -> Result<u64, String> {
    let bytes = row.guest.bytes();
    let before = resident().min(normal + bytes.len() as u64);
    once(row.outcome, host, &bytes)?;
    let held = most_resident().saturating_sub(before);
    if held > MEMORY {
        return Err(format!("the host held {} KiB more", held >> 10));
    }
    is_right(&decide(beside, &request())).map_err(|why| format!("its neighbour: {why}"))?;
    Ok(held)
}

/// Puts the guest through what it was made for.
fn once(outcome: Outcome, host: &PolicyHost, bytes: &[u8]) -> Result<(), String> {
    let policy = host.load("guest.wasm", bytes).and_then(|loaded| loaded.configure(&[]));
    let mut policy = match (policy, outcome) {
        (Ok(_), Outcome::Refused(_)) => return Err("it was put to work".into()),
        (Ok(policy), _) => policy,
        (Err(error), Outcome::Refused(why)) => {
            let said = error.to_string();
            let fits = said.starts_with("policy guest") && said.contains(why) && is_one_line(&said);
            return if fits { Ok(()) } else { Err(format!("refused with '{said}'")) };
        }
        (Err(error), _) => return Err(format!("refused with '{error}'")),
    };
    match outcome {
        Outcome::Refused(_) => Ok(()),
        Outcome::Right => right(&mut policy),
        Outcome::Falls(reason, detail) => falls(&mut policy, reason, detail),
        Outcome::FallsRecovering(reason, detail) => falls_recovering(&mut policy, reason, detail),
        Outcome::FailsLearning(said) => fails_learning(&mut policy, said),
    }
}

fn right(policy: &mut Policy) -> Result<(), String> {
    is_right(&decide(policy, &hostile_request()))?;
    is_right(&decide(policy, &request()))
}

/// The hostile request falls back twice for the same reason at the same cost, with right decisions
/// between; the third failure in a row takes the policy out of service, unless it was an honest
/// error.
fn falls(policy: &mut Policy, reason: FallbackReason, detail: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let decision = decide(policy, &hostile_request());
        let Some(fallback) = decision.fallback.clone() else { return Err(format!("no fallback: {decision:?}")) };
        is_as_told((fallback.reason, fallback.detail.as_str()), (reason, detail))?;
        let tidy = decision.plan.reason.starts_with("native default")
            && decision.log.len() <= 64
            && decision.candidates.len() <= 4096
            && decision.adjusted.is_empty();
        if !tidy {
            return Err(format!("more than the default is left: {decision:?}"));
        }
        seen.push((fallback, decision.fuel));
        is_right(&decide(policy, &request()))?;
    }
    if seen[0] != seen[1] {
        return Err(format!("the same inputs fail in different ways: {seen:?}"));
    }
    for _ in 0..3 {
        decide(policy, &hostile_request());
    }
    if reason == FallbackReason::Error {
        return is_right(&decide(policy, &request())).map_err(|why| format!("an honest error is an answer: {why}"));
    }
    let decision = decide(policy, &request());
    let out = decision.fallback.as_ref().is_some_and(|fallback| fallback.reason == FallbackReason::OutOfService);
    if out && (decision.fuel, &decision.answer) == (0, &None) { Ok(()) } else { Err("still in service".into()) }
}

fn falls_recovering(policy: &mut Policy, reason: FallbackReason, detail: &str) -> Result<(), String> {
    let plan = decide(policy, &request()).plan;
    let attempts = [Attempt { plan, failure: Failure::OutOfMemory { bytes: 1 } }];
    let decision = policy.decide(
        &Question::new(Stage::Decode, &hostile_request(), &device(), &offer()).after(&attempts),
        Arc::new(Prices),
    );
    let Some(fallback) = &decision.fallback else { return Err(format!("no fallback: {decision:?}")) };
    is_as_told((fallback.reason, &fallback.detail), (reason, detail))?;
    if decision.plan.space.tile().is_none() {
        return Err(format!("the default is no smaller: {:?}", decision.plan));
    }
    is_right(&decide(policy, &request()))
}

fn fails_learning(policy: &mut Policy, said: &str) -> Result<(), String> {
    let plan = decide(policy, &request()).plan;
    let lines = heard(|| {
        policy.learn(&Question::new(Stage::Decode, &hostile_request(), &device(), &offer()), &plan, &outcome());
    });
    if !lines.iter().any(|line| line.contains("failed to learn") && line.contains(said)) {
        return Err(format!("the log says {lines:?}"));
    }
    is_right(&decide(policy, &request()))
}

/// Fails unless a reason and its detail are those of the row.
fn is_as_told(said: (FallbackReason, &str), told: (FallbackReason, &str)) -> Result<(), String> {
    match said.0 == told.0 && said.1.contains(told.1) && is_one_line(said.1) {
        true => Ok(()),
        false => Err(format!("fell back for '{}: {}'", said.0, said.1)),
    }
}

fn is_one_line(text: &str) -> bool {
    !text.contains('\n') && text.chars().count() <= 500
}
