//! Policies that answer samples alone: what they are asked, what becomes of answers that are out of
//! bounds, make no sense or mean harm, and of plans after failures.

mod by_hand;
#[path = "corpus/read.rs"]
mod read;

use std::{sync::Arc, time::Duration};

use by_hand::{DENOISE, device, put_to_work};
use proptest::prelude::*;
use tilewright_plan::{
    Attempt, Attention, CostModel, Decision, Denoise, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan,
    DenoiseRequest, DenoiserModel, Dtype, Failure, FallbackReason, GuidanceOrder, HostMemory, Objective, Options,
    Planner, PoolStatistics, Precision, Products, Question, Release, Stage, StepReuse, StoredType, UnderWay,
    WeightForm,
};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyHost, oracle};

/// A guest by hand, for this stage alone.
fn guest(decide: &str, learn: &str) -> Vec<u8> {
    DENOISE.guest(decide, learn)
}

/// Holds a gibibyte for each sample that runs at once, and two of weights.
struct Prices;

impl CostModel<Denoise> for Prices {
    fn estimate_one(&self, plan: &DenoisePlan) -> Result<DenoiseCost, String> {
        let samples = u64::from(plan.samples.unwrap_or(4));
        let (weights_bytes, moved_bytes) = if plan.ahead.is_some() { (1 << 29, 2 << 30) } else { (2 << 30, 0) };
        Ok(DenoiseCost { peak_bytes: samples << 30, weights_bytes, moved_bytes, step: Duration::from_millis(9) })
    }
}

fn request(memory_limit: u64) -> DenoiseRequest {
    DenoiseRequest {
        model: DenoiserModel {
            family: "flux".into(),
            parameters: 1 << 30,
            stored_bytes: 2 << 30,
            stored: "bf16".into(),
            blocks: 57,
            largest_block_bytes: 1 << 26,
            experts: 1,
            stored_types: vec![StoredType { name: "bf16".into(), bytes: 2 << 30 }],
        },
        batch: 4,
        frames: 1,
        height: 128,
        width: 128,
        text_tokens: 512,
        image_tokens: 4096,
        steps: 8,
        passes: 2,
        sampler: "euler".into(),
        sigmas: (0..=8).map(|step| 1.0 - f64::from(step) / 8.0).collect(),
        reuse: None,
        memory_limit,
        objective: Objective::Balanced,
        host: HostMemory { total_bytes: 1 << 36, free_bytes: 1 << 35, transfer_rate: 0 },
    }
}

fn capabilities() -> DenoiseCapabilities {
    DenoiseCapabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        fp8_products: false,
        int8_products: false,
        fused_attention: true,
        queries_least: 16,
        ahead_most: 64,
        parts_most: 64,
        reuse_most: 0.0,
        options: Vec::new(),
    }
}

const ROOM: u64 = 64 << 30;

fn decide(policy: &mut Policy, limit: u64, attempts: &[Attempt<Denoise>]) -> Decision<Denoise> {
    let (request, device, capabilities) = (request(limit), device(), capabilities());
    let question = Question::denoise(&request, &device, &capabilities).after(attempts);
    let decision = policy.decide(&question, Arc::new(Prices));
    assert_eq!(oracle::find_breaches(&decision.plan, &question), Vec::<&str>::new(), "{:?}", decision.plan);
    decision
}

#[test]
fn a_policy_for_samples_alone_is_asked_about_nothing_else() {
    let mut policy = put_to_work(&guest("", ""));
    assert!(policy.answers(Stage::Denoise) && !policy.answers(Stage::Decode));
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!((decision.fallback, decision.plan), (None, DenoisePlan::plain()));
}

