//! Policies that mean harm or are broken: a corpus of guests, in tables by subject. What has to
//! hold for each is in [`table`].

#[allow(dead_code, reason = "the gate's tests use the rest")]
mod clock;
mod costly;
mod features;
mod guest;
mod heard;
mod imports;
mod loops;
mod malformed;
mod memory;
mod scene;
mod table;
mod values;

use std::{sync::Arc, time::Duration};

use clock::OwnClock;
use guest::{Guest, HEALTHY, IMPORTS};
use scene::{assert_right, decide, device, host, hostile_request, offer, outcome, put_to_work, request};
use table::{Row, alone, contain};
use tilewright_plan::{FallbackReason, Planner, Question, Stage};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyHost};

const CORPUS: [(&str, &[Row]); 6] = [
    ("loops", loops::ROWS),
    ("memory", memory::ROWS),
    ("values", values::ROWS),
    ("imports", imports::ROWS),
    ("features", features::ROWS),
    ("malformed", malformed::ROWS),
];

macro_rules! subjects {
    ($($subject:ident),+) => {
        $(#[test] fn $subject() {
            contain(stringify!($subject), $subject::ROWS);
        })+
    };
}

mod contained {
    use super::*;

    subjects!(loops, memory, values, imports, features, malformed);
}

#[test]
fn every_guest_has_a_name_of_its_own() {
    let mut names: Vec<&str> = CORPUS.iter().flat_map(|(_, rows)| rows.iter()).map(|row| row.name).collect();
    println!("{} guests", names.len());
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    assert!(names.len() >= 200, "{}", names.len());
}

/// A guest that would go on for ever, with fuel without end, under clocks of the test's own.
fn endless(clock: Arc<OwnClock>) -> Policy {
    let limits = Limits { fuel: u64::MAX / 4, ..Limits::default() };
    let host = PolicyHost::with_clock(limits, &CacheDir::Off, clock).unwrap();
    put_to_work(&host, &Guest { decide: "(loop (br 0))", ..HEALTHY })
}

#[test]
fn takes_too_long() {
    let _alone = alone();
    // Half as fast, as fast and twice as fast as the wall's clock; one limit for all of them.
    for processor_ms in [10, 20, 40] {
        let clock = OwnClock::passing(Duration::from_millis(20), Duration::from_millis(processor_ms));
        let mut policy = endless(clock.clone());
        for _ in 0..2 {
            let before = clock.readings();
            let fallback = decide(&mut policy, &hostile_request()).fallback.unwrap();
            assert_eq!(fallback.reason, FallbackReason::Timeout);
            assert_eq!(fallback.detail, "no answer within 250 ms");
            // At the first reading at which both have gone on for 250 ms; a call begins with one,
            // and so does each instance that is made for it.
            let least = 250_u64.div_ceil(processor_ms.min(20));
            assert!((least..=least + 8).contains(&(clock.readings() - before)), "{processor_ms}");
            assert_right(&decide(&mut policy, &request()));
        }
        decide(&mut policy, &hostile_request());
        decide(&mut policy, &hostile_request());
        assert!(policy.is_out_of_service(), "it is to blame");
    }
}

#[test]
fn the_machines_own_clock_ends_a_call() {
    let _alone = alone();
    let limits = Limits { fuel: u64::MAX / 4, wall_ms: 50, ..Limits::default() };
    let host = PolicyHost::new(limits, &CacheDir::Off).unwrap();
    let mut policy = put_to_work(&host, &Guest { decide: "(loop (br 0))", ..HEALTHY });
    let fallback = decide(&mut policy, &hostile_request()).fallback.unwrap();
    // After 50 ms of the processor, or a second of the wall on a machine that is busier than that.
    assert_eq!(fallback.reason, FallbackReason::Timeout);
    assert!(fallback.detail.starts_with("no answer within "), "{}", fallback.detail);
}

#[test]
fn a_busy_machine_ends_a_call_later_and_blames_nobody_for_it() {
    let _alone = alone();
    // One part in fifty of the time; the wall's limit is twenty times the call's own.
    let clock = OwnClock::passing(Duration::from_millis(500), Duration::from_millis(10));
    let mut policy = endless(clock);
    for _ in 0..8 {
        let fallback = decide(&mut policy, &hostile_request()).fallback.unwrap();
        assert_eq!(fallback.reason, FallbackReason::Timeout);
        let said =
            "no answer within 5000 ms: the machine was busy, and the policy had the processor for 100 ms of them";
        assert_eq!(fallback.detail, said);
    }
    assert!(!policy.is_out_of_service());
    assert_right(&decide(&mut policy, &request()));
}

#[test]
fn every_third_failure_for_ever_takes_a_policy_out_of_service() {
    let _alone = alone();
    let host = host();
    let mut policy = put_to_work(&host, &Guest { decide: "(unreachable)", ..HEALTHY });
    let mut asked = 0;
    while !policy.is_out_of_service() {
        assert!(asked < 40, "still in service");
        decide(&mut policy, &if asked % 3 == 2 { hostile_request() } else { request() });
        asked += 1;
    }
    let fallback = decide(&mut policy, &request()).fallback.unwrap();
    assert_eq!(fallback.reason, FallbackReason::OutOfService);
    assert_eq!(fallback.detail, "failed in 4 of its last 40 calls and is no longer asked");
}

#[test]
fn prices_are_refused_beyond_the_cap() {
    let _alone = alone();
    let limits = Limits { candidates: 2, ..Limits::default() };
    let host = PolicyHost::new(limits, &CacheDir::Off).unwrap();
    // Traps unless the third answer is an error.
    let thrice =
        "CALL CALL CALL (if (i32.eqz (i32.load8_u (i32.const 2048))) (then unreachable)) (return (i32.const 1024))";
    let mut policy = put_to_work(&host, &Guest { imports: IMPORTS, decide: thrice, ..HEALTHY });
    let decision = decide(&mut policy, &hostile_request());
    assert_eq!((decision.fallback, decision.candidates.len()), (None, 2));
}

#[test]
fn traps_while_it_learns() {
    let _alone = alone();
    let mut policy = put_to_work(&host(), &Guest { learn: "unreachable", ..HEALTHY });
    let plan = decide(&mut policy, &request()).plan;
    policy.learn(&Question::new(Stage::Decode, &request(), &device(), &offer()), &plan, &outcome());
    assert_right(&decide(&mut policy, &request()));
    assert!(!policy.is_out_of_service());
}

#[test]
fn is_larger_than_allowed() {
    let _alone = alone();
    let host = PolicyHost::new(Limits { file_bytes: 1000, ..Limits::default() }, &CacheDir::Off).unwrap();
    let error = host.load("guest", &HEALTHY.build()).err().unwrap();
    assert!(error.to_string().ends_with("bytes, of 1000 allowed"), "{error}");
}
