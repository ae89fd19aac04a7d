//! Policies that mean harm or are broken. Each leaves the host working: the decision falls back, the next one is right, and a policy
//! beside it is not disturbed.

mod guest;

use std::{sync::Arc, time::Duration};

use guest::{Guest, HEALTHY, HOSTILE_BATCH, HOSTILE_FAMILY, IMPORTS, host};
use tilewright_plan::{
    Attempt, Backend, Cost, Decision, Device, Dtype, Facts, Failure, FallbackReason, Model, Objective, Offer, Outcome,
    Plan, Planner, PoolStatistics, Request, Space, Trial,
};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyError, PolicyHost};

struct Prices;

impl Facts for Prices {
    fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
        let pixels = plan.space.tile().map_or(1 << 20, |tile| u64::from(tile.height) * u64::from(tile.width));
        Ok(Cost { peak_bytes: pixels * 100, elapsed: Duration::from_millis(5), tiles: 1, shapes: 1, rework: 1.0 })
    }

    fn trials(&self, _most: u32) -> Vec<Trial> {
        Vec::new()
    }
}

fn request() -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::F16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames: 1,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 33,
        objective: Objective::Balanced,
        hints: Vec::new(),
    }
}

fn hostile_request() -> Request {
    let mut request = Request { batch: HOSTILE_BATCH, ..request() };
    request.model.family = HOSTILE_FAMILY.into();
    request
}

fn device() -> Device {
    Device {
        backend: Backend::Cpu,
        name: "test".into(),
        arch: "test".into(),
        compute_units: 2,
        total_bytes: 1 << 34,
        free_bytes: 1 << 33,
        unified: false,
        fast_dtypes: Vec::new(),
    }
}

fn offer() -> Offer {
    Offer {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: false,
        carried: false,
        offload: false,
        prefetch_most: 0,
        running: None,
    }
}

fn decide(policy: &mut Policy, request: &Request) -> Decision {
    policy.decide(request, &device(), &offer(), Arc::new(Prices))
}

fn put_to_work(host: &PolicyHost, guest: &Guest) -> Policy {
    host.load("guest", &guest.build()).unwrap().configure(&[]).unwrap()
}

/// The healthy answer: taken as it is.
fn assert_right(decision: &Decision) {
    assert_eq!(decision.fallback, None);
    assert_eq!(decision.plan.space, Space::Whole);
    assert_eq!(decision.answer.as_ref(), Some(&decision.plan));
    assert!(decision.fuel > 0);
}

/// The hostile request falls back for this reason; the next decision is right, for the policy and for one beside it; the third failure
/// in a row takes the policy out of service, and leaves the one beside it in.
fn assert_contained(guest: Guest, reason: FallbackReason, detail: &str) {
    let host = host();
    let mut policy = put_to_work(&host, &guest);
    let mut beside = put_to_work(&host, &HEALTHY);
    let mut details = Vec::new();
    for round in 0..2 {
        let decision = decide(&mut policy, &hostile_request());
        let fallback =
            decision.fallback.clone().unwrap_or_else(|| panic!("no fallback in round {round}: {decision:?}"));
        assert_eq!(fallback.reason, reason, "{}", fallback.detail);
        assert!(fallback.detail.contains(detail), "{}", fallback.detail);
        assert!(!fallback.detail.contains('\n') && fallback.detail.chars().count() <= 401, "{}", fallback.detail);
        assert!(decision.plan.reason.starts_with("native default"), "{}", decision.plan.reason);
        assert!(decision.log.len() <= 64 && decision.candidates.len() <= 4096);
        assert_eq!(decision.adjusted, [""; 0]);
        details.push((fallback, decision.fuel));
        assert_right(&decide(&mut policy, &request()));
        assert_right(&decide(&mut beside, &request()));
    }
    assert_eq!(details[0], details[1], "the same inputs fail the same way, at the same cost");
    for _ in 0..3 {
        assert!(!policy.is_out_of_service());
        assert!(decide(&mut policy, &hostile_request()).fallback.is_some());
    }
    if reason == FallbackReason::Error {
        assert!(!policy.is_out_of_service(), "an honest error is an answer");
        return assert_right(&decide(&mut policy, &request()));
    }
    assert!(policy.is_out_of_service());
    let decision = decide(&mut policy, &request());
    assert_eq!(decision.fallback.unwrap().reason, FallbackReason::OutOfService);
    assert_eq!((decision.fuel, decision.answer), (0, None));
    assert_right(&decide(&mut beside, &request()));
}

