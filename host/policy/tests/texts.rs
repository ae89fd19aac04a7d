//! Policies that answer text encoders' runs alone: what they are asked, what becomes of answers
//! that are out of bounds or mean harm, and of plans after failures.

mod by_hand;

use std::{sync::Arc, time::Duration};

use by_hand::{TEXT, device, put_to_work};
use proptest::prelude::*;
use tilewright_plan::{
    Attempt, CostModel, Decision, Dtype, EncoderModel, Failure, FallbackReason, HostMemory, Objective, Options, Place,
    Planner, PoolStatistics, Precision, Question, Stage, StoredType, Text, TextCapabilities, TextCost, TextOutcome,
    TextPlan, TextRequest, WeightForm,
};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyHost, oracle};

/// A guest by hand, for this stage alone.
fn guest(decide: &str, learn: &str) -> Vec<u8> {
    TEXT.guest(decide, learn)
}

/// A gibibyte of weights, and as much beside them for each four bytes of a value.
struct Prices;

impl CostModel<Text> for Prices {
    fn estimate_one(&self, plan: &TextPlan) -> Result<TextCost, String> {
        let peak_bytes = u64::from(plan.precision.dtype().bits()) << 25;
        let (elapsed, load) = (Duration::from_millis(9), Duration::from_millis(90));
        Ok(TextCost { elapsed, load, peak_bytes, weights_bytes: 1 << 30, host_bytes: 0 })
    }
}

fn request(memory_limit: u64) -> TextRequest {
    TextRequest {
        model: EncoderModel {
            kind: "t5-xxl".into(),
            stored_types: vec![StoredType { name: "bf16".into(), bytes: 9 << 30 }],
            parameter_bytes: 9 << 30,
            blocks: 24,
            width: 4096,
            head_width: 64,
        },
        tokens: vec![256, 256],
        memory_limit,
        objective: Objective::Balanced,
        host: HostMemory { total_bytes: 1 << 36, free_bytes: 1 << 35, transfer_rate: 0 },
    }
}

fn capabilities() -> TextCapabilities {
    TextCapabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        places: vec![Place::Host],
        weights: vec![WeightForm::Packed, WeightForm::Expanded],
        kept: false,
        options: Vec::new(),
    }
}

const ROOM: u64 = 64 << 30;

fn decide(policy: &mut Policy, limit: u64, attempts: &[Attempt<Text>]) -> Decision<Text> {
    let (request, device, capabilities) = (request(limit), device(), capabilities());
    let question = Question::text(&request, &device, &capabilities).after(attempts);
    let decision = policy.decide(&question, Arc::new(Prices));
    assert_eq!(oracle::find_breaches(&decision.plan, &question), Vec::<&str>::new(), "{:?}", decision.plan);
    decision
}

#[test]
fn a_policy_for_text_encoders_alone_is_asked_about_nothing_else() {
    let mut policy = put_to_work(&guest("", ""));
    assert!(policy.answers(Stage::Text) && !policy.answers(Stage::Denoise) && !policy.answers(Stage::Decode));
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!((decision.fallback, decision.plan), (None, TextPlan::plain(Place::Host)));
}

#[test]
fn a_policy_without_rules_for_text_encoders_leaves_them_to_the_host() {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let mut policy = host.load_shipped("gfx1151").unwrap().configure(&[]).unwrap();
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!(decision.fallback.unwrap().reason, FallbackReason::NotAnswered);
    assert!(!policy.is_out_of_service());
    // The host takes a narrow type where memory is short.
    let tight = decide(&mut policy, (3 << 30) / 2, &[]);
    assert_eq!(tight.plan.precision, Precision::Mixed(Dtype::Bf16));
}

/// Stores a byte, or four, at an offset of the plan.
fn byte(offset: u32, value: u8) -> String {
    TEXT.byte(offset, value)
}

fn word(offset: u32, value: i64) -> String {
    TEXT.word(offset, value)
}

#[test]
fn answers_that_mean_harm_or_nothing_fall_back_to_the_host() {
    use FallbackReason::{OutOfFuel, OutOfMemory, Trap};
    let list = |count: i64| format!("(call $estimate (i32.const 65536) (i32.const {count}) (i32.const 2048))");
    let cases = [
        ("traps", "unreachable".to_owned(), Trap),
        ("never ends", "(loop (br 0))".into(), OutOfFuel),
        ("wants all memory", "(drop (memory.grow (i32.const 30000)))".into(), OutOfMemory),
        ("no precision", byte(0, 2), Trap),
        ("no type", byte(1, 99), Trap),
        ("no place", byte(2, 2), Trap),
        ("no form of weights", byte(3, 2), Trap),
        ("a reason from out of bounds", word(16, -16) + &word(20, 32), Trap),
        ("a reason that wraps around", word(16, -1) + &word(20, -1), Trap),
        ("a reason that is no UTF-8", byte(72, 255) + &word(16, 1100) + &word(20, 1), Trap),
        ("no result", "(i32.store8 (i32.const 1024) (i32.const 2))".into(), Trap),
        ("an answer at an odd address", "(return (i32.const 1026))".into(), Trap),
        ("an answer out of bounds", "(return (i32.const -8))".into(), Trap),
        ("prices of a list without end", list(-1), Trap),
        ("prices out of bounds", list(1 << 20), Trap),
        ("prices to an odd address", "(call $estimate (i32.const 65536) (i32.const 0) (i32.const 2049))".into(), Trap),
        ("trials out of bounds", "(call $trials (i32.const 4) (i32.const -8))".into(), Trap),
    ];
    for (name, decide_body, reason) in cases {
        let mut policy = put_to_work(&guest(&decide_body, ""));
        for limit in [ROOM, 1 << 30] {
            let decision = decide(&mut policy, limit, &[]);
            let fallback = decision.fallback.unwrap_or_else(|| panic!("{name}: {:?}", decision.plan));
            assert_eq!(fallback.reason, reason, "{name}: {}", fallback.detail);
            assert!(!fallback.detail.contains('\n') && decision.plan.reason.starts_with("native default"), "{name}");
        }
        decide(&mut policy, ROOM, &[]);
        assert!(policy.is_out_of_service(), "{name}");
    }
}

