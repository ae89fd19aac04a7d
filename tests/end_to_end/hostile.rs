//! Hostile policies through the program: one that fails before it is put to work ends with two; one that fails in a decision is
//! replaced by the host's default, the picture still comes, and the record says why.

use crate::program::{Place, fixture};

/// A policy as a core module: healthy answers are whole, f32, batch 1. `describe` and `decide` run before them.
pub fn guest(describe: &str, decide: &str) -> Vec<u8> {
    module(describe, decide, "(call $decide (local.get 0))")
}

/// One that passes the load gate where `decide` does well: after a failure it knows no better, and says so.
pub fn careful(decide: &str) -> Vec<u8> {
    module("", decide, "(i32.const 2048)")
}

fn module(describe: &str, decide: &str, recover: &str) -> Vec<u8> {
    let text = format!(
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
  (func $decide (export "tilewright:policy/decoding-policy@0.1.0#decide") (param i32) (result i32) {decide} (i32.const 1024))
  (func (export "tilewright:policy/decoding-policy@0.1.0#recover") (param i32) (result i32) {recover})
  (func (export "tilewright:policy/decoding-policy@0.1.0#learn") (param i32)))"#
    );
    wat::parse_str(text).unwrap()
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
        assert_eq!(record["fallback"]["reason"].as_str(), reason, "{body}: {record}");
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
