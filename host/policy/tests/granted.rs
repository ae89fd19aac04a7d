//! Grants of a user to a policy: an inert WASI, and more memory with the other needs of a
//! language's runtime.

use tilewright_policy::{CacheDir, Limits, LoadedPolicy, PolicyError, PolicyHost, Wasi};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

#[allow(dead_code, reason = "the hostile tests use more of it")]
#[path = "hostile/guest.rs"]
mod guest;

use guest::{Guest, HEALTHY};

/// As much of WASI as these tests call, and something that no inert one gives.
const WASI: &str = "
package test:guest;

package wasi:io@0.2.9 {
    interface error { resource error; }
    interface poll { resource pollable { block: func(); ready: func() -> bool; } }
    interface streams {
        use error.{error};
        variant stream-error { last-operation-failed(error), closed }
        resource output-stream {
            check-write: func() -> result<u64, stream-error>;
            blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>;
        }
    }
}

package wasi:clocks@0.2.9 {
    interface monotonic-clock {
        use wasi:io/poll@0.2.9.{pollable};
        now: func() -> u64;
        subscribe-duration: func(nanoseconds: u64) -> pollable;
    }
}

package wasi:random@0.2.9 { interface random { get-random-u64: func() -> u64; } }

package wasi:cli@0.2.9 {
    interface exit { exit: func(status: result); }
    interface stderr { use wasi:io/streams@0.2.9.{output-stream}; get-stderr: func() -> output-stream; }
}

package wasi:keyvalue@0.2.9 { interface store { open: func(); } }

world guest {
    include tilewright:policy/policy@0.1.0;
    import wasi:io/poll@0.2.9;
    import wasi:io/streams@0.2.9;
    import wasi:clocks/monotonic-clock@0.2.9;
    import wasi:random/random@0.2.9;
    import wasi:cli/exit@0.2.9;
    import wasi:cli/stderr@0.2.9;
    import wasi:keyvalue/store@0.2.9;
}
";

