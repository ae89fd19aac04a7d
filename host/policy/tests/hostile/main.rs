//! Policies that mean harm or are broken: a corpus of guests, in tables by subject. What has to hold for each is in [`table`].

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

use guest::{Guest, HEALTHY, IMPORTS};
use scene::{assert_right, decide, device, host, hostile_request, outcome, put_to_work, request};
use table::{Row, alone, contain};
use tilewright_plan::{FallbackReason, Planner};
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
    assert_eq!((fallback.reason, fallback.detail.as_str()), (FallbackReason::Timeout, "no answer within 50 ms"));
    assert_right(&decide(&mut policy, &request()));
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
    policy.learn(&request(), &device(), &plan, &outcome());
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