/// One test per guest, so that each is named where it fails.
macro_rules! contained {
    ($($name:ident: { $($part:ident: $value:expr),+ $(,)? } => $reason:ident, $detail:literal;)+) => {
        $(#[test] fn $name() {
            assert_contained(Guest { $($part: $value,)+ ..HEALTHY }, FallbackReason::$reason, $detail);
        })+
    };
}

contained! {
    loops_for_ever: { decide: "(loop (br 0))" } => OutOfFuel, "all 50000000 units of fuel";
    grows_memory: { decide: "(drop (memory.grow (i32.const 1000)))" } => OutOfMemory, "bytes of memory, of 16777216 allowed";
    grows_memory_by_and_by: { decide: "(loop (drop (memory.grow (i32.const 1))) (br 0))" } => OutOfMemory, "of memory";
    grows_a_table: {
        fields: "(table $t 1 funcref)",
        decide: "(drop (table.grow $t (ref.null func) (i32.const 1000000)))",
    } => OutOfMemory, "table elements, of 20000 allowed";
    traps: { decide: "unreachable" } => Trap, "unreachable";
    divides_by_zero: { decide: "(drop (i32.div_u (i32.const 1) (i32.const 0)))" } => Trap, "divide by zero";
    recurses: { fields: "(func $r (result i32) (i32.add (call $r) (i32.const 1)))", decide: "(drop (call $r))" } => Trap, "stack";
    reads_out_of_bounds: { decide: "(drop (i32.load (i32.const -8)))" } => Trap, "out of bounds memory access";
    calls_the_wrong_signature: {
        fields: "(type $none (func)) (table $t 1 funcref) (elem (i32.const 0) $decide)",
        decide: "(call_indirect (type $none) (i32.const 0))",
    } => Trap, "indirect call type mismatch";
    answers_a_huge_text: {
        // result::err with 100,000 bytes from address 0.
        decide: "(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store (i32.const 2056) (i32.const 100000)) (return (i32.const 2048))",
    } => Trap, "too much data";
    answers_text_that_is_no_utf_8: {
        decide: "(i32.store8 (i32.const 3000) (i32.const 255)) (i32.store8 (i32.const 2048) (i32.const 1))
                 (i32.store (i32.const 2052) (i32.const 3000)) (i32.store (i32.const 2056) (i32.const 1)) (return (i32.const 2048))",
    } => Trap, "utf-8";
    answers_text_out_of_bounds: {
        decide: "(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store (i32.const 2052) (i32.const -16))
                 (i32.store (i32.const 2056) (i32.const 8)) (return (i32.const 2048))",
    } => Trap, "out of bounds";
    answers_from_out_of_bounds: { decide: "(return (i32.const -4))" } => Trap, "out of bounds";
    answers_from_an_odd_address: { decide: "(return (i32.const 1025))" } => Trap, "aligned";
    answers_no_layout: {
        decide: "(i32.store (i32.const 2080) (i32.const 1)) (i32.store8 (i32.const 2086) (i32.const 9)) (return (i32.const 2048))",
    } => Trap, "discriminant";
    answers_no_result: { decide: "(i32.store8 (i32.const 2048) (i32.const 7)) (return (i32.const 2048))" } => Trap, "expected";
    realloc_traps: { realloc: "(if (i32.eq (local.get $size) (i32.const 14)) (then unreachable))" } => Trap, "unreachable";
    realloc_lies: { realloc: "(if (i32.eq (local.get $size) (i32.const 14)) (then (return (i32.const -16))))" } => Trap, "beyond end of memory";
    floods_the_log: {
        imports: IMPORTS,
        decide: "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 1000)) (br 0))",
    } => Trap, "passed more than 65536 bytes";
    floods_the_log_with_nothing: {
        imports: IMPORTS,
        decide: "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 0)) (br 0))",
    } => Trap, "more than 16384 times";
    logs_a_level_that_is_none: { imports: IMPORTS, decide: "(call $log (i32.const 9) (i32.const 0) (i32.const 0))" } => Trap, "";
    asks_prices_for_ever: { imports: IMPORTS, decide: "(loop (global.set $heap (i32.const 8192)) CALL (br 0))" } => Trap, "more than 16384 times";
    asks_trials_for_ever: {
        imports: IMPORTS,
        decide: "(loop (call $trials (i32.const -1) (i32.const 2048)) (br 0))",
    } => Trap, "more than 16384 times";
    answers_a_batch_of_nothing: { decide: "(return (i32.const 2048))" } => Nonsense, "a batch of nothing";
    answers_a_tile_of_no_extent: {
        decide: "(i32.store8 (i32.const 2052) (i32.const 1)) (i32.store (i32.const 2080) (i32.const 1)) (return (i32.const 2048))",
    } => Nonsense, "a tile of no extent";
    answers_an_error: { decide: "(i32.store8 (i32.const 2048) (i32.const 1)) (return (i32.const 2048))" } => Error, "";
}

