//! Guests that import something that policies do not get, export something that nothing calls, or
//! call the host at a time when they must not.

use tilewright_plan::FallbackReason::Trap;

use crate::{
    guest::{Guest, HEALTHY, IMPORTS},
    table::{
        Outcome::{FailsLearning, Falls, Refused, Right},
        Row,
        Source::{Bytes, Parts, Text},
    },
};

/// A core module that exports what the contract asks for under another version, and imports from
/// it.
fn of_version(version: &str) -> Vec<u8> {
    let guest = Guest { imports: IMPORTS, ..HEALTHY };
    wat::parse_str(guest.text().replace("@0.1.0", version)).unwrap()
}

pub const ROWS: &[Row] = &[
    Row {
        name: "imports WASI as a core module",
        guest: Parts(Guest {
            imports: r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32))) (import "env" "abort" (func))"#,
            ..HEALTHY
        }),
        outcome: Refused("imports env, wasi_snapshot_preview1, which policies are not given: only tilewright:policy/host@0.1.0 and"),
    },
    Row {
        name: "imports from a module without a name",
        guest: Parts(Guest { imports: r#"(import "" "f" (func))"#, ..HEALTHY }),
        outcome: Refused("imports '', which policies are not given"),
    },
    Row {
        name: "imports WASI as a component",
        guest: Text(r#"(component (import "wasi:cli/environment@0.2.0" (instance)))"#),
        outcome: Refused("imports wasi:cli/environment@0.2.0, which policies are not given"),
    },
    Row { name: "imports a function that is none", guest: Parts(Guest { imports: r#"(import "tilewright:policy/host@0.1.0" "reboot" (func))"#, ..HEALTHY }), outcome: Refused("reboot") },
    Row {
        name: "imports an interface that is none",
        guest: Parts(Guest { imports: r#"(import "tilewright:policy/files@0.1.0" "open" (func))"#, ..HEALTHY }),
        outcome: Refused("imports tilewright:policy/files@0.1.0, which policies are not given"),
    },
    Row {
        name: "imports a function by another type",
        guest: Parts(Guest { imports: r#"(import "tilewright:policy/host@0.1.0" "log" (func (param i64)))"#, ..HEALTHY }),
        outcome: Refused("log"),
    },
    Row {
        name: "imports a memory for a function",
        guest: Parts(Guest { imports: r#"(import "tilewright:policy/host@0.1.0" "log" (global i32))"#, ..HEALTHY }),
        outcome: Refused("not a module that can be run here"),
    },
    Row {
        name: "imports from another version",
        guest: Parts(Guest { imports: r#"(import "tilewright:policy/host@0.2.0" "log" (func (param i32 i32 i32)))"#, ..HEALTHY }),
        outcome: Refused("imports tilewright:policy/host@0.2.0, which policies are not given"),
    },
    Row {
        name: "is of a later version",
        guest: Bytes(|| of_version("@0.3.0")),
        outcome: Refused("built for version 0.3.0 of the contract, but this program speaks 0.1.0, 0.2.0"),
    },
    Row {
        name: "is of a later version, and a component",
        guest: Text(
            r#"(component (component $c (import "f" (func $f)) (export "describe" (func $f)))
                (core module $m (func (export "f"))) (core instance $m (instantiate $m)) (func $f (canon lift (core func $m "f")))
                (instance $i (instantiate $c (with "f" (func $f)))) (export "tilewright:policy/lifecycle@0.3.0" (instance $i)))"#,
        ),
        outcome: Refused("built for version 0.3.0 of the contract, but this program speaks 0.1.0, 0.2.0"),
    },
    Row { name: "is of a version that is none", guest: Bytes(|| of_version("@next")), outcome: Refused("built for version next of the contract") },
    Row { name: "is of no version", guest: Bytes(|| of_version("")), outcome: Refused("which policies are not given") },
    Row { name: "an empty component", guest: Text("(component)"), outcome: Refused("does not export tilewright:policy/lifecycle@0.2.0, tilewright:policy/vae-policy@0.2.0, tilewright:policy/denoise-policy@0.2.0, tilewright:policy/text-policy@0.2.0:") },
    Row { name: "an empty module", guest: Text("(module)"), outcome: Refused("does not export tilewright:policy/lifecycle@0.2.0#describe, ") },
    Row { name: "exports all but one", guest: Parts(Guest { recover_name: "recover", ..HEALTHY }), outcome: Refused("does not export tilewright:policy/decoding-policy@0.1.0#recover:") },
    Row {
        name: "exports a function by another type",
        guest: Bytes(|| wat::parse_str(HEALTHY.text().replace(r##"#learn") (param $request i32)"##, r##"#learn") (param $request i64)"##)).unwrap()),
        outcome: Refused("learn"),
    },
    Row {
        name: "exports an interface by another type",
        guest: Text(
            r#"(component (component $c (import "f" (func $f)) (export "describe" (func $f)))
                (core module $m (func (export "f"))) (core instance $m (instantiate $m)) (func $f (canon lift (core func $m "f")))
                (instance $i (instantiate $c (with "f" (func $f))))
                (export "tilewright:policy/lifecycle@0.1.0" (instance $i)) (export "tilewright:policy/decoding-policy@0.1.0" (instance $i)))"#,
        ),
        outcome: Refused("not a module that can be run here"),
    },
    Row {
        name: "realloc calls the host",
        guest: Parts(Guest {
            imports: IMPORTS,
            realloc: "(if (i32.eq (local.get $size) (i32.const 14)) (then (call $log (i32.const 0) (i32.const 512) (i32.const 5))))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "cannot leave component instance"),
    },
    Row {
        name: "realloc calls the host while the host answers",
        guest: Parts(Guest {
            imports: IMPORTS,
            realloc: "(if (i32.eq (i32.load (i32.const 64)) (i32.const 1)) (then (call $log (i32.const 0) (i32.const 512) (i32.const 5))))",
            // A batch of nothing: what is wrong with it has to be told in a text, for which the
            // host asks for memory.
            decide: "(i32.store (i32.const 64) (i32.const 1))
                (call $estimate (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0)
                (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0)  (i32.const 2048))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "cannot leave component instance"),
    },
    Row {
        name: "post-return calls the host",
        guest: Parts(Guest {
            imports: IMPORTS,
            fields: r#"(func (export "cabi_post_tilewright:policy/decoding-policy@0.1.0#decide") (param i32)
                (if (i32.eq (i32.load (i32.const 64)) (i32.const 1)) (then (call $log (i32.const 0) (i32.const 512) (i32.const 5)))))"#,
            decide: "(i32.store (i32.const 64) (i32.const 1))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "cannot leave component instance"),
    },
    Row {
        name: "post-return traps",
        guest: Parts(Guest {
            fields: r#"(func (export "cabi_post_tilewright:policy/decoding-policy@0.1.0#decide") (param i32)
                (if (i32.eq (i32.load (i32.const 64)) (i32.const 1)) (then unreachable)))"#,
            decide: "(i32.store (i32.const 64) (i32.const 1))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "unreachable"),
    },
    Row {
        name: "start asks for prices and trials",
        guest: Parts(Guest {
            imports: IMPORTS,
            fields: "(func $s (call $trials (i32.const 9) (i32.const 2048)) (call $log (i32.const 0) (i32.const 512) (i32.const 5))) (start $s)",
            ..HEALTHY
        }),
        outcome: Refused("its start: uninitialized element"),
    },
    Row { name: "asks itself", guest: Parts(Guest { decide: "(drop (call $decide (i32.const 4096)))", ..HEALTHY }), outcome: Right },
    Row { name: "logs while it learns, and traps", guest: Parts(Guest { imports: IMPORTS, learn: "(call $log (i32.const 2) (i32.const 512) (i32.const 5)) unreachable", ..HEALTHY }), outcome: FailsLearning("trap: wasm `unreachable`") },
    Row { name: "a component with a start of its own, twice", guest: Text(r#"(component (import "a" (func $f)) (start $f) (start $f))"#), outcome: Refused("") },
];
