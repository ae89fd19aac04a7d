//! A device by its description, as it is written and read: what of it counts, and what is refused.

use serde_json::{Value, json};
use tilewright_plan::{Backend, Device, Dtype};
use tilewright_prices::{Attention, Basis, Everywhere, Widths};

#[test]
fn attention_of_a_width_that_is_not_tried_is_not_fused() {
    let widths = Widths::of(&Everywhere);
    assert!(widths.is_fused(32, Dtype::F16) && widths.is_known(32));
    assert!(!widths.is_fused(48, Dtype::F16) && widths.is_known(48));
    let Value::Array(mut written) = serde_json::to_value(widths).unwrap() else { panic!("a list was expected") };
    written.retain(|tried| tried["width"] == 64);
    let earlier: Widths = serde_json::from_value(Value::Array(written)).unwrap();
    assert!(earlier.is_known(64) && earlier.is_known(48) && !earlier.is_known(32));
}

#[test]
fn a_device_that_makes_no_sense_is_refused() {
    let device = Device {
        backend: Backend::Cpu,
        name: String::new(),
        arch: String::new(),
        compute_units: 1,
        total_bytes: 1,
        free_bytes: 1,
        unified: false,
        fast_dtypes: vec![Dtype::F32; 2000],
        hints: Vec::new(),
    };
    let line = Basis::of_json(&json!({ "device": device }).to_string()).unwrap_err().to_string();
    assert!(line.contains("makes no sense (2000 fast types): write it"), "{line}");
}
