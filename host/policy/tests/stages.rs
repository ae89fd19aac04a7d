//! Policies of contract 0.2 for decodes and encodes: the stages that they answer and leave out, and
//! lists of plans that they ask the prices of.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Decision, Device, Dtype, FallbackReason, HostMemory, Model, Objective,
    Outcome, Plan, Planner, PoolStatistics, Question, Request, Stage,
};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyError, PolicyHost};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

#[path = "hostile/clock.rs"]
#[allow(dead_code, reason = "the hostile tests use the rest")]
mod clock;

use clock::OwnClock;

/// A guest by hand: at 256 the description, at 384 configure's result, at 1024 decide's result,
/// which is whole, f32, batch 1; the heap begins at 8192. Plans to price lie from 1 MiB on, 60
/// bytes each.
fn guest(stages: &[u8], decide: &str, learn: &str) -> Vec<u8> {
    guest_by(CONTRACT, stages, decide, learn)
}

const CONTRACT: &str = include_str!("../../../wit/policy.wit");

/// The same by another contract's text.
fn guest_by(contract: &str, stages: &[u8], decide: &str, learn: &str) -> Vec<u8> {
    let list: String = stages.iter().map(|stage| format!("\\{stage:02x}")).collect();
    let count = stages.len();
    let text = format!(
        r#"(module
  (import "tilewright:policy/vae-host@0.2.0" "estimate" (func $estimate (param i32 i32 i32)))
  (memory (export "memory") 64)
  (global $heap (mut i32) (i32.const 8192))
  (data (i32.const 256) "\00\02\00\00\05\00\00\00\10\02\00\00\05\00\00\00\00\02\00\00\05\00\00\00\20\02\00\00\{count:02x}\00\00\00\08\00\00\00\00\00\00\00")
  (data (i32.const 512) "guest")
  (data (i32.const 528) "1.0.0")
  (data (i32.const 544) "{list}")
  (data (i32.const 1056) "\01\00\00\00")
  ;; So many plans, each in a batch of its number modulo `$kinds` and one.
  (func $plans (param $count i32) (param $kinds i32) (local $number i32)
    (loop
      (i32.store offset=1048604 (i32.mul (local.get $number) (i32.const 60))
        (i32.add (i32.const 1) (i32.rem_u (local.get $number) (local.get $kinds))))
      (local.set $number (i32.add (local.get $number) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $number) (local.get $count)))))
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.get $heap)
    (global.set $heap (i32.add (global.get $heap) (local.get $size))))
  (func (export "tilewright:policy/lifecycle@0.2.0#describe") (result i32) (i32.const 256))
  (func (export "tilewright:policy/lifecycle@0.2.0#configure") (param i32 i32) (result i32) (i32.const 384))
  (func (export "tilewright:policy/vae-policy@0.2.0#decide") (param $request i32) (result i32)
    (global.set $heap (i32.const 8192)) {decide} (i32.const 1024))
  (func (export "tilewright:policy/vae-policy@0.2.0#learn") (param $request i32) {learn})
)"#
    );
    let mut module = wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", contract).unwrap();
    let world = resolve.select_world(&[package], Some("vae-only")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    module
}

const DECODE: u8 = 2;
const ENCODE: u8 = 3;
const BOTH: &[u8] = &[DECODE, ENCODE];

/// 100 bytes per sample; counts the questions.
#[derive(Default)]
struct Prices {
    asked: AtomicU32,
}

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let peak_bytes = u64::from(plan.batch) * 100;
        Ok(Cost { peak_bytes, elapsed: Duration::from_millis(5), tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 })
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
        batch: 64,
        frames: 1,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 33,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
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
        hints: Vec::new(),
    }
}

fn capabilities() -> Capabilities {
    Capabilities { dtypes: vec![Dtype::F32], tile_unit: 8, tile_least: 64, batch_most: 64, ..Capabilities::default() }
}

fn ask(policy: &mut Policy, stage: Stage, prices: &Arc<Prices>) -> Decision {
    policy.decide(&Question::new(stage, &request(), &device(), &capabilities()), prices.clone())
}

fn host(limits: Limits) -> PolicyHost {
    PolicyHost::new(limits, &CacheDir::Off).unwrap()
}

