//! Policies that mean harm or are broken: a corpus of guests, in tables by subject. What has to
//! hold for each is in [`table`].

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

use std::{
    hint::black_box,
    num::NonZero,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use guest::{Guest, HEALTHY, IMPORTS};
use scene::{assert_right, decide, device, host, hostile_request, offer, outcome, put_to_work, request};
use table::{Row, alone, contain};
use tilewright_plan::{FallbackReason, Planner, Question, Stage};
use tilewright_policy::{CacheDir, Limits, PolicyHost};

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

#[test]
fn takes_too_long() {
    let _alone = alone();
    // With fuel without end the clock has to stop it.
    let limits = Limits { fuel: u64::MAX / 4, wall_ms: 50, ..Limits::default() };
    let host = PolicyHost::new(limits, &CacheDir::Off).unwrap();
    let mut policy = put_to_work(&host, &Guest { decide: "(loop (br 0))", ..HEALTHY });
    let fallback = decide(&mut policy, &hostile_request()).fallback.unwrap();
    assert_eq!(fallback.reason, FallbackReason::Timeout);
    assert!(fallback.detail.starts_with("no answer within 50 ms"), "{}", fallback.detail);
    assert_right(&decide(&mut policy, &request()));
}

#[test]
fn the_clock_holds_on_a_machine_that_is_busy_and_blames_nobody_for_it() {
    let _alone = alone();
    let limits = Limits { fuel: u64::MAX / 4, ..Limits::default() };
    let host = PolicyHost::new(limits, &CacheDir::Off).unwrap();
    let mut policy = put_to_work(&host, &Guest { decide: "(loop (br 0))", ..HEALTHY });
    // Four threads for each core that do nothing but count.
    let is_over = AtomicBool::new(false);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let took = thread::scope(|scope| {
        for _ in 0..4 * cores {
            scope.spawn(|| {
                let mut count = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    count = black_box(count.wrapping_add(1));
                }
            });
        }
        let took = (0..3).map(|_| {
            let started = Instant::now();
            let fallback = decide(&mut policy, &hostile_request()).fallback.unwrap();
            assert_eq!(fallback.reason, FallbackReason::Timeout);
            assert!(fallback.detail.starts_with("no answer within 250 ms"), "{}", fallback.detail);
            started.elapsed()
        });
        let took: Vec<Duration> = took.collect();
        is_over.store(true, Ordering::Relaxed);
        took
    });
    // Ticks are not late by much: the clock's thread sleeps most of the time, so it is woken before
    // those that count.
    assert!(took.iter().all(|took| *took >= Duration::from_millis(250)), "{took:?}");
    assert!(took.iter().min().unwrap() <= &Duration::from_millis(500), "{took:?}");
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
