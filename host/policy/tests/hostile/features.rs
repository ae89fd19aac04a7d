//! Guests that use what is switched off. Tail calls are on: they are part of WebAssembly 3.0, cost
//! fuel like any call, and a loop made of them ends like any loop (`loops.rs`).

use crate::{
    guest::{Guest, HEALTHY},
    table::{
        Outcome::{Refused, Right},
        Row,
        Source::{Named, Parts, Text},
    },
};

macro_rules! fields {
    ($text:literal) => {
        Parts(Guest { fields: $text, ..HEALTHY })
    };
}

pub const ROWS: &[Row] = &[
    Row {
        name: "shared memory",
        guest: Parts(Guest { memory: r#"(memory (export "memory") 4 4 shared)"#, ..HEALTHY }),
        outcome: Refused("shared"),
    },
    Row {
        name: "atomics",
        guest: fields!("(func (result i32) (i32.atomic.load (i32.const 0)))"),
        outcome: Refused("threads"),
    },
    Row {
        name: "waiting",
        guest: fields!("(func (result i32) (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))"),
        outcome: Refused("threads"),
    },
    Row { name: "exceptions", guest: fields!("(tag $e) (func (throw $e))"), outcome: Refused("exceptions") },
    Row {
        name: "exceptions caught",
        guest: fields!("(func (block $b (try_table (catch_all $b))))"),
        outcome: Refused("exceptions"),
    },
    Row { name: "exceptions of old", guest: fields!("(func try catch_all end)"), outcome: Refused("exceptions") },
    Row { name: "structs", guest: fields!("(type $s (struct (field i32)))"), outcome: Refused("gc") },
    Row { name: "arrays", guest: fields!("(type $a (array (mut i8)))"), outcome: Refused("gc") },
    Row {
        name: "small integers by reference",
        guest: fields!("(func (drop (ref.i31 (i32.const 1))))"),
        outcome: Refused("gc"),
    },
    Row {
        name: "typed references",
        guest: fields!("(type $f (func)) (func (param (ref null $f)) (call_ref $f (local.get 0)))"),
        outcome: Refused("reference"),
    },
    Row { name: "64-bit memory", guest: Named("(component (core module (memory i64 1)))"), outcome: Refused("memory") },
    Row { name: "64-bit tables", guest: fields!("(table i64 1 funcref)"), outcome: Refused("memory64") },
    Row {
        name: "two memories",
        guest: Parts(Guest { memory: r#"(memory (export "memory") 4) (memory 1)"#, ..HEALTHY }),
        outcome: Refused("multiple memories"),
    },
    Row {
        name: "pages of one byte",
        guest: Parts(Guest { memory: r#"(memory (export "memory") 262144 (pagesize 1))"#, ..HEALTHY }),
        outcome: Refused("custom"),
    },
    Row {
        name: "relaxed SIMD",
        guest: fields!("(func (param v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) (local.get 0)))"),
        outcome: Refused("relaxed"),
    },
    Row {
        name: "wide arithmetic",
        guest: fields!("(func (param i64 i64) (result i64 i64) (i64.mul_wide_u (local.get 0) (local.get 1)))"),
        outcome: Refused("wide"),
    },
    Row { name: "stack switching", guest: fields!("(type $f (func)) (type $c (cont $f))"), outcome: Refused("") },
    Row {
        name: "tail calls",
        guest: fields!(
            "(func $t (param i32) (result i32) (if (result i32) (local.get 0) (then (return_call $t (i32.const 0))) (else (i32.const 1))))"
        ),
        outcome: Right,
    },
    Row {
        name: "plain SIMD",
        guest: fields!("(func (param v128) (result v128) (i32x4.add (local.get 0) (local.get 0)))"),
        outcome: Right,
    },
    Row {
        name: "asynchronous functions",
        guest: Named(
            r#"(component (core module $m (func (export "f"))) (core instance $m (instantiate $m)) (func $f async (canon lift (core func $m "f"))))"#,
        ),
        outcome: Refused("async"),
    },
    Row {
        name: "asynchronous lifting",
        guest: Named(
            r#"(component (core module $m (func (export "f") (result i32) unreachable) (func (export "c") (param i32 i32 i32) (result i32) unreachable))
            (core instance $m (instantiate $m)) (func (canon lift (core func $m "f") async (callback (func $m "c")))))"#,
        ),
        outcome: Refused("async"),
    },
    Row { name: "futures", guest: Named("(component (type (future u32)))"), outcome: Refused("async") },
    Row { name: "streams", guest: Named("(component (type (stream u8)))"), outcome: Refused("async") },
    Row {
        name: "background tasks",
        guest: Named("(component (core func (canon task.cancel)))"),
        outcome: Refused("async"),
    },
    Row { name: "error contexts", guest: Named("(component (type error-context))"), outcome: Refused("error-context") },
    Row {
        name: "threads of components",
        guest: Text("(component (core func (canon thread.available_parallelism)))"),
        outcome: Refused(""),
    },
    Row { name: "values of components", guest: Text(r#"(component (import "v" (value u32)))"#), outcome: Refused("") },
];
