//! Hostile policies through the program: one that fails before it is put to work ends with two; one
//! that fails in a decision is replaced by the host's default, the picture still comes, and the
//! record says why.

use crate::program::{Place, fixture, middle};

/// A policy as a core module: healthy answers are whole, f32, batch 1. `describe` and `decide` run
/// before them.
pub fn guest(describe: &str, decide: &str) -> Vec<u8> {
    module(describe, decide, "(call $decide (local.get 0))")
}

/// One that passes the load gate where `decide` does well: after a failure it knows no better, and
/// says so.
pub fn careful(decide: &str) -> Vec<u8> {
    module("", decide, "(i32.const 2048)")
}

/// A healthy policy with further fields: types, functions.
pub fn with_fields(fields: &str) -> Vec<u8> {
    wat::parse_str(format!("{} {fields})", text("", "", "(i32.const 2048)"))).unwrap()
}

fn module(describe: &str, decide: &str, recover: &str) -> Vec<u8> {
    wat::parse_str(format!("{})", text(describe, decide, recover))).unwrap()
}

/// The module's text without the last bracket.
fn text(describe: &str, decide: &str, recover: &str) -> String {
    format!(
        r#"(module
  (import "tilewright:policy/decoding-host@0.1.0" "trials" (func $trials (param i32 i32)))
  (memory (export "memory") 4)
  (global $heap (mut i32) (i32.const 8192))
  (data (i32.const 256) "\00\02\00\00\05\00\00\00\10\02\00\00\05\00\00\00\00\02\00\00\05\00\00\00\08\00\00\00\00\00\00\00")
  (data (i32.const 512) "guest")
  (data (i32.const 528) "1.0.0")
  (data (i32.const 1056) "\01\00\00\00")
  (data (i32.const 2048) "\01\00\00\00\00\02\00\00\05\00\00\00\00\00\00\00")
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.get $heap)
    (global.set $heap (i32.add (global.get $heap) (local.get 3))))
  (func (export "tilewright:policy/lifecycle@0.1.0#describe") (result i32) {describe} (i32.const 256))
  (func (export "tilewright:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32) (i32.const 384))
  (func $decide (export "tilewright:policy/decoding-policy@0.1.0#decide") (param i32) (result i32)
    (local $left i32) {decide} (i32.const 1024))
  (func (export "tilewright:policy/decoding-policy@0.1.0#recover") (param i32) (result i32) (local $left i32) {recover})
  (func (export "tilewright:policy/decoding-policy@0.1.0#learn") (param i32))"#
    )
}

const TRAP: &str = "(unreachable)";
const LOOP: &str = "(loop $for_ever (br $for_ever))";
const ALLOCATE: &str = "(loop $more (drop (memory.grow (i32.const 64))) (br $more))";
const RUBBISH: &str = "(return (i32.const 0x7ffffff0))";

fn inputs() -> [String; 3] {
    [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")]
}

#[test]
fn a_policy_that_fails_in_a_decision_is_replaced_and_the_picture_comes() {
    let cases = [
        ("", None),
        (TRAP, Some("trap")),
        (LOOP, Some("out-of-fuel")),
        (ALLOCATE, Some("out-of-memory")),
        (RUBBISH, Some("trap")),
    ];
    for (body, reason) in cases {
        let place = Place::new();
        let policy = place.write("p.wasm", guest("", body));
        let record = place.decode(&inputs(), &["--policy", &policy, "--json", "-o", "out.png"]).json();
        // On a slow processor, the time ends before the fuel.
        let said = record["fallback"]["reason"].as_str();
        assert!(said == reason || (body == LOOP && said == Some("timeout")), "{body}: {record}");
        assert_eq!(record["answer"].is_null(), reason.is_some(), "{body}");
        assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() > 0, "{body}");
        assert_eq!(place.files(), ["out.png", "p.wasm"]);
    }
}

#[test]
fn a_policy_that_fails_before_it_is_put_to_work_ends_with_two() {
    for body in [TRAP, LOOP, ALLOCATE, RUBBISH] {
        let place = Place::new();
        let policy = place.write("p.wasm", guest(body, ""));
        place.decode(&inputs(), &["--policy", &policy, "-o", "out.png"]).failed(2, "describe");
        assert_eq!(place.files(), ["p.wasm"]);
    }
}

/// As [`guest`], but with `recover` run before the decision after a failure.
fn denier(decide: &str, recover: &str) -> Vec<u8> {
    module("", decide, &format!("{recover} (call $decide (local.get 0))"))
}