const IMPORTS: &str = r#"
  (import "wasi:io/poll@0.2.9" "[method]pollable.block" (func $block (param i32)))
  (import "wasi:io/poll@0.2.9" "[method]pollable.ready" (func $ready (param i32) (result i32)))
  (import "wasi:io/streams@0.2.9" "[method]output-stream.check-write" (func $check_write (param i32 i32)))
  (import "wasi:io/streams@0.2.9" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
  (import "wasi:clocks/monotonic-clock@0.2.9" "now" (func $now (result i64)))
  (import "wasi:clocks/monotonic-clock@0.2.9" "subscribe-duration" (func $subscribe (param i64) (result i32)))
  (import "wasi:random/random@0.2.9" "get-random-u64" (func $random (result i64)))
  (import "wasi:cli/exit@0.2.9" "exit" (func $exit (param i32)))
  (import "wasi:cli/stderr@0.2.9" "get-stderr" (func $stderr (result i32)))
  (import "wasi:keyvalue/store@0.2.9" "open" (func $open))"#;

/// A component that does this when it describes itself.
fn component(describe: &'static str) -> Vec<u8> {
    let fields = r#"(data (i32.const 3000) "first line\nout of ideas\nthread 'main' gave up\nnote: more\n")"#;
    let text = Guest { imports: IMPORTS, fields, describe, ..HEALTHY }.text();
    let mut module = wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut resolve = Resolve::default();
    resolve.push_file(concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit/released/0.1.0/policy.wit")).unwrap();
    let package = resolve.push_str("guest.wit", WASI).unwrap();
    let world = resolve.select_world(&[package], Some("guest")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&module).unwrap().validate(true).encode().unwrap()
}

fn load(wasm: &[u8], wasi: Wasi) -> Result<LoadedPolicy, PolicyError> {
    let limits = Limits::default().granting(wasi, None);
    PolicyHost::new(limits, &CacheDir::Off).unwrap().load("guest.wasm", wasm)
}

fn refused(describe: &'static str) -> String {
    load(&component(describe), Wasi::Inert).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn wasi_is_refused_where_it_is_not_granted() {
    let error = load(&component(""), Wasi::None).map(|_| ()).unwrap_err();
    assert!(matches!(error, PolicyError::Ungranted { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("imports wasi:") && error.contains("more interfaces of WASI"), "{error}");
    assert!(error.contains("give --wasi inert"), "{error}");
}

#[test]
fn a_guest_that_sleeps_for_an_hour_answers_at_once() {
    let sleeps = "(local $hour i32)
        (local.set $hour (call $subscribe (i64.const 3600000000000)))
        (call $block (local.get $hour))
        (if (i32.eqz (call $ready (local.get $hour))) (then (unreachable)))
        (if (i64.ne (call $now) (i64.const 0)) (then (unreachable)))";
    load(&component(sleeps), Wasi::Inert).unwrap();
}

#[test]
fn random_numbers_are_the_same_in_every_call_and_run() {
    // The first letter of the version, and another number after it.
    let digit = "(i32.store8 (i32.const 528)
            (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (call $random) (i64.const 10)))))
        (if (i64.eq (call $random) (call $random)) (then (unreachable)))";
    let version = || load(&component(digit), Wasi::Inert).unwrap().description().version.clone();
    let first = version();
    assert_ne!(first, "1.0.0", "the seed was chosen so that this shows");
    assert_eq!(first, version());
}

#[test]
fn leaving_ends_the_call_and_nothing_else() {
    assert!(refused("(call $exit (i32.const 0))").contains("failed in describe: the guest ended itself"));
}

#[test]
fn what_an_inert_wasi_does_not_give_ends_the_call_by_its_name() {
    let error = refused("(call $open)");
    assert!(error.contains("called wasi:keyvalue/store@0.2.9#open, which an inert WASI does not give"), "{error}");
}

#[test]
fn the_last_words_on_standard_error_are_in_the_failure() {
    let error = refused(
        "(call $write (call $stderr) (i32.const 3000) (i32.const 57) (i32.const 2048))
         (if (i32.load8_u (i32.const 2048)) (then (return (i32.const 256))))
         (unreachable)",
    );
    assert!(error.contains("unreachable") && error.contains("it said: out of ideas"), "{error}");
}

#[test]
fn calls_of_wasi_count_as_questions_to_the_host() {
    let error = refused("(loop $ever (drop (call $now)) (br $ever))");
    assert!(error.contains("asked the host more than 16384 times"), "{error}");
}

#[test]
fn more_memory_is_a_grant() {
    let wasm = Guest { memory: r#"(memory (export "memory") 400)"#, ..HEALTHY }.build();
    let error = load(&wasm, Wasi::None).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("a policy can be granted more"), "{error}");
    let limits = Limits::default().granting(Wasi::None, Some(32 << 20));
    PolicyHost::new(limits, &CacheDir::Off).unwrap().load("guest.wasm", &wasm).unwrap();
    let usual = Limits::default();
    assert_eq!(usual.granting(Wasi::None, None), usual);
    assert_eq!(usual.granting(Wasi::None, Some(1 << 20)), Limits { memory_bytes: 1 << 20, ..usual });
}

/// The code that joins components inside a policy is made by wasmtime, with a memory on either
/// side: it panicked if modules with several memories were off.
#[test]
fn components_inside_a_policy_may_pass_texts_to_each_other() {
    let joined = r#"(component
      (component $to
        (core module $m (memory (export "memory") 1) (func (export "f") (param i32 i32))
          (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 0))
        (core instance $i (instantiate $m))
        (func (export "f") (param "s" string)
          (canon lift (core func $i "f") (memory $i "memory") (realloc (func $i "realloc")))))
      (component $from
        (import "f" (func $f (param "s" string)))
        (core module $l (memory (export "memory") 1))
        (core instance $l (instantiate $l))
        (core func $lowered (canon lower (func $f) (memory $l "memory")))
        (core module $m (import "" "f" (func $f (param i32 i32))) (func (export "g") (call $f (i32.const 0) (i32.const 5))))
        (core instance $i (instantiate $m (with "" (instance (export "f" (func $lowered))))))
        (func (export "g") (canon lift (core func $i "g"))))
      (instance $to (instantiate $to))
      (instance $from (instantiate $from (with "f" (func $to "f"))))
      (export "g" (func $from "g")))"#;
    let error = load(&wat::parse_str(joined).unwrap(), Wasi::None).map(|_| ()).unwrap_err();
    assert!(matches!(error, PolicyError::MissingExport { .. }), "{error}");
}