#[test]
fn takes_too_long() {
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
fn repeats_what_failed() {
    let mut policy = put_to_work(&host(), &HEALTHY);
    let plan = decide(&mut policy, &request()).plan;
    let attempts = [Attempt { plan: plan.clone(), failure: Failure::OutOfMemory { bytes: 1 } }];
    let decision = policy.recover(&request(), &device(), &offer(), Arc::new(Prices), &attempts);
    let fallback = decision.fallback.unwrap();
    assert_eq!(
        (fallback.reason, fallback.detail.as_str()),
        (FallbackReason::Nonsense, "a plan that has failed before")
    );
    assert!(decision.plan.space.tile().is_some(), "{:?}", decision.plan);
}

#[test]
fn traps_while_it_learns() {
    let mut policy = put_to_work(&host(), &Guest { learn: "unreachable", ..HEALTHY });
    let plan = decide(&mut policy, &request()).plan;
    let outcome = Outcome {
        elapsed: Duration::from_secs(1),
        load: Duration::ZERO,
        peak_bytes: 1,
        attempts: 1,
        pool: PoolStatistics::default(),
    };
    policy.learn(&request(), &device(), &plan, &outcome);
    assert_right(&decide(&mut policy, &request()));
    assert!(!policy.is_out_of_service());
}

fn load_error(bytes: &[u8]) -> PolicyError {
    let host = host();
    let error = match host.load("guest.wasm", bytes) {
        Err(error) => error,
        Ok(loaded) => match loaded.configure(&[]) {
            Err(error) => error,
            Ok(_) => panic!("it was put to work"),
        },
    };
    let text = error.to_string();
    assert!(!text.contains('\n') && text.starts_with("policy guest"), "{text}");
    // The host goes on.
    assert_right(&decide(&mut put_to_work(&host, &HEALTHY), &request()));
    error
}

#[test]
fn fails_while_it_is_loaded() {
    let failed = |guest: Guest, during: &str, detail: &str| match load_error(&guest.build()) {
        PolicyError::Failed { during: during_it, detail: said, .. } => {
            assert_eq!(during_it, during);
            assert!(said.contains(detail), "{said}");
        }
        other => panic!("{other}"),
    };
    failed(Guest { fields: "(func $s (loop (br 0))) (start $s)", ..HEALTHY }, "its start", "out-of-fuel");
    failed(Guest { fields: "(func $s unreachable) (start $s)", ..HEALTHY }, "its start", "unreachable");
    failed(Guest { memory: r#"(memory (export "memory") 1000)"#, ..HEALTHY }, "its start", "out-of-memory");
    failed(Guest { fields: "(table 1000000 funcref)", ..HEALTHY }, "its start", "out-of-memory");
    failed(Guest { describe: "(loop (br 0))", ..HEALTHY }, "describe", "out-of-fuel");
    failed(Guest { describe: "(return (i32.const -4))", ..HEALTHY }, "describe", "out of bounds");
    failed(Guest { configure: "(loop (br 0))", ..HEALTHY }, "configure", "out-of-fuel");
    failed(Guest { configure: "unreachable", ..HEALTHY }, "configure", "unreachable");
}

#[test]
fn describes_itself_with_rubbish() {
    let described = |guest: Guest| match load_error(&guest.build()) {
        PolicyError::Description { detail, .. } => detail,
        other => panic!("{other}"),
    };
    assert_eq!(described(Guest { describe: "(i32.store (i32.const 260) (i32.const 0))", ..HEALTHY }), "an empty name");
    let long = "(i32.store (i32.const 260) (i32.const 65))";
    assert_eq!(described(Guest { describe: long, ..HEALTHY }), "a name longer than 64 characters");
    let blank = "(i32.store8 (i32.const 513) (i32.const 10))";
    assert_eq!(described(Guest { describe: blank, ..HEALTHY }), "a name that is not of printable ASCII without blanks");
}

#[test]
fn refuses_its_settings() {
    // result::err with the five letters of its name.
    let refuse = "(i32.store8 (i32.const 384) (i32.const 1)) (i32.store (i32.const 388) (i32.const 512)) (i32.store (i32.const 392) (i32.const 5))";
    let error = load_error(&Guest { configure: refuse, ..HEALTHY }.build());
    assert_eq!(error.to_string(), "policy guest: guest");
}

#[test]
fn imports_what_is_not_offered() {
    let wasi = r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
                  (import "env" "abort" (func))"#;
    let error = load_error(&Guest { imports: wasi, ..HEALTHY }.build());
    assert!(
        matches!(&error, PolicyError::ImportNotOffered { imports, .. } if imports == &["wasi_snapshot_preview1", "env"]),
        "{error}"
    );
    let component = r#"(component (import "wasi:cli/environment@0.2.0" (instance)))"#;
    let error = load_error(&wat::parse_str(component).unwrap());
    assert!(error.to_string().contains("imports wasi:cli/environment@0.2.0, which policies are not given"), "{error}");
    let unknown = r#"(import "tilewright:policy/host@0.1.0" "reboot" (func))"#;
    let error = load_error(&Guest { imports: unknown, ..HEALTHY }.build());
    assert!(error.to_string().contains("reboot"), "{error}");
}

#[test]
fn exports_too_little() {
    let error = load_error(&wat::parse_str("(component)").unwrap());
    assert!(matches!(&error, PolicyError::MissingExport { exports, .. } if exports.len() == 2), "{error}");
    let error = load_error(&Guest { recover_name: "recover", ..HEALTHY }.build());
    assert!(
        error
            .to_string()
            .starts_with("policy guest.wasm: does not export tilewright:policy/decoding-policy@0.1.0#recover:"),
        "{error}"
    );
    let error = load_error(&wat::parse_str("(module)").unwrap());
    assert!(matches!(&error, PolicyError::MissingExport { exports, .. } if exports.len() == 5), "{error}");
}

#[test]
fn uses_features_that_are_off() {
    let off = [
        Guest { memory: r#"(memory (export "memory") 4) (memory 1)"#, ..HEALTHY },
        Guest { memory: r#"(memory (export "memory") 4 4 shared)"#, ..HEALTHY },
        Guest { fields: "(func (result i32) (i32.atomic.load (i32.const 0)))", ..HEALTHY },
        Guest { fields: "(memory $m i64 1)", ..HEALTHY },
        Guest { fields: "(tag $e) (func (throw $e))", ..HEALTHY },
        Guest { fields: "(type $s (struct (field i32)))", ..HEALTHY },
        Guest {
            fields: "(func (param v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) (local.get 0)))",
            ..HEALTHY
        },
    ];
    for guest in off {
        let error = load_error(&guest.build());
        assert!(matches!(error, PolicyError::Invalid { .. }), "{error}");
    }
}

#[test]
fn is_not_webassembly() {
    let found = |bytes: &[u8]| match load_error(bytes) {
        PolicyError::NotWebAssembly { found, .. } => found,
        other => panic!("{other}"),
    };
    assert_eq!(found(b""), "the file is empty");
    assert_eq!(found(b"print('hello')\n"), "it is a text file");
    assert_eq!(found(b"  (module)"), "it looks like WebAssembly text, which has to be assembled first");
    assert_eq!(found(b"\0asm\x07\0\0\0"), "a version of the format that is not known here");
    assert_eq!(found(b"\x7fELF\x02\x01"), "it does not begin as WebAssembly does");
}

#[test]
fn is_cut_short_or_damaged() {
    let whole = HEALTHY.build();
    let host = host();
    for end in (9..whole.len()).step_by(11) {
        if let Err(error) = host.load("guest", &whole[..end]) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
    for place in (8..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x55;
        if let Ok(mut policy) = host.load("guest", &damaged).and_then(|loaded| loaded.configure(&[])) {
            decide(&mut policy, &request());
        }
    }
    assert_right(&decide(&mut put_to_work(&host, &HEALTHY), &request()));
}

#[test]
fn is_larger_than_allowed() {
    let host = PolicyHost::new(Limits { file_bytes: 1000, ..Limits::default() }, &CacheDir::Off).unwrap();
    let error = host.load("guest", &HEALTHY.build()).err().unwrap();
    assert!(error.to_string().ends_with("bytes, of 1000 allowed"), "{error}");
}