/// Parts of an answer: the plan is at address 1028. `ATTEMPTS` is the number of failed attempts.
const ATTEMPTS: &str = "(i32.load offset=132 (local.get 0))";
const F16: &str = "(i32.store8 (i32.const 1061) (i32.const 2))";
const MIXED: &str = "(i32.store8 (i32.const 1060) (i32.const 1))";
const LAST: &str = "(i32.store8 (i32.const 1062) (i32.const 1))";
const EACH_STEP: &str = "(i32.store8 (i32.const 1063) (i32.const 2))";
/// Tiles of this side with an overlap of 16, `together` at once.
fn tiles(side: u32, together: u32) -> String {
    format!(
        "(i32.store8 (i32.const 1028) (i32.const 1)) (i32.store (i32.const 1032) (i32.const {side}))
         (i32.store (i32.const 1036) (i32.const {side})) (i32.store (i32.const 1040) (i32.const 16))
         (i32.store (i32.const 1056) (i32.const {together}))"
    )
}

/// A quarter of the whole picture's expected memory: neither the whole nor large tiles fit; small
/// ones do.
fn tight(place: &Place, inputs: &[String]) -> String {
    let peak = |options: &[&str]| {
        let all = [&["--dry-run", "--json", "--no-history", "--policy", "fixed"], options].concat();
        place.decode(inputs, &all).json()["estimate"]["peak_bytes"].as_u64().unwrap()
    };
    let limit = peak(&["--set", "space=whole"]) / 4;
    let tile = peak(&["--set", "space=blended", "--set", "tile=64", "--set", "overlap=16"]);
    assert!(tile < limit, "tiles of 64 in f32 take {tile}, of {limit}");
    limit.to_string()
}

#[test]
fn a_policy_that_denies_gets_no_more_than_its_attempts_and_the_picture_comes() {
    let place = Place::new();
    let inputs = middle(&place, 32);
    let limit = tight(&place, &inputs);
    let burn = "(local.set $left (i32.const 3000000))
        (loop $more (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))";
    let after = |attempts: u32, then: &str| format!("(if (i32.eq {ATTEMPTS} (i32.const {attempts})) (then {then}))");
    // Narrow dtypes would take minutes on a processor without them.
    let never = [after(1, &tiles(248, 1)), after(2, &tiles(224, 1))].concat();
    // There are 25 in all.
    let (many, fewer) = (tiles(64, 24), [after(1, &tiles(64, 23)), after(2, &tiles(64, 22))].concat());
    // A plan repeated in other words is the same plan: the host decides from the second attempt on.
    let alternating = [after(1, LAST), after(2, EACH_STEP), after(3, LAST)].concat();
    // The host's own plan is the last resort if a policy denies to the end.
    let cases = [
        ("never fitting", denier("", &never), true),
        (
            "too many tiles",
            denier(&format!("(if (i32.eqz (i32.load8_u (i32.const 1028))) (then {many}))"), &fewer),
            false,
        ),
        ("traps on recover", denier("", TRAP), false),
        ("alternating", denier("", &alternating), false),
        (
            "slow",
            module("", burn, &format!("{burn} (i32.store8 (i32.const 1062) (i32.const 1)) (i32.const 1024)")),
            false,
        ),
        ("never ends", denier("", LOOP), false),
    ];
    for (name, module, is_last_resort) in cases {
        let policy = place.write("p.wasm", module);
        let options = ["--policy", &policy, "--memory-limit", &limit, "--no-history", "--json", "-o", "out.png"];
        let record = place.decode(&inputs, &options).json();
        assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() > 0, "{name}: {record}");
        let attempts = record["attempts"].as_array().unwrap().len();
        assert!((1..=3).contains(&attempts) || !is_last_resort, "{name}: {attempts} failed before");
        if is_last_resort {
            assert_eq!((attempts, &record["fallback"]["reason"]), (3, &"exhausted".into()), "{name}: {record}");
            assert!(record["attempts"].as_array().unwrap().iter().all(|attempt| attempt["fallback"].is_null()));
            assert!(record["plan"]["reason"].as_str().unwrap().starts_with("native default"), "{name}: {record}");
        }
        assert_eq!(place.files(), ["middle.safetensors", "out.png", "p.wasm"], "{name}");
        std::fs::remove_file(place.path("out.png")).unwrap();
    }
}

#[test]
fn a_policy_that_keeps_to_narrow_types_is_not_the_end_of_it() {
    let place = Place::new();
    // Past f16's range, and far within f32's: stored in bf16.
    let path = fixture("flux-bfl/ae.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let names: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let offsets = names["decoder.up.0.block.0.conv1.bias"]["data_offsets"].clone();
    let at = |index: usize| header + offsets[index].as_u64().unwrap() as usize;
    for pair in bytes[at(0)..at(1)].chunks_exact_mut(2) {
        pair.copy_from_slice(&((1e6_f32.to_bits() >> 16) as u16).to_le_bytes());
    }
    let vae = place.write("ae.safetensors", bytes);
    let policy = place.write("p.wasm", denier(F16, &format!("{MIXED} {LAST}")));
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), vae];
    let record = place.decode(&inputs, &["--policy", &policy, "--no-history", "--json", "-o", "out.png"]).json();
    let attempts = record["attempts"].as_array().unwrap();
    assert!(
        !attempts.is_empty() && attempts.iter().all(|attempt| attempt["failure"]["kind"] == "non-finite"),
        "{record}"
    );
    assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() > 0, "{record}");
}