fn put_to_work(limits: Limits, module: &[u8]) -> Policy {
    host(limits).load("guest", module).unwrap().configure(&[]).unwrap()
}

#[test]
fn a_stage_that_is_left_out_is_the_hosts_and_no_failure() {
    let mut policy = put_to_work(Limits::default(), &guest(&[ENCODE], "", "unreachable"));
    assert!(policy.answers(Stage::Encode) && !policy.answers(Stage::Decode));
    let prices = Arc::new(Prices::default());
    let outcome = Outcome {
        elapsed: Duration::from_secs(1),
        load: Duration::ZERO,
        peak_bytes: 1,
        attempts: 1,
        pool: PoolStatistics::default(),
        cold: false,
        weights_bytes: 0,
    };
    for _ in 0..50 {
        let decision = ask(&mut policy, Stage::Decode, &prices);
        let fallback = decision.fallback.unwrap();
        assert_eq!(fallback.reason, FallbackReason::NotAnswered);
        assert_eq!(fallback.detail, "it answers encode, and leaves decode to the host");
        assert_eq!((decision.answer, decision.fuel), (None, 0));
        // Nor is it told the outcome, over which it would trap.
        let (request, device, capabilities) = (request(), device(), capabilities());
        let question = Question::new(Stage::Decode, &request, &device, &capabilities);
        assert_eq!(policy.learn(&question, &decision.plan, &outcome).failure, None);
    }
    assert!(!policy.is_out_of_service());
    assert_eq!(ask(&mut policy, Stage::Encode, &prices).fallback, None);
}

#[test]
fn the_description_says_which_stages_are_answered() {
    let host = host(Limits::default());
    let load = |stages: &[u8]| host.load("guest", &guest(stages, "", ""));
    let stages = |stages: &[u8]| load(stages).unwrap().inspection().description.stages.clone();
    assert_eq!(stages(&[ENCODE, DECODE, ENCODE]), [Stage::Decode, Stage::Encode]);
    // Stages for which it exports nothing don't count.
    assert_eq!(stages(&[0, 1, DECODE]), [Stage::Decode]);
    assert_eq!(load(BOTH).unwrap().inspection().contract, "0.2.0");
    for none in [&[][..], &[0, 1]] {
        let error = load(none).err().unwrap();
        assert!(matches!(error, PolicyError::Description { .. }), "{error}");
        let words = "describes itself with no stage that it answers, of decode and encode";
        assert!(error.to_string().ends_with(words), "{error}");
    }
    // A stage that no contract knows.
    assert!(load(&[200]).is_err());
}

#[test]
fn a_component_is_taken_as_a_module_is() {
    let component = ComponentEncoder::default().module(&guest(BOTH, "", "")).unwrap().encode().unwrap();
    let mut policy = put_to_work(Limits::default(), &component);
    assert_eq!(ask(&mut policy, Stage::Decode, &Arc::new(Prices::default())).fallback, None);
}

