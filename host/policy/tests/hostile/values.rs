//! Guests whose answers are no values of the contract's types, and whose `realloc` gives what is no
//! memory. The contract has no chars, and any byte but 0 is a true flag.

use tilewright_plan::FallbackReason::{Error, Nonsense, Trap};

use crate::{
    guest::{Guest, HEALTHY, IMPORTS},
    table::{
        Outcome::{Falls, FallsRecovering, Refused, Right},
        Row,
        Source::Parts,
    },
};

/// A guest that runs this for the hostile request. The answer at 2048 is ok, whole, of a batch of
/// nothing, unless it is written to.
macro_rules! decides {
    ($($body:literal)+) => { Parts(Guest { decide: concat!($($body, " "),+), ..HEALTHY }) };
}

/// The same with the imports.
macro_rules! asks {
    ($body:expr) => {
        Parts(Guest { imports: IMPORTS, decide: $body, ..HEALTHY })
    };
}

macro_rules! describes {
    ($body:literal) => {
        Parts(Guest { describe: $body, ..HEALTHY })
    };
}

macro_rules! reallocs {
    ($body:literal) => {
        Parts(Guest {
            realloc: concat!("(if (i32.eq (local.get $size) (i32.const 14)) (then ", $body, "))"),
            ..HEALTHY
        })
    };
}