#[test]
fn answers_out_of_bounds_are_brought_into_them() {
    // f16, mixed, on a device that there is not, kept for nobody.
    let wild = [byte(0, 1), byte(1, 3), byte(2, 0), byte(3, 1), byte(4, 1)].concat();
    let decision = decide(&mut put_to_work(&guest(&wild, "")), ROOM, &[]);
    assert_eq!(decision.fallback, None);
    assert_eq!(
        decision.adjusted,
        [
            "precision mixed f16 → f32: not offered",
            "place device → host: not offered",
            "kept true → false: the encoder is not needed again in this process",
        ]
    );
    assert_eq!(decision.plan.weights, WeightForm::Expanded);
}

#[test]
fn a_list_of_prices_is_answered_as_far_as_a_call_may_ask() {
    let ask = "(call $estimate (i32.const 65536) (i32.const 600) (i32.const 2048))
        (if (i32.ne (i32.load (i32.const 2052)) (i32.const 600)) (then unreachable))";
    let host = PolicyHost::new(Limits { candidates: 100, ..Limits::default() }, &CacheDir::Off).unwrap();
    let mut policy = host.load("guest", &guest(ask, "")).unwrap().configure(&[]).unwrap();
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!((decision.fallback, decision.candidates.len()), (None, 100));
    assert!(decision.candidates.iter().all(|candidate| candidate.cost.is_ok()));
}

fn failed(plan: &TextPlan, failure: Failure) -> Attempt<Text> {
    Attempt { plan: plan.clone(), failure }
}

#[test]
fn a_plan_that_failed_is_not_taken_again_and_what_is_left_is_the_hosts() {
    let mut policy = put_to_work(&guest("", ""));
    let first = decide(&mut policy, ROOM, &[]).plan;
    let attempts = [failed(&first, Failure::OutOfMemory { bytes: 1 })];
    let again = decide(&mut policy, ROOM, &attempts);
    assert_eq!(again.fallback.unwrap().detail, "a plan that has failed before");
    assert_eq!(again.plan.precision, Precision::Mixed(Dtype::Bf16));
    let (request, device, capabilities) = (request(ROOM), device(), capabilities());
    let all = [attempts[0].clone(), failed(&again.plan, Failure::OutOfMemory { bytes: 1 })];
    let question = Question::text(&request, &device, &capabilities).after(&all);
    assert_eq!(policy.fallback(&question, &Prices), None);
    // Values that overflow are mended by f32 alone.
    let overflowed = Failure::NonFinite { values: 3 };
    let wider = decide(&mut put_to_work(&guest("unreachable", "")), ROOM, &[failed(&again.plan, overflowed)]);
    assert_eq!(wider.plan.precision, Precision::Uniform(Dtype::F32));
}

#[test]
fn what_a_policy_learns_from_texts_reaches_it_and_a_trap_costs_no_more() {
    let outcome = TextOutcome {
        elapsed: Duration::from_secs(2),
        load: Duration::ZERO,
        peak_bytes: 1,
        weights_bytes: 1,
        host_bytes: 0,
        attempts: 1,
        pool: PoolStatistics::default(),
    };
    let (request, device, capabilities) = (request(ROOM), device(), capabilities());
    let question = Question::text(&request, &device, &capabilities);
    let mut learns = put_to_work(&guest("", ""));
    let plan = decide(&mut learns, ROOM, &[]).plan;
    assert_eq!(learns.learn(&question, &plan, &outcome).failure, None);
    let mut traps = put_to_work(&guest("", "unreachable"));
    assert_eq!(traps.learn(&question, &plan, &outcome).failure.unwrap().reason, FallbackReason::Trap);
    assert_eq!(decide(&mut traps, ROOM, &[]).fallback, None);
}

fn any_plan() -> impl Strategy<Value = TextPlan> {
    let dtype = prop::sample::select(Dtype::ALL.to_vec());
    (dtype, any::<[bool; 4]>()).prop_map(|(dtype, [mixed, device, packed, kept])| TextPlan {
        precision: if mixed { Precision::Mixed(dtype) } else { Precision::Uniform(dtype) },
        place: if device { Place::Device } else { Place::Host },
        weights: if packed { WeightForm::Packed } else { WeightForm::Expanded },
        kept,
        reason: String::new(),
        options: Options::none(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_checked_plan_is_within_bounds_and_stays_as_it_is(plan in any_plan(), has_device: bool, kept: bool) {
        let places = if has_device { vec![Place::Device, Place::Host] } else { vec![Place::Host] };
        let (request, device) = (request(ROOM), device());
        let capabilities = TextCapabilities { places, kept, ..capabilities() };
        let question = Question::text(&request, &device, &capabilities);
        let mut legal = plan;
        prop_assert!(oracle::check_answer(&mut legal, &question).is_ok());
        prop_assert_eq!(oracle::find_breaches(&legal, &question), Vec::<&str>::new());
        prop_assert_eq!(oracle::check_answer(&mut legal.clone(), &question), Ok(Vec::new()));
    }
}