#[test]
fn a_policy_without_rules_for_samples_leaves_them_to_the_host() {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let old = read::unpacked(&read::folder("0.1.0").join(format!("rust-fixed-component{}", read::ENDING)));
    let mut policy = host.load("old", &old).unwrap().configure(&[]).unwrap();
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!(decision.fallback.unwrap().reason, FallbackReason::NotAnswered);
    assert!(!policy.is_out_of_service());
    // The host divides the work where memory is short.
    let tight = decide(&mut policy, 2 << 30, &[]);
    assert_eq!((tight.plan.ahead, tight.plan.samples), (Some(1), Some(1)));
}

/// A gibibyte for each four bytes of a value, and no other change holds less.
struct ByWidth;

impl CostModel<Denoise> for ByWidth {
    fn estimate_one(&self, plan: &DenoisePlan) -> Result<DenoiseCost, String> {
        let peak_bytes = u64::from(plan.precision.dtype().bits()) << 25;
        Ok(DenoiseCost { peak_bytes, weights_bytes: 0, moved_bytes: 0, step: Duration::from_millis(9) })
    }
}

#[test]
fn the_host_takes_a_narrow_type_where_nothing_else_fits_and_values_did_not_overflow() {
    let mut policy = put_to_work(&guest("unreachable", ""));
    let (device, capabilities) = (device(), capabilities());
    let mut own = |limit: u64, attempts: &[Attempt<Denoise>]| {
        let request = request(limit);
        let question = Question::denoise(&request, &device, &capabilities).after(attempts);
        policy.decide(&question, Arc::new(ByWidth)).plan.precision
    };
    let narrow = Precision::Uniform(Dtype::Bf16);
    assert_eq!([own(1 << 30, &[]), own(3 << 28, &[])], [Precision::Uniform(Dtype::F32), narrow]);
    let plan = DenoisePlan { precision: narrow, ..DenoisePlan::plain() };
    assert_eq!(own(3 << 28, &[failed(&plan, Failure::NonFinite { values: 1 })]), Precision::Uniform(Dtype::F32));
}

/// Stores a byte, or four, at an offset of the plan.
fn byte(offset: u32, value: u8) -> String {
    DENOISE.byte(offset, value)
}

fn word(offset: u32, value: i64) -> String {
    DENOISE.word(offset, value)
}