pub const ROWS: &[Row] = &[
    Row { name: "traps", guest: decides!("unreachable"), outcome: Falls(Trap, "unreachable") },
    Row { name: "traps while it recovers", guest: Parts(Guest { recover: "unreachable", ..HEALTHY }), outcome: FallsRecovering(Trap, "unreachable") },
    Row { name: "divides by zero", guest: decides!("(drop (i32.div_u (i32.const 1) (i32.const 0)))"), outcome: Falls(Trap, "divide by zero") },
    Row { name: "divides the least by -1", guest: decides!("(drop (i64.div_s (i64.const 0x8000000000000000) (i64.const -1)))"), outcome: Falls(Trap, "integer overflow") },
    Row { name: "makes an integer of NaN", guest: decides!("(drop (i32.trunc_f64_s (f64.const nan)))"), outcome: Falls(Trap, "invalid conversion") },
    Row { name: "reads out of bounds", guest: decides!("(drop (i32.load (i32.const -8)))"), outcome: Falls(Trap, "out of bounds memory access") },
    Row { name: "reads far out of bounds", guest: decides!("(drop (i64.load offset=4294967295 (i32.const -1)))"), outcome: Falls(Trap, "out of bounds memory access") },
    Row { name: "writes vectors out of bounds", guest: decides!("(v128.store (i32.const 262136) (v128.const i64x2 1 1))"), outcome: Falls(Trap, "out of bounds memory access") },
    Row {
        name: "calls the wrong signature",
        guest: Parts(Guest {
            fields: "(type $none (func)) (table $t 1 funcref) (elem (i32.const 0) $decide)",
            decide: "(call_indirect (type $none) (i32.const 0))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "indirect call type mismatch"),
    },
    Row {
        name: "calls nothing",
        guest: Parts(Guest { fields: "(type $none (func)) (table $t 1 funcref)", decide: "(call_indirect (type $none) (i32.const 0))", ..HEALTHY }),
        outcome: Falls(Trap, "uninitialized element"),
    },
    Row {
        name: "answers text that is no UTF-8",
        guest: decides!("(i32.store8 (i32.const 3000) (i32.const 255)) (i32.store8 (i32.const 2048) (i32.const 1))"
            "(i32.store (i32.const 2052) (i32.const 3000)) (i32.store (i32.const 2056) (i32.const 1)) (return (i32.const 2048))"),
        outcome: Falls(Trap, "utf-8"),
    },
    Row {
        name: "answers half a character",
        guest: decides!("(i32.store16 (i32.const 3000) (i32.const 0xa0ed)) (i32.store8 (i32.const 2048) (i32.const 1))"
            "(i32.store (i32.const 2052) (i32.const 3000)) (i32.store (i32.const 2056) (i32.const 2)) (return (i32.const 2048))"),
        outcome: Falls(Trap, "utf-8"),
    },
    Row {
        name: "answers text out of bounds",
        guest: decides!("(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store (i32.const 2052) (i32.const -16))"
            "(i32.store (i32.const 2056) (i32.const 8)) (return (i32.const 2048))"),
        outcome: Falls(Trap, "out of bounds"),
    },
    Row {
        name: "answers text that wraps around",
        guest: decides!("(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store (i32.const 2052) (i32.const -1))"
            "(i32.store (i32.const 2056) (i32.const -1)) (return (i32.const 2048))"),
        outcome: Falls(Trap, "out of bounds"),
    },
    Row { name: "answers from out of bounds", guest: decides!("(return (i32.const -4))"), outcome: Falls(Trap, "out of bounds") },
    Row { name: "answers from the last byte", guest: decides!("(return (i32.const 262140))"), outcome: Falls(Trap, "out of bounds") },
    Row { name: "answers from an odd address", guest: decides!("(return (i32.const 1025))"), outcome: Falls(Trap, "aligned") },
    Row { name: "answers no result", guest: decides!("(i32.store8 (i32.const 2048) (i32.const 7)) (return (i32.const 2048))"), outcome: Falls(Trap, "expected") },
    Row { name: "answers no space", guest: decides!("(i32.store8 (i32.const 2052) (i32.const 3)) (return (i32.const 2048))"), outcome: Falls(Trap, "discriminant") },
    Row { name: "answers no time", guest: decides!("(i32.store8 (i32.const 2068) (i32.const 200)) (return (i32.const 2048))"), outcome: Falls(Trap, "discriminant") },
    Row { name: "answers no precision", guest: decides!("(i32.store8 (i32.const 2084) (i32.const 2)) (return (i32.const 2048))"), outcome: Falls(Trap, "discriminant") },
    Row { name: "answers no type", guest: decides!("(i32.store8 (i32.const 2085) (i32.const 7)) (return (i32.const 2048))"), outcome: Falls(Trap, "discriminant") },
    Row { name: "answers no layout", guest: decides!("(i32.store8 (i32.const 2086) (i32.const 9)) (return (i32.const 2048))"), outcome: Falls(Trap, "discriminant") },
    Row { name: "answers no release", guest: decides!("(i32.store8 (i32.const 2087) (i32.const 255)) (return (i32.const 2048))"), outcome: Falls(Trap, "discriminant") },
    Row { name: "answers a batch of nothing", guest: decides!("(return (i32.const 2048))"), outcome: Falls(Nonsense, "a batch of nothing") },
    Row {
        name: "answers a tile of no extent",
        guest: decides!("(i32.store8 (i32.const 2052) (i32.const 1)) (i32.store (i32.const 2080) (i32.const 1)) (return (i32.const 2048))"),
        outcome: Falls(Nonsense, "a tile of no extent"),
    },
    Row { name: "answers an error", guest: decides!("(i32.store8 (i32.const 2048) (i32.const 1)) (return (i32.const 2048))"), outcome: Falls(Error, "") },
    Row { name: "recovers with what has failed", guest: Parts(Guest { recover: "(return (i32.const 1024))", ..HEALTHY }), outcome: FallsRecovering(Nonsense, "a plan that has failed before") },
    Row { name: "logs a level that is none", guest: asks!("(call $log (i32.const 9) (i32.const 0) (i32.const 0))"), outcome: Falls(Trap, "discriminant") },
    Row {
        name: "logs what is no UTF-8",
        guest: asks!("(i32.store8 (i32.const 3000) (i32.const 0xfe)) (call $log (i32.const 0) (i32.const 3000) (i32.const 1))"),
        outcome: Falls(Trap, "utf-8"),
    },
    Row { name: "logs from out of bounds", guest: asks!("(call $log (i32.const 0) (i32.const -8) (i32.const 100))"), outcome: Falls(Trap, "out of bounds") },
    Row { name: "wants trials out of bounds", guest: asks!("(call $trials (i32.const 1) (i32.const -8))"), outcome: Falls(Trap, "") },
    Row { name: "wants trials at an odd address", guest: asks!("(call $trials (i32.const 1) (i32.const 2049))"), outcome: Falls(Trap, "aligned") },
    Row {
        name: "asks the price of no space",
        guest: asks!("(call $estimate (i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 1)
            (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0)  (i32.const 2048))"),
        outcome: Falls(Trap, "discriminant"),
    },
    Row {
        name: "asks the price of no type",
        guest: asks!("(call $estimate (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 1)
            (i32.const 0) (i32.const -1)  (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0)  (i32.const 2048))"),
        outcome: Falls(Trap, "discriminant"),
    },
    Row {
        name: "asks the price of nonsense",
        guest: asks!("(call $estimate (i32.const 1) (i32.const -1) (i32.const -1) (i32.const -1)  (i32.const 2) (i32.const -1) (i32.const -1)  (i32.const -1)
            (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 7) (i32.const -1)  (i32.const 0) (i32.const 0)  (i32.const 2048))"),
        outcome: Right,
    },
    Row { name: "realloc traps", guest: reallocs!("unreachable"), outcome: Falls(Trap, "unreachable") },
    Row { name: "realloc gives what is out of bounds", guest: reallocs!("(return (i32.const -16))"), outcome: Falls(Trap, "beyond end of memory") },
    Row { name: "realloc gives the last bytes", guest: reallocs!("(return (i32.const 262136))"), outcome: Falls(Trap, "beyond end of memory") },
    Row {
        name: "realloc gives odd addresses",
        guest: Parts(Guest { realloc: "(if (i32.eq (local.get $size) (i32.const 14)) (then (i32.store (i32.const 64) (i32.const 1))))
                (if (i32.and (i32.load (i32.const 64)) (i32.eq (local.get $align) (i32.const 4))) (then (return (i32.const 8193))))", ..HEALTHY }),
        outcome: Falls(Trap, "aligned"),
    },
    // Null is an address like any other, and what overlaps garbles nothing but the guest's own
    // memory.
    Row { name: "realloc gives null", guest: reallocs!("(return (i32.const 0))"), outcome: Right },
    Row { name: "realloc gives the same again", guest: reallocs!("(return (i32.const 4096))"), outcome: Right },
    Row { name: "realloc gives where its answers lie", guest: reallocs!("(return (i32.const 512))"), outcome: Right },
    Row {
        name: "realloc gives what is out of bounds, while it asks",
        guest: Parts(Guest {
            imports: IMPORTS,
            realloc: "(if (i32.eq (i32.load (i32.const 64)) (i32.const 1)) (then (return (i32.const -16))))",
            decide: "(i32.store (i32.const 64) (i32.const 1))
                (call $estimate (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0)
                (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0)  (i32.const 2048))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "beyond end of memory"),
    },
    Row { name: "describes itself from out of bounds", guest: describes!("(return (i32.const -4))"), outcome: Refused("describe: ") },
    Row { name: "describes itself with an empty name", guest: describes!("(i32.store (i32.const 260) (i32.const 0))"), outcome: Refused("an empty name") },
    Row { name: "describes itself with a long name", guest: describes!("(i32.store (i32.const 260) (i32.const 65))"), outcome: Refused("a name longer than 64 characters") },
    Row { name: "describes itself with a line break", guest: describes!("(i32.store8 (i32.const 513) (i32.const 10))"), outcome: Refused("a name that is not of printable ASCII without blanks") },
    Row { name: "describes itself with what is no UTF-8", guest: describes!("(i32.store8 (i32.const 513) (i32.const 255))"), outcome: Refused("utf-8") },
    Row {
        name: "a setting whose default is no number",
        guest: describes!("(i32.store (i32.const 280) (i32.const 4096)) (i32.store (i32.const 284) (i32.const 1))
            (i32.store (i32.const 4096) (i32.const 512)) (i32.store (i32.const 4100) (i32.const 5))
            (i32.store8 (i32.const 4112) (i32.const 2)) (f64.store (i32.const 4120) (f64.const nan))"),
        outcome: Refused("a setting whose default is not a finite number"),
    },
    Row {
        name: "a setting whose default is of no type",
        guest: describes!("(i32.store (i32.const 280) (i32.const 4096)) (i32.store (i32.const 284) (i32.const 1))
            (i32.store (i32.const 4096) (i32.const 512)) (i32.store (i32.const 4100) (i32.const 5)) (i32.store8 (i32.const 4112) (i32.const 4))"),
        outcome: Refused("discriminant"),
    },
    Row {
        name: "a list of settings at an odd address",
        guest: describes!("(i32.store (i32.const 280) (i32.const 4097)) (i32.store (i32.const 284) (i32.const 1))"),
        outcome: Refused("aligned"),
    },
    Row {
        name: "two settings of one name",
        guest: describes!("(i32.store (i32.const 280) (i32.const 4096)) (i32.store (i32.const 284) (i32.const 2))
            (i32.store (i32.const 4096) (i32.const 512)) (i32.store (i32.const 4100) (i32.const 5))
            (i32.store (i32.const 4128) (i32.const 512)) (i32.store (i32.const 4132) (i32.const 5))"),
        outcome: Refused("a setting named 'guest', which is taken"),
    },
    Row { name: "configure traps", guest: Parts(Guest { configure: "unreachable", ..HEALTHY }), outcome: Refused("configure: ") },
    Row { name: "configure answers no result", guest: Parts(Guest { configure: "(i32.store8 (i32.const 384) (i32.const 2))", ..HEALTHY }), outcome: Refused("configure: ") },
    Row {
        name: "configure refuses",
        guest: Parts(Guest {
            // result::err with the five letters of its name.
            configure: "(i32.store8 (i32.const 384) (i32.const 1)) (i32.store (i32.const 388) (i32.const 512)) (i32.store (i32.const 392) (i32.const 5))",
            ..HEALTHY
        }),
        outcome: Refused("policy guest: guest"),
    },
    Row { name: "start traps", guest: Parts(Guest { fields: "(func $s unreachable) (start $s)", ..HEALTHY }), outcome: Refused("its start: ") },
];
