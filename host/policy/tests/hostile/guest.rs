//! Guests written as core modules: the canonical ABI by hand, one part of it replaced by something
//! hostile.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The request that makes a guest misbehave has this many samples, and a family's name of 14
/// letters, which no other text has.
pub const HOSTILE_BATCH: u32 = 13;
/// See [`HOSTILE_BATCH`].
pub const HOSTILE_FAMILY: &str = "hostile-family";

/// Parts of a guest; what is not replaced is healthy.
///
/// The guest's memory: at 256 the description, at 384 configure's result, at 1024 decide's result,
/// at 2048 scratch, from 8192 the heap. A healthy answer is whole, f32, batch 1.
#[derive(Clone, Copy)]
pub struct Guest {
    /// Imports, as fields of the module.
    pub imports: &'static str,
    /// Memory fields.
    pub memory: &'static str,
    /// Further fields: tables, functions, start.
    pub fields: &'static str,
    /// The body of `cabi_realloc`, parameters `$old $old_size $align $size`.
    pub realloc: &'static str,
    /// The body of `describe`.
    pub describe: &'static str,
    /// The body of `configure`.
    pub configure: &'static str,
    /// Run in `decide` before the healthy answer, only for the hostile request; may return another
    /// answer's address. `CALL` stands for [`ESTIMATE`].
    pub decide: &'static str,
    /// As `decide`, for `recover`, which otherwise decides.
    pub recover: &'static str,
    /// The body of `learn`.
    pub learn: &'static str,
    /// The name of the export `recover`.
    pub recover_name: &'static str,
}

pub const HEALTHY: Guest = Guest {
    imports: "",
    memory: r#"(memory (export "memory") 4)"#,
    fields: "",
    realloc: "",
    describe: "",
    configure: "",
    decide: "",
    recover: "",
    learn: "",
    recover_name: "tilewright:policy/decoding-policy@0.1.0#recover",
};

/// The imports that a policy may have.
pub const IMPORTS: &str = r#"
  (import "tilewright:policy/host@0.1.0" "log" (func $log (param i32 i32 i32)))
  (import "tilewright:policy/decoding-host@0.1.0" "trials" (func $trials (param i32 i32)))
  (import "tilewright:policy/decoding-host@0.1.0" "estimate" (func $estimate
    (param i32 i32 i32 i32  i32 i32 i32  i32  i32 i32  i32 i32 i32 i32  i32 i32  i32)))"#;

/// Prices a whole plan in f32; the answer goes to 2048.
pub const ESTIMATE: &str = "(call $estimate
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 1)
    (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0)  (i32.const 2048))";

impl Guest {
    /// The module as text.
    pub fn text(&self) -> String {
        let Guest { imports, memory, fields, realloc, describe, configure, decide, recover, learn, recover_name } =
            self;
        let decide = decide.replace("CALL", ESTIMATE);
        format!(
            r#"(module
  {imports}
  {memory}
  (global $heap (mut i32) (i32.const 8192))
  (data (i32.const 256) "\00\02\00\00\05\00\00\00\10\02\00\00\05\00\00\00\00\02\00\00\05\00\00\00\08\00\00\00\00\00\00\00")
  (data (i32.const 512) "guest")
  (data (i32.const 528) "1.0.0")
  ;; result::ok at 1024, the plan at 1028, its batch at 1056
  (data (i32.const 1056) "\01\00\00\00")
  {fields}
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    {realloc}
    (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.get $heap)
    (global.set $heap (i32.add (global.get $heap) (local.get $size))))
  (func (export "tilewright:policy/lifecycle@0.1.0#describe") (result i32) {describe} (i32.const 256))
  (func (export "tilewright:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32) {configure} (i32.const 384))
  (func $decide (export "tilewright:policy/decoding-policy@0.1.0#decide") (param $request i32) (result i32)
    (global.set $heap (i32.const 8192))
    (if (i32.eq (i32.load offset=88 (local.get $request)) (i32.const {HOSTILE_BATCH})) (then {decide}))
    (i32.const 1024))
  (func (export "{recover_name}") (param $request i32) (result i32)
    (if (i32.eq (i32.load offset=88 (local.get $request)) (i32.const {HOSTILE_BATCH})) (then {recover}))
    (call $decide (local.get $request)))
  (func (export "tilewright:policy/decoding-policy@0.1.0#learn") (param $request i32) {learn})
)"#
        )
    }

    /// The module with the component metadata that an SDK would leave in it.
    pub fn build(&self) -> Vec<u8> {
        let mut module = wat::parse_str(self.text()).unwrap_or_else(|error| panic!("{error}\n{}", self.text()));
        let mut resolve = Resolve::default();
        let package =
            resolve.push_file(concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit/released/0.1.0/policy.wit")).unwrap();
        let world = resolve.select_world(&[package], Some("policy")).unwrap();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        module
    }
}

/// A component from a text, with the names of a policy's exports added: a file without them is
/// refused at once.
pub fn named(text: &str) -> Vec<u8> {
    let body = text.trim_end().strip_suffix(')').unwrap_or_else(|| panic!("no component: {text}"));
    let text = format!(
        r#"{body} (instance $names)
        (export "tilewright:policy/lifecycle@0.1.0" (instance $names))
        (export "tilewright:policy/decoding-policy@0.1.0" (instance $names)))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A healthy guest as a component.
pub fn component() -> Vec<u8> {
    ComponentEncoder::default().module(&HEALTHY.build()).unwrap().encode().unwrap()
}
