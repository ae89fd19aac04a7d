//! Guests that want more room than there is: memories, tables, instances, texts and lists.

use tilewright_plan::FallbackReason::{OutOfMemory, Trap};
use wasm_encoder::{Component, InstanceSection, RawSection};
use wasmparser::{Parser, Payload};

use crate::{
    guest::{Guest, HEALTHY, IMPORTS, component, named},
    table::{
        Outcome::{FailsLearning, Falls, FallsRecovering, Refused, Right},
        Row,
        Source::{Bytes, Parts},
    },
};

/// The numbers of sections of a component.
const CORE_MODULE: u8 = 1;
const COMPONENT: u8 = 4;

/// Bytes before the first section.
const HEADER: usize = 8;

const GROW: &str = "(loop (drop (memory.grow (i32.const 1))) (br 0))";

pub const ROWS: &[Row] = &[
    Row {
        name: "grows its memory",
        guest: Parts(Guest { decide: "(drop (memory.grow (i32.const 1000)))", ..HEALTHY }),
        outcome: Falls(OutOfMemory, "bytes of memory, of 16777216 allowed"),
    },
    Row {
        name: "grows its memory to the end of the address space",
        guest: Parts(Guest { decide: "(drop (memory.grow (i32.const 65000)))", ..HEALTHY }),
        outcome: Falls(OutOfMemory, "bytes of memory, of 16777216 allowed"),
    },
    Row {
        name: "grows its memory by and by",
        guest: Parts(Guest { decide: GROW, ..HEALTHY }),
        outcome: Falls(OutOfMemory, "of memory"),
    },
    Row {
        name: "grows its memory while it recovers",
        guest: Parts(Guest { recover: GROW, ..HEALTHY }),
        outcome: FallsRecovering(OutOfMemory, "of memory"),
    },
    Row {
        name: "grows its memory while it learns",
        guest: Parts(Guest { learn: GROW, ..HEALTHY }),
        outcome: FailsLearning("out-of-memory"),
    },
    Row {
        name: "grows its memory while it describes itself",
        guest: Parts(Guest { describe: GROW, ..HEALTHY }),
        outcome: Refused("describe: asked for"),
    },
    Row {
        name: "grows its memory in realloc",
        guest: Parts(Guest {
            realloc: "(if (i32.eq (local.get $size) (i32.const 14)) (then (drop (memory.grow (i32.const 1000)))))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfMemory, "of memory"),
    },
    Row {
        name: "writes to all that it may have",
        guest: Parts(Guest {
            decide: "(drop (memory.grow (i32.const 252))) (memory.fill (i32.const 262144) (i32.const 7) (i32.const 16515072)) (unreachable)",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "unreachable"),
    },
    Row {
        name: "grows a table",
        guest: Parts(Guest {
            fields: "(table $t 1 funcref)",
            decide: "(drop (table.grow $t (ref.null func) (i32.const 1000000)))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfMemory, "table elements, of 20000 allowed"),
    },
    Row {
        name: "grows two tables by turns",
        guest: Parts(Guest {
            fields: "(table $t 1 funcref) (table $u 1 funcref)",
            decide: "(loop (drop (table.grow $t (ref.null func) (i32.const 900))) (drop (table.grow $u (ref.null func) (i32.const 900))) (br 0))",
            ..HEALTHY
        }),
        outcome: Falls(OutOfMemory, "table elements, of 20000 allowed"),
    },
    Row {
        name: "begins with a large memory",
        guest: Parts(Guest { memory: r#"(memory (export "memory") 1000)"#, ..HEALTHY }),
        outcome: Refused("its start: asked for 65536000 bytes of memory"),
    },
    Row {
        name: "begins with all memory there is",
        guest: Parts(Guest { memory: r#"(memory (export "memory") 65536)"#, ..HEALTHY }),
        outcome: Refused("its start: asked for 4294967296 bytes of memory"),
    },
    Row {
        name: "begins with a large table",
        guest: Parts(Guest { fields: "(table 1000000 funcref)", ..HEALTHY }),
        outcome: Refused("its start: asked for 1000000 table elements"),
    },
    Row {
        name: "begins with many tables",
        guest: Parts(Guest {
            fields: "(table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)",
            ..HEALTHY
        }),
        outcome: Refused("table count too high"),
    },
    Row {
        name: "may grow to all there is, and doesn't",
        guest: Parts(Guest { memory: r#"(memory (export "memory") 4 65536)"#, ..HEALTHY }),
        outcome: Right,
    },
    Row {
        name: "data outside its memory",
        guest: Parts(Guest { fields: r#"(data (i32.const -4) "beyond")"#, ..HEALTHY }),
        outcome: Refused("out of bounds memory access"),
    },
    Row {
        name: "elements outside its table",
        guest: Parts(Guest { fields: "(table 1 funcref) (elem (i32.const 9) $decide)", ..HEALTHY }),
        outcome: Refused("out of bounds table access"),
    },
    Row { name: "a module that nobody uses", guest: Bytes(|| beside("(module)", 0)), outcome: Right },
    Row { name: "a few core instances", guest: Bytes(|| beside("(module)", 4)), outcome: Right },
    Row {
        name: "many core instances",
        guest: Bytes(|| beside("(module)", 40)),
        outcome: Refused("instance count too high"),
    },
    Row {
        name: "thousands of core instances",
        guest: Bytes(|| beside("(module)", 5000)),
        outcome: Refused("instances to make, of"),
    },
    Row {
        name: "core instances with a memory each",
        guest: Bytes(|| beside("(module (memory 200))", 2)),
        outcome: Refused("bytes of memory, of 16777216 allowed"),
    },
    Row {
        name: "core instances with a table each",
        guest: Bytes(|| beside("(module (table 9000 funcref))", 3)),
        outcome: Refused("table elements, of 20000 allowed"),
    },
    Row {
        name: "a hundred modules",
        guest: Bytes(|| crowd(100, 0)),
        outcome: Refused("modules and components in the file, of 64 allowed"),
    },
    Row {
        name: "components in components",
        guest: Bytes(|| nested(2000)),
        outcome: Refused("modules and components in the file, of 64 allowed"),
    },
    Row {
        name: "a module 100,000 times",
        guest: Bytes(|| crowd(1, 100_000)),
        outcome: Refused("types, imports, exports and the like, of"),
    },
    Row {
        name: "components that hold the one before twice",
        guest: Bytes(|| doubled(40)),
        outcome: Refused("a component within it holds code of its own"),
    },
    Row {
        name: "components that hold what they are given twice",
        guest: Bytes(|| doubled_by_argument(40)),
        outcome: Refused("imports a component or a module"),
    },
    Row {
        name: "answers a huge text",
        guest: Parts(Guest {
            // result::err with 100,000 bytes from address 0.
            decide: "(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store (i32.const 2056) (i32.const 100000)) (return (i32.const 2048))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "too much data"),
    },
    Row {
        name: "gives a huge reason",
        guest: Parts(Guest { decide: "(i32.store (i32.const 1076) (i32.const 200000))", ..HEALTHY }),
        outcome: Falls(Trap, "too much data"),
    },
    Row {
        name: "logs a text of all its memory",
        guest: Parts(Guest {
            imports: IMPORTS,
            decide: "(call $log (i32.const 0) (i32.const 0) (i32.const 262144))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "too much data"),
    },
    Row {
        name: "logs long texts",
        guest: Parts(Guest {
            imports: IMPORTS,
            decide: "(loop (call $log (i32.const 0) (i32.const 65536) (i32.const 60000)) (br 0))",
            ..HEALTHY
        }),
        outcome: Falls(Trap, "passed more than 65536 bytes"),
    },
    Row {
        name: "describes itself with a huge summary",
        guest: Parts(Guest { describe: "(i32.store (i32.const 276) (i32.const 200000))", ..HEALTHY }),
        outcome: Refused("describe: too much data"),
    },
    Row {
        name: "a list of settings as long as its memory",
        guest: Parts(Guest {
            describe: "(i32.store (i32.const 280) (i32.const 0)) (i32.store (i32.const 284) (i32.const 6000))",
            ..HEALTHY
        }),
        outcome: Refused("describe: too much data"),
    },
    Row {
        name: "a list of settings longer than any memory",
        guest: Parts(Guest {
            describe: "(i32.store (i32.const 280) (i32.const 0)) (i32.store (i32.const 284) (i32.const -1))",
            ..HEALTHY
        }),
        outcome: Refused("describe:"),
    },
    Row {
        name: "more settings than a policy may have",
        guest: Parts(Guest {
            describe: "(i32.store (i32.const 280) (i32.const 8192)) (i32.store (i32.const 284) (i32.const 65))",
            ..HEALTHY
        }),
        outcome: Refused("65 settings, of 64 allowed"),
    },
    Row {
        name: "settings without names",
        guest: Parts(Guest {
            describe: "(i32.store (i32.const 280) (i32.const 8192)) (i32.store (i32.const 284) (i32.const 64))",
            ..HEALTHY
        }),
        outcome: Refused("an empty setting's name"),
    },
];

/// A component with this many modules, and this many instances of each.
fn crowd(modules: usize, instances: usize) -> Vec<u8> {
    let module = "(core module)".repeat(modules);
    let instance = "(core instance (instantiate 0))".repeat(instances);
    named(&format!("(component {module} {instance})"))
}

fn nested(depth: usize) -> Vec<u8> {
    let mut bytes = Component::new().finish();
    let names = named("(component)");
    for _ in 0..depth {
        let mut outer = Component::new();
        outer.section(&RawSection { id: COMPONENT, data: &bytes });
        bytes = outer.finish();
    }
    bytes.extend_from_slice(&names[HEADER..]);
    bytes
}

/// Each component holds the one before twice.
fn doubled(depth: usize) -> Vec<u8> {
    let mut text = String::from("(component $c0 (core module $m) (core instance (instantiate $m)))");
    for level in 1..depth {
        let below = level - 1;
        text += &format!(
            "(component $c{level} (alias outer 1 $c{below} (component $c)) (instance (instantiate $c)) (instance (instantiate $c)))"
        );
    }
    let last = depth - 1;
    named(&format!("(component {text} (instance (instantiate $c{last})))"))
}

/// As [`doubled`], but with the doubled part imported.
fn doubled_by_argument(depth: usize) -> Vec<u8> {
    let mut text = String::from(
        r#"(component $twice (import "c" (component $c)) (instance (instantiate $c)) (instance (instantiate $c)))
           (component $c0 (core module $m) (core instance (instantiate $m)))"#,
    );
    for level in 1..depth {
        let below = level - 1;
        text += &format!(
            r#"(component $c{level} (alias outer 1 $twice (component $t)) (alias outer 1 $c{below} (component $c))
               (instance (instantiate $t (with "c" (component $c)))))"#
        );
    }
    let last = depth - 1;
    named(&format!("(component {text} (instance (instantiate $c{last})))"))
}

/// The healthy component with one more module and this many instances of it.
fn beside(module: &str, instances: usize) -> Vec<u8> {
    let mut bytes = component();
    let own = |payload: &Payload<'_>| matches!(payload, Payload::ModuleSection { .. });
    let modules = Parser::new(0).parse_all(&bytes).filter(|payload| own(payload.as_ref().unwrap())).count() as u32;
    let mut more = Component::new();
    more.section(&RawSection { id: CORE_MODULE, data: &wat::parse_str(module).unwrap() });
    let mut crowd = InstanceSection::new();
    for _ in 0..instances {
        crowd.instantiate::<_, &str>(modules, []);
    }
    more.section(&crowd);
    bytes.extend_from_slice(&more.finish()[HEADER..]);
    bytes
}