#[test]
fn answers_that_mean_harm_or_nothing_fall_back_to_the_host() {
    use FallbackReason::{Nonsense, OutOfFuel, OutOfMemory, Trap};
    let list = |count: i64| format!("(call $estimate (i32.const 65536) (i32.const {count}) (i32.const 2048))");
    let cases = [
        ("traps", "unreachable".to_owned(), Trap),
        ("never ends", "(loop (br 0))".into(), OutOfFuel),
        ("wants all memory", "(drop (memory.grow (i32.const 30000)))".into(), OutOfMemory),
        ("no precision", byte(0, 2), Trap),
        ("no type", byte(1, 99), Trap),
        ("no products", byte(2, 3), Trap),
        ("no form of weights", byte(3, 2), Trap),
        ("no residency", byte(4, 3), Trap),
        ("no attention", byte(12, 2), Trap),
        ("no order of guidance", byte(20, 2), Trap),
        ("no option of samples", byte(24, 2), Trap),
        ("no reuse", byte(40, 3), Trap),
        ("no release", byte(56, 3), Trap),
        ("a reason from out of bounds", word(68, -16) + &word(72, 32), Trap),
        ("a reason that wraps around", word(68, -1) + &word(72, -1), Trap),
        ("a reason that is no UTF-8", byte(96, 255) + &word(68, 1128) + &word(72, 1), Trap),
        ("no result", "(i32.store8 (i32.const 1024) (i32.const 2))".into(), Trap),
        ("an answer at an odd address", "(return (i32.const 1028))".into(), Trap),
        ("an answer out of bounds", "(return (i32.const -8))".into(), Trap),
        ("attention of no queries", byte(12, 1), Nonsense),
        ("no samples at once", byte(24, 1), Nonsense),
        ("a layer in no parts", word(32, 0), Nonsense),
        ("a reuse of NaN", byte(40, 1) + "(f64.store (i32.const 1080) (f64.const nan))", Nonsense),
        ("a reuse of blocks of NaN", byte(40, 2) + "(f64.store (i32.const 1080) (f64.const nan))", Nonsense),
        ("a reuse without end", byte(40, 1) + "(f64.store (i32.const 1080) (f64.const inf))", Nonsense),
        ("a reuse below zero", byte(40, 1) + "(f64.store (i32.const 1080) (f64.const -1))", Nonsense),
        ("prices of a list without end", list(-1), Trap),
        ("prices out of bounds", list(1 << 20), Trap),
        ("prices to an odd address", "(call $estimate (i32.const 65536) (i32.const 0) (i32.const 2049))".into(), Trap),
        ("trials out of bounds", "(call $trials (i32.const 4) (i32.const -8))".into(), Trap),
    ];
    for (name, decide_body, reason) in cases {
        let mut policy = put_to_work(&guest(&decide_body, ""));
        for limit in [ROOM, 2 << 30] {
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
    let wild = [byte(4, 1) + &word(8, -1), byte(12, 1) + &word(16, 1), byte(24, 1) + &word(28, -1), word(32, -1)];
    let reused = byte(40, 1) + "(f64.store (i32.const 1080) (f64.const 0.5))";
    let mut policy = put_to_work(&guest(&(wild.concat() + &reused), ""));
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!(decision.fallback, None);
    assert_eq!(
        decision.adjusted,
        [
            "ahead 4294967295 → 64: no more than 64 blocks",
            "attention 1 → 16: at least 16 queries",
            "samples 4294967295 → all: no more than there are",
            "feed-forward 4294967295 → 64: no more than 64 parts",
            "reuse 0.5 → 0: the user does not allow it",
        ]
    );
}

#[test]
fn a_list_of_prices_is_answered_as_far_as_a_call_may_ask() {
    // Plans of zeros make no sense, which is a price's error and no failure.
    let ask = "(call $estimate (i32.const 65536) (i32.const 600) (i32.const 2048))
        (if (i32.ne (i32.load (i32.const 2052)) (i32.const 600)) (then unreachable))";
    let host = PolicyHost::new(Limits { candidates: 100, ..Limits::default() }, &CacheDir::Off).unwrap();
    let mut policy = host.load("guest", &guest(ask, "")).unwrap().configure(&[]).unwrap();
    let decision = decide(&mut policy, ROOM, &[]);
    assert_eq!((decision.fallback, decision.candidates.len()), (None, 100));
    assert!(decision.candidates.iter().all(|candidate| candidate.cost.is_err()));
}

fn failed(plan: &DenoisePlan, failure: Failure) -> Attempt<Denoise> {
    Attempt { plan: plan.clone(), failure }
}

#[test]
fn a_plan_that_failed_is_not_taken_again_and_what_is_left_is_the_hosts() {
    let mut policy = put_to_work(&guest("", ""));
    let memory = Failure::OutOfMemory { bytes: 1 };
    let mut attempts = Vec::new();
    let mut held = Vec::new();
    let mut plan = decide(&mut policy, ROOM, &[]).plan;
    while let Some(next) = {
        attempts.push(failed(&plan, memory));
        let (request, device, capabilities) = (request(ROOM), device(), capabilities());
        let question = Question::denoise(&request, &device, &capabilities).after(&attempts);
        policy.fallback(&question, &Prices)
    } {
        let cost = Prices.estimate_one(&next.plan).unwrap();
        held.push(cost.held_bytes());
        plan = next.plan;
        assert!(attempts.len() < 10, "it comes to an end");
    }
    assert!(held.len() >= 2 && held.windows(2).all(|pair| pair[1] < pair[0]), "{held:?}");
    let again = decide(&mut policy, ROOM, &attempts[..1]);
    assert_eq!(again.fallback.unwrap().detail, "a plan that has failed before");
    // Values that overflow in f32 are mended by nothing.
    let narrow = DenoisePlan { precision: Precision::Uniform(Dtype::Bf16), ..DenoisePlan::plain() };
    let overflowed = Failure::NonFinite { values: 3 };
    let wider = decide(&mut put_to_work(&guest("unreachable", "")), ROOM, &[failed(&narrow, overflowed)]);
    assert_eq!(wider.plan.precision, Precision::Uniform(Dtype::F32));
}

#[test]
fn what_a_policy_learns_from_samples_reaches_it_and_a_trap_costs_no_more() {
    let outcome = DenoiseOutcome {
        elapsed: Duration::from_secs(2),
        load: Duration::ZERO,
        step: Duration::from_millis(250),
        peak_bytes: 1,
        weights_bytes: 1,
        moved_bytes: 0,
        attempts: 1,
        reused: 0,
        reuse_deviation: 0.0,
        pool: PoolStatistics::default(),
    };
    let (request, device, capabilities) = (request(ROOM), device(), capabilities());
    let question = Question::denoise(&request, &device, &capabilities);
    let mut learns = put_to_work(&guest("", ""));
    let plan = decide(&mut learns, ROOM, &[]).plan;
    assert_eq!(learns.learn(&question, &plan, &outcome).failure, None);
    let mut traps = put_to_work(&guest("", "unreachable"));
    assert_eq!(traps.learn(&question, &plan, &outcome).failure.unwrap().reason, FallbackReason::Trap);
    assert_eq!(decide(&mut traps, ROOM, &[]).fallback, None);
    // A question between two steps.
    let under_way = UnderWay { done: 3, plan };
    assert_eq!(learns.decide(&question.going_on(Some(&under_way)), Arc::new(Prices)).fallback, None);
}

fn any_plan() -> impl Strategy<Value = DenoisePlan> {
    let dtype = prop::sample::select(Dtype::ALL.to_vec());
    let number = || prop_oneof![0_u32..70, Just(u32::MAX), any::<u32>()];
    let products = prop::sample::select(Products::ALL.to_vec());
    let form = (any::<bool>(), prop::option::of(number()), products, any::<bool>());
    let work = (prop::option::of(number()), prop::option::of(number()), number(), any::<f64>(), any::<bool>());
    (dtype, any::<bool>(), form, work).prop_map(|(dtype, mixed, (packed, ahead, products, together), work)| {
        let (queries, samples, feed_forward, threshold, reuses) = work;
        DenoisePlan {
            precision: if mixed { Precision::Mixed(dtype) } else { Precision::Uniform(dtype) },
            products,
            weights: if packed { WeightForm::Packed } else { WeightForm::Expanded },
            ahead,
            attention: queries.map_or(Attention::Fused, |queries| Attention::Pieces { queries }),
            guidance: if together { GuidanceOrder::Together } else { GuidanceOrder::InTurn },
            samples,
            feed_forward,
            reuse: if reuses { StepReuse::Output { threshold } } else { StepReuse::Off },
            release: Release::Keep,
            reason: String::new(),
            options: Options::none(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_checked_plan_is_within_bounds_and_stays_as_it_is(
        plan in any_plan(),
        batch in 1_u32..5,
        passes in 1_u32..3,
        reuse_most in prop_oneof![Just(0.0), 0.01_f64..0.5],
        fp8_products: bool,
        int8_products: bool,
    ) {
        let request = DenoiseRequest { batch, passes, ..request(ROOM) };
        let capabilities = DenoiseCapabilities { reuse_most, fp8_products, int8_products, ..capabilities() };
        let device = device();
        let question = Question::denoise(&request, &device, &capabilities);
        let mut legal = plan;
        if oracle::check_answer(&mut legal, &question).is_ok() {
            prop_assert_eq!(oracle::find_breaches(&legal, &question), Vec::<&str>::new());
            prop_assert_eq!(oracle::check_answer(&mut legal.clone(), &question), Ok(Vec::new()));
        }
    }
}
