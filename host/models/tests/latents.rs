//! Latents as files hold them, sound and not.

#![cfg(feature = "torch")]

use std::path::{Path, PathBuf};

use tilewright_models::{Extents, Latent, Origin, Scaling};

/// Name, type, shape, bytes.
type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// A safetensors file of these tensors.
fn file(folder: &Path, tensors: &[Tensor<'_>]) -> PathBuf {
    let mut entries = vec![r#""__metadata__":{"workflow":"w","prompt":"p"}"#.to_owned()];
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#));
        data.extend(bytes);
    }
    let header = format!("{{{}}}", entries.join(","));
    let path = folder.join("x.latent");
    std::fs::write(&path, [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &data].concat()).unwrap();
    path
}

fn floats(count: usize, value: f32) -> Vec<u8> {
    value.to_le_bytes().repeat(count)
}

#[test]
fn what_is_no_latent_is_refused_in_one_line() {
    let mut spoiled = floats(64, 0.5);
    spoiled[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    spoiled[8..12].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    let cases: Vec<(Vec<Tensor<'_>>, Option<&str>, &str)> = vec![
        (vec![], None, "no tensors in it"),
        (
            vec![("a", "F32", &[4, 4, 4], floats(64, 1.0))],
            None,
            "tensor a has shape [4, 4, 4]: a latent is [N, C, H, W]",
        ),
        (vec![("a", "F32", &[], floats(1, 1.0))], None, "tensor a has shape []"),
        (vec![("a", "F32", &[1, 4, 0, 4], vec![])], None, "tensor a has shape [1, 4, 0, 4]: nothing to decode"),
        (vec![("a", "F32", &[0, 4, 4, 4], vec![])], None, "nothing to decode"),
        (vec![("a", "F32", &[1, 4, 4, 4], spoiled)], None, "2 of 64 values of tensor a are NaN or infinite"),
        (
            vec![("a", "I64", &[1, 4, 4, 4], vec![0; 512])],
            None,
            "tensor a is stored as I64: f64, f32, f16, bf16 and FP8 can be read",
        ),
        (
            vec![("a", "F32", &[1, 4, 4, 4], floats(64, 1.0)), ("b", "F32", &[1, 4, 4, 4], floats(64, 1.0))],
            None,
            "2 tensors in it: name one by tensor: a, b",
        ),
        (vec![("a", "F32", &[1, 4, 4, 4], floats(64, 1.0))], Some("c"), "no tensor c in it: there is a"),
        (vec![("a", "F32", &[1, 4, 0, 2, 2], vec![])], None, "tensor a has shape [1, 4, 0, 2, 2]: nothing to decode"),
    ];
    for (tensors, name, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let message = Latent::read(&file(folder.path(), &tensors), name).unwrap_err().to_string();
        assert!(
            message.contains(words) && message.contains("x.latent") && !message.contains('\n'),
            "{message:?} lacks {words:?}"
        );
    }
}

#[test]
fn latents_are_read_from_wherever_they_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let value = |latent: &Latent| f64::try_from(latent.values.max()).unwrap();
    let plain = Latent::read(&file(folder.path(), &[("a", "F32", &[2, 4, 4, 3], floats(96, 1.0))]), None).unwrap();
    let extents = Extents { samples: 2, frames: 1, height: 4, width: 3 };
    assert_eq!((plain.origin, plain.extents(), value(&plain)), (Origin::Plain, extents, 1.0));
    assert_eq!(plain.texts, [("prompt".into(), "p".into()), ("workflow".into(), "w".into())]);

    let one_frame: [Tensor<'_>; 1] = [("a", "F32", &[1, 4, 1, 4, 3], floats(48, 1.0))];
    let one_frame = Latent::read(&file(folder.path(), &one_frame), None).unwrap();
    assert_eq!(
        (one_frame.values.size(), one_frame.pictures().unwrap().size()),
        (vec![1, 4, 1, 4, 3], vec![1, 4, 4, 3])
    );

    let clip: [Tensor<'_>; 1] = [("a", "F32", &[1, 2, 3, 4, 5], floats(120, 1.0))];
    let clip = Latent::read(&file(folder.path(), &clip), None).unwrap();
    assert_eq!(clip.extents(), Extents { samples: 1, frames: 3, height: 4, width: 5 });
    assert!(clip.pictures().unwrap_err().to_string().contains("the latent has 3 frames: it is a clip"));

    let marker: Tensor<'_> = ("latent_format_version_0", "F32", &[0], vec![]);
    let tensor: Tensor<'_> = ("latent_tensor", "F32", &[1, 4, 4, 4], floats(64, 1.0));
    let comfy = Latent::read(&file(folder.path(), &[tensor.clone(), marker]), None).unwrap();
    assert_eq!((comfy.origin, value(&comfy)), (Origin::ComfyUi, 1.0));

    let legacy = Latent::read(&file(folder.path(), &[tensor]), None).unwrap();
    assert_eq!(legacy.origin, Origin::ComfyUiLegacy);
    assert!((value(&legacy) - 1.0 / 0.18215).abs() < 1e-5);

    let mut scaled = plain;
    scaled.unscale(&Scaling::Factor { factor: 0.5, shift: 0.25 }).unwrap();
    assert_eq!(value(&scaled), 2.25);

    let mut each = clip;
    each.unscale(&Scaling::PerChannel { mean: vec![0.5, -1.0], std: vec![2.0, 4.0] }).unwrap();
    let channels: Vec<f32> = Vec::try_from(each.values.select(2, 0).select(2, 0).select(2, 0).flatten(0, -1)).unwrap();
    assert_eq!(channels, [2.5, 3.0]);
    assert!(each.unscale(&Scaling::PerChannel { mean: vec![0.0; 3], std: vec![1.0; 3] }).is_err());
}
