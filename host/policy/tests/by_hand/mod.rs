//! Policies of contract 0.2 for one stage, written by hand as core modules, and the scene that they
//! are asked in.

use tilewright_plan::{Backend, Device};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyHost};

/// The interfaces of a stage's policies, and the number that descriptions have for it.
#[derive(Clone, Copy)]
pub struct Interface {
    /// As in `denoise-policy`.
    pub name: &'static str,
    pub stage: u8,
    /// The address of the plan in an answer at 1024: as its types are aligned.
    pub plan: u32,
    /// The bytes of a healthy plan that are not 0, by their offsets in it.
    pub healthy: &'static [(u32, u8)],
}

/// In f32 on the host, with weights as stored.
#[allow(dead_code, reason = "each file of tests has its stages")]
pub const TEXT: Interface = Interface { name: "text", stage: 0, plan: 1028, healthy: &[(2, 1)] };

/// A plain plan in f32: passes in turn, and a feed-forward layer in one part.
#[allow(dead_code, reason = "each file of tests has its stages")]
pub const DENOISE: Interface = Interface { name: "denoise", stage: 1, plan: 1032, healthy: &[(20, 1), (32, 1)] };

/// Whole, in f32, of a batch of one.
#[allow(dead_code, reason = "each file of tests has its stages")]
pub const DECODE: Interface = Interface { name: "vae", stage: 2, plan: 1028, healthy: &[(28, 1)] };

impl Interface {
    /// A guest for this stage alone: at 256 the description, at 384 configure's result, at 1024
    /// decide's result, which is healthy until `decide` writes to it; the heap begins at 8192.
    pub fn guest(&self, decide: &str, learn: &str) -> Vec<u8> {
        let Interface { name, stage, plan, healthy } = *self;
        let healthy: String = healthy
            .iter()
            .map(|(offset, value)| format!("(data (i32.const {}) \"\\{value:02x}\")\n", plan + offset))
            .collect();
        let text = format!(
            r#"(module
  (import "tilewright:policy/{name}-host@0.2.0" "estimate" (func $estimate (param i32 i32 i32)))
  (import "tilewright:policy/{name}-host@0.2.0" "trials" (func $trials (param i32 i32)))
  (memory (export "memory") 64)
  (global $heap (mut i32) (i32.const 8192))
  (data (i32.const 256) "\00\02\00\00\05\00\00\00\10\02\00\00\05\00\00\00\00\02\00\00\05\00\00\00\20\02\00\00\01\00\00\00\08\00\00\00\00\00\00\00")
  (data (i32.const 512) "guest")
  (data (i32.const 528) "1.0.0")
  (data (i32.const 544) "\{stage:02x}")
  {healthy}
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.get $heap)
    (global.set $heap (i32.add (global.get $heap) (local.get $size))))
  (func (export "tilewright:policy/lifecycle@0.2.0#describe") (result i32) (i32.const 256))
  (func (export "tilewright:policy/lifecycle@0.2.0#configure") (param i32 i32) (result i32) (i32.const 384))
  (func (export "tilewright:policy/{name}-policy@0.2.0#decide") (param $request i32) (result i32)
    (global.set $heap (i32.const 8192)) {decide} (i32.const 1024))
  (func (export "tilewright:policy/{name}-policy@0.2.0#learn") (param $request i32) {learn})
)"#
        );
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Stores a byte at an offset of the plan.
    #[allow(dead_code, reason = "each file of tests has its fields")]
    pub fn byte(&self, offset: u32, value: u8) -> String {
        format!("(i32.store8 (i32.const {}) (i32.const {value}))", self.plan + offset)
    }

    /// Stores four bytes at an offset of the plan.
    pub fn word(&self, offset: u32, value: i64) -> String {
        format!("(i32.store (i32.const {}) (i32.const {value}))", self.plan + offset)
    }

    /// Stores the bits of a fraction at an offset of the plan.
    #[allow(dead_code, reason = "texts have no fractions")]
    pub fn fraction(&self, offset: u32, value: f64) -> String {
        format!("(i64.store (i32.const {}) (i64.const {}))", self.plan + offset, value.to_bits() as i64)
    }
}

pub fn device() -> Device {
    Device {
        backend: Backend::Cpu,
        name: "test".into(),
        arch: "test".into(),
        compute_units: 2,
        total_bytes: 1 << 36,
        free_bytes: 1 << 35,
        unified: true,
        fast_dtypes: Vec::new(),
        hints: Vec::new(),
    }
}

pub fn put_to_work(module: &[u8]) -> Policy {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    host.load("guest", module).unwrap().configure(&[]).unwrap()
}
