//! Quantized weights against the tools that define them: gguf's Python package, torch's casts and
//! comfy-kitchen (`tests/fixtures/make_quantized_fixtures.py`).

use std::{collections::BTreeSet, path::PathBuf};

use tch::{Device, Kind, Tensor};
use tilewright_checkpoint::{Checkpoint, Container, Quantization, Stored};
use tilewright_fixtures::fixture;
use tilewright_torch::{device_packed::DevicePacked, packed::expand};

fn stored(name: &str) -> PathBuf {
    fixture("quantized").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&stored(name)).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).reshape([-1])).unwrap()
}

fn reference(file: &Checkpoint, name: &str) -> Tensor {
    let shape = file.shape(name).unwrap_or_else(|| panic!("no reference of {name}")).to_vec();
    file.load(name, &shape, Kind::Float, Device::Cpu).unwrap()
}

/// Equal to the last bit, NaN for NaN.
fn assert_same(found: &[f32], expected: &[f32], of: &str) {
    assert_eq!(found.len(), expected.len(), "{of}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(is_same, "{of}: value {index} is {found:e}, {expected:e} expected");
    }
}

/// An offset that is added as a product leaves a zero positive.
fn without_signs_of_zeros(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|value| value + 0.0).collect()
}

#[test]
fn every_type_of_gguf_expands_to_the_last_bit() {
    let (file, expected) = (open("types.gguf"), open("types.safetensors"));
    assert_eq!(file.container(), Container::Gguf);
    assert_eq!(file.texts().get("general.architecture").map(String::as_str), Some("flux"));
    let mut types = Vec::new();
    for name in file.names() {
        let matrix = file.matrix(name).unwrap();
        types.push(matrix.stored());
        assert_eq!(format!("{}.weight", matrix.stored().name()), name);
        let expanded = expand(&matrix, 0..matrix.shape()[0], Kind::Float).unwrap();
        assert_same(&values(&expanded), &values(&reference(&expected, name)), name);
        // Some rows alone are those rows.
        let rows = expand(&matrix, 2..5, Kind::Float).unwrap();
        assert_same(&values(&rows), &values(&expanded.narrow(0, 2, 3)), name);
        // Narrow types are the f32 values, rounded.
        for kind in [Kind::BFloat16, Kind::Half] {
            let narrow = expand(&matrix, 0..matrix.shape()[0], kind).unwrap();
            assert_same(&values(&narrow), &values(&expanded.to_kind(kind)), &format!("{name} as {kind:?}"));
        }
    }
    let all = [
        Stored::F32,
        Stored::F16,
        Stored::Bf16,
        Stored::Q4_0,
        Stored::Q4_1,
        Stored::Q5_0,
        Stored::Q5_1,
        Stored::Q8_0,
        Stored::Q2K,
        Stored::Q3K,
        Stored::Q4K,
        Stored::Q5K,
        Stored::Q6K,
        Stored::Iq4Nl,
        Stored::Iq4Xs,
    ];
    types.sort_unstable();
    assert_eq!(types, all);
}

#[test]
fn tensors_that_were_reshaped_have_their_shape_back() {
    let (file, expected) = (open("reshaped.gguf"), open("reshaped.safetensors"));
    for name in expected.names() {
        assert_eq!(file.shape(name), expected.shape(name), "{name}");
    }
    assert!(file.names().len() > 0);
}

#[test]
fn codes_of_8_bits_are_torchs() {
    let (file, expected) = (open("fp8.safetensors"), open("fp8_reference.safetensors"));
    for name in file.names() {
        let matrix = file.matrix(name).unwrap();
        for (kind, end) in [(Kind::Float, ""), (Kind::BFloat16, ".bf16"), (Kind::Half, ".f16")] {
            let found = expand(&matrix, 0..matrix.shape()[0], kind).unwrap();
            let of = format!("{name}{end}");
            assert_same(&values(&found), &values(&reference(&expected, &of)), &of);
        }
    }
}

#[test]
fn scaled_kinds_expand_as_comfy_kitchen_does() {
    let kinds = [
        "scaled_old",
        "scaled_comfy_quant",
        "scaled_header",
        "scaled_e5m2",
        "mxfp8",
        "nvfp4",
        "int8_tensorwise",
        "int8_rowwise",
    ];
    for kind in kinds {
        let (file, expected) = (open(&format!("{kind}.safetensors")), open(&format!("{kind}_reference.safetensors")));
        let weights: Vec<&str> =
            file.names().filter(|name| name.ends_with(".weight") && !Quantization::is_beside(name)).collect();
        assert_eq!(weights.len(), 2, "{kind}");
        for name in weights {
            let matrix = file.matrix(name).unwrap_or_else(|error| panic!("{kind}: {error}"));
            let found = expand(&matrix, 0..matrix.shape()[0], Kind::Float).unwrap();
            assert_same(&values(&found), &values(&reference(&expected, name)), &format!("{kind} {name}"));
        }
    }
}

#[test]
fn operators_expand_as_the_kernels_do() {
    let mut types = BTreeSet::new();
    for entry in std::fs::read_dir(stored("")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(file) = Checkpoint::open(&path) else { continue };
        for name in file.names() {
            // Others are no matrices, or refused.
            let Ok(matrix) = file.matrix(name) else { continue };
            let rows = matrix.shape()[0];
            let words = format!("{} {name}", path.display());
            let on_device = DevicePacked::new(&matrix, Device::Cpu).unwrap();
            assert_eq!(on_device.shape(), matrix.shape().map(|extent| extent as i64));
            for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
                let expected = expand(&matrix, 0..rows, kind).unwrap();
                let found = values(&on_device.expand(0..rows as i64, kind).unwrap());
                assert_same(&without_signs_of_zeros(found), &without_signs_of_zeros(values(&expected)), &words);
            }
            let last = expand(&matrix, rows - 1..rows, Kind::Float).unwrap();
            let found = on_device.expand(rows as i64 - 1..rows as i64, Kind::Float).unwrap();
            assert_same(&without_signs_of_zeros(values(&found)), &without_signs_of_zeros(values(&last)), &words);
            types.insert(matrix.stored());
        }
    }
    assert!(types.len() >= 19, "{types:?}");
}

#[test]
fn rotated_weights_are_refused_by_name() {
    let error = open("int8_convrot.safetensors").matrix("blocks.0.ffn.0.weight").unwrap_err().to_string();
    assert!(error.contains("blocks.0.ffn.0.weight is quantized as int8_tensorwise with rotated inputs"), "{error}");
}
