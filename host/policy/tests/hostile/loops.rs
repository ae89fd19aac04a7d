//! Guests that don't come to an end.

use tilewright_plan::FallbackReason::{OutOfFuel, Trap};

use crate::{
    guest::{Guest, HEALTHY, IMPORTS},
    table::{
        Outcome::{FailsLearning, Falls, FallsRecovering, Refused},
        Row,
        Source::Parts,
    },
};

const LOOP: &str = "(loop (br 0))";
const FUEL: &str = "all 50000000 units of fuel";

pub const ROWS: &[Row] = &[
    Row { name: "start loops", guest: Parts(Guest { fields: "(func $s (loop (br 0))) (start $s)", ..HEALTHY }), outcome: Refused("its start: all 50000000") },
    Row { name: "describe loops", guest: Parts(Guest { describe: LOOP, ..HEALTHY }), outcome: Refused("describe: all 50000000") },
    Row { name: "configure loops", guest: Parts(Guest { configure: LOOP, ..HEALTHY }), outcome: Refused("configure: all 50000000") },
    Row { name: "decide loops", guest: Parts(Guest { decide: LOOP, ..HEALTHY }), outcome: Falls(OutOfFuel, FUEL) },
    Row { name: "recover loops", guest: Parts(Guest { recover: LOOP, ..HEALTHY }), outcome: FallsRecovering(OutOfFuel, FUEL) },
    Row { name: "learn loops", guest: Parts(Guest { learn: LOOP, ..HEALTHY }), outcome: FailsLearning("out-of-fuel") },
    Row {
        name: "realloc loops",
        guest: Parts(Guest { realloc: "(if (i32.eq (local.get $size) (i32.const 14)) (then (loop (br 0))))", ..HEALTHY }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "post-return loops",
        guest: Parts(Guest {
            fields: r#"(func (export "cabi_post_tilewright:policy/decoding-policy@0.1.0#decide") (param i32)
                (if (i32.eq (i32.load (i32.const 64)) (i32.const 1)) (then (loop (br 0)))))"#,
            decide: "(i32.store (i32.const 64) (i32.const 1))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "loops by tail calls",
        guest: Parts(Guest { fields: "(func $t (return_call $t))", decide: "(call $t)", ..HEALTHY }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "loops by indirect tail calls",
        guest: Parts(Guest {
            fields: "(type $none (func)) (table 1 funcref) (elem (i32.const 0) $t) (func $t (return_call_indirect (type $none) (i32.const 0)))",
            decide: "(call $t)",
            ..HEALTHY
        }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "branches by a table for ever",
        guest: Parts(Guest { decide: "(loop (br_table 0 0 0 (i32.const 1)))", ..HEALTHY }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "fills its memory for ever",
        guest: Parts(Guest {
            memory: r#"(memory (export "memory") 255)"#,
            decide: "(loop (memory.fill (i32.const 65536) (i32.const 1) (i32.const 16000000)) (br 0))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "copies its memory for ever",
        guest: Parts(Guest {
            memory: r#"(memory (export "memory") 255)"#,
            decide: "(loop (memory.copy (i32.const 65536) (i32.const 65537) (i32.const 16000000)) (br 0))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "fills a table for ever",
        guest: Parts(Guest {
            fields: "(table $t 20000 funcref)",
            decide: "(loop (table.fill $t (i32.const 0) (ref.null func) (i32.const 20000)) (br 0))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfFuel, FUEL),
    },
    Row {
        name: "logs for ever",
        guest: Parts(Guest { imports: IMPORTS, decide: "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 1000)) (br 0))", ..HEALTHY }),
        outcome: Falls(Trap, "passed more than 65536 bytes"),
    },
    Row {
        name: "logs nothing for ever",
        guest: Parts(Guest { imports: IMPORTS, decide: "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 0)) (br 0))", ..HEALTHY }),
        outcome: Falls(Trap, "more than 16384 times"),
    },
    Row {
        name: "logs for ever while it learns",
        guest: Parts(Guest { imports: IMPORTS, learn: "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 0)) (br 0))", ..HEALTHY }),
        outcome: FailsLearning("more than 16384 times"),
    },
    Row {
        name: "logs for ever while it describes itself",
        guest: Parts(Guest { imports: IMPORTS, describe: "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 0)) (br 0))", ..HEALTHY }),
        outcome: Refused("more than 16384 times"),
    },
    Row {
        name: "logs for ever as it starts",
        guest: Parts(Guest {
            imports: IMPORTS,
            fields: "(func $s (loop (call $log (i32.const 0) (i32.const 0) (i32.const 0)) (br 0))) (start $s)",
            ..HEALTHY
        }),
        // The imports are put in place after it has started.
        outcome: Refused("its start: uninitialized element"),
    },
    Row {
        name: "asks prices for ever",
        guest: Parts(Guest { imports: IMPORTS, decide: "(loop (global.set $heap (i32.const 8192)) CALL (br 0))", ..HEALTHY }),
        outcome: Falls(Trap, "more than 16384 times"),
    },
    Row {
        name: "asks trials for ever",
        guest: Parts(Guest { imports: IMPORTS, decide: "(loop (call $trials (i32.const -1) (i32.const 2048)) (br 0))", ..HEALTHY }),
        outcome: Falls(Trap, "more than 16384 times"),
    },
    Row {
        name: "recurses",
        guest: Parts(Guest { fields: "(func $r (result i32) (i32.add (call $r) (i32.const 1)))", decide: "(drop (call $r))", ..HEALTHY }),
        outcome: Falls(Trap, "stack"),
    },
    Row {
        name: "recurses through a table",
        guest: Parts(Guest {
            fields: "(type $n (func (result i32))) (table 1 funcref) (elem (i32.const 0) $r)
                (func $r (result i32) (i32.add (call_indirect (type $n) (i32.const 0)) (i32.const 1)))",
            decide: "(drop (call $r))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "stack"),
    },
    Row {
        name: "recurses with large frames",
        guest: Parts(Guest {
            fields: "(func $r (param v128 v128 v128 v128 v128 v128 v128 v128) (result v128)
                (i8x16.add (call $r (local.get 7) (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4) (local.get 5) (local.get 6)) (local.get 3)))",
            decide: "(drop (call $r (v128.const i64x2 1 1) (v128.const i64x2 1 1) (v128.const i64x2 1 1) (v128.const i64x2 1 1)
                (v128.const i64x2 1 1) (v128.const i64x2 1 1) (v128.const i64x2 1 1) (v128.const i64x2 1 1)))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "stack"),
    },
    Row {
        name: "recurses as it starts",
        guest: Parts(Guest { fields: "(func $r (call $r) (i32.store (i32.const 0) (i32.const 1))) (start $r)", ..HEALTHY }),
        outcome: Refused("its start: call stack exhausted"),
    },
];