#[test]
fn a_component_whose_functions_have_other_types_is_refused() {
    let other = |from: &str, to: &str| {
        assert!(CONTRACT.contains(from));
        let module = guest_by(&CONTRACT.replace(from, to), BOTH, "", "");
        let component = ComponentEncoder::default().module(&module).unwrap().encode().unwrap();
        let host = host(Limits::default());
        host.load("p", &component).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let request = other("allows-blended: bool", "allows-blended: u8");
    assert!(request.contains("tilewright:policy/vae-policy@0.2.0#decide is not of the contract's type"), "{request}");
    let outcome =
        other("        load-ns: u64,\n        attempts: u32,", "        load-ns: u64,\n        attempts: s32,");
    assert!(outcome.contains("tilewright:policy/vae-policy@0.2.0#learn is not of the contract's type"), "{outcome}");
    let settings = other("default: value }", "default: value, unit: u8 }");
    assert!(
        settings.contains("tilewright:policy/lifecycle@0.2.0#describe is not of the contract's type"),
        "{settings}"
    );
}

/// Traps unless the answers' first bytes are these, in order: 0 for a price, 1 for an error.
fn priced(count: u32, kinds: u32, errors: &[(u32, u32)]) -> String {
    let mut decide = format!(
        "(call $plans (i32.const {count}) (i32.const {kinds}))
         (call $estimate (i32.const 1048576) (i32.const {count}) (i32.const 2048))
         (if (i32.ne (i32.load (i32.const 2052)) (i32.const {count})) (then unreachable))"
    );
    for (number, expected) in errors {
        let at = format!("(i32.load8_u (i32.add (i32.load (i32.const 2048)) (i32.const {})))", number * 48);
        decide.push_str(&format!("(if (i32.ne {at} (i32.const {expected})) (then unreachable))"));
    }
    decide
}

#[test]
fn a_list_is_priced_in_its_order_and_equal_plans_once() {
    let prices = Arc::new(Prices::default());
    let mut policy = put_to_work(Limits::default(), &guest(BOTH, &priced(40, 4, &[(0, 0), (39, 0)]), ""));
    let decision = ask(&mut policy, Stage::Decode, &prices);
    assert_eq!(decision.fallback, None);
    let peaks: Vec<u64> =
        decision.candidates.iter().map(|candidate| candidate.cost.as_ref().unwrap().peak_bytes).collect();
    assert_eq!(peaks, [100, 200, 300, 400].repeat(10));
    // Four plans, and the one that was decided on.
    assert_eq!(prices.asked.load(Ordering::Relaxed), 5);
}

#[test]
fn a_list_has_as_many_prices_as_a_call_may_ask_for() {
    let limits = Limits { candidates: 2, ..Limits::default() };
    let mut policy = put_to_work(limits, &guest(BOTH, &priced(4, 4, &[(0, 0), (1, 0), (2, 1), (3, 1)]), ""));
    let decision = ask(&mut policy, Stage::Decode, &Arc::new(Prices::default()));
    assert_eq!((decision.fallback, decision.candidates.len()), (None, 2));
}

#[test]
fn an_empty_list_has_no_prices() {
    let decide = "(call $estimate (i32.const 0) (i32.const 0) (i32.const 2048))
        (if (i32.load (i32.const 2052)) (then unreachable))";
    let mut policy = put_to_work(Limits::default(), &guest(BOTH, decide, ""));
    assert_eq!(ask(&mut policy, Stage::Encode, &Arc::new(Prices::default())).fallback, None);
}

#[test]
fn the_clock_is_looked_at_within_a_list() {
    // 200 plans, and before each of them so many milliseconds pass on the processor, of ten. The
    // sandbox's own ticks may read the clock a few times besides.
    let after = |processor_ms: u64| {
        let clock = OwnClock::passing(Duration::from_millis(10), Duration::from_millis(processor_ms));
        let limits = Limits { wall_ms: 100, ..Limits::default() };
        let host = PolicyHost::with_clock(limits, &CacheDir::Off, clock).unwrap();
        let mut policy = host.load("guest", &guest(BOTH, &priced(200, 200, &[]), "")).unwrap().configure(&[]).unwrap();
        let prices = Arc::new(Prices::default());
        let decision = ask(&mut policy, Stage::Decode, &prices);
        let fallback = decision.fallback.unwrap();
        assert_eq!(fallback.reason, FallbackReason::Timeout, "{}", fallback.detail);
        (fallback.detail, decision.candidates.len())
    };
    let (said, priced) = after(10);
    assert!(said == "no answer within 100 ms" && (1..10).contains(&priced), "{said}: {priced}");
    let (said, priced) = after(5);
    assert!(said == "no answer within 100 ms" && (10..20).contains(&priced), "{said}: {priced}");
    let (said, priced) = after(0);
    let busy = "no answer within 2000 ms: the machine was busy, and the policy had the processor for 0 ms of them";
    assert!(said == busy && (20..200).contains(&priced), "{said}: {priced}");
}

#[test]
fn a_list_is_priced_to_its_end_on_a_machine_that_is_busy() {
    let clock = OwnClock::passing(Duration::from_millis(10), Duration::from_millis(1));
    let limits = Limits { wall_ms: 100, ..Limits::default() };
    let host = PolicyHost::with_clock(limits, &CacheDir::Off, clock).unwrap();
    let mut policy = host.load("guest", &guest(BOTH, &priced(60, 60, &[(59, 0)]), "")).unwrap().configure(&[]).unwrap();
    let decision = ask(&mut policy, Stage::Decode, &Arc::new(Prices::default()));
    assert_eq!((decision.fallback, decision.candidates.len()), (None, 60));
}
