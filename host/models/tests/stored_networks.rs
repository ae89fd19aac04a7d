//! Files of one transformer that are laid out or stored in other ways give the same velocities.

#![cfg(feature = "torch")]

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tilewright_fixtures::fixture;
use tilewright_models::{BlockChoice, Checkpoint, ComputeFormat, DenoiserFile, Inputs, transformer::Residency};

/// Tensors by their names: the type as safetensors spells it, the shape, and the bytes.
type Tensors = BTreeMap<String, (&'static str, Vec<usize>, Vec<u8>)>;

const FLUX: &str = "sample-flux-original/flux1-tiny.safetensors";
const WAN: &str = "sample-wan-t2v-original/wan-tiny.safetensors";
/// 24 wide, by diffusers' names.
const NARROW_WAN: &str = "sample-wan-t2v-diffusers/diffusion_pytorch_model.safetensors";

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let flat = tensor.contiguous().flatten(0, -1).view_dtype(Kind::Uint8);
    Vec::<u8>::try_from(&flat).unwrap()
}

/// The tensors of a fixture, each as `store` has it.
fn rewritten(name: &str, mut store: impl FnMut(&str, Tensor) -> (String, &'static str, Tensor)) -> Tensors {
    let file = Checkpoint::open(&fixture(name)).unwrap();
    let one = |name: &str| {
        let shape = file.shape(name).unwrap().to_vec();
        let (name, stored, tensor) = store(name, file.load(name, &shape, Kind::Float, Device::Cpu).unwrap());
        let shape = tensor.size().iter().map(|&extent| extent as usize).collect();
        (name, (stored, shape, bytes_of(&tensor)))
    };
    file.names().map(one).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (stored, shape, bytes)) in tensors {
        let span = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({ "dtype": stored, "shape": shape, "data_offsets": span }));
        data.extend_from_slice(bytes);
    }
    let text = Value::Object(header).to_string();
    let all = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat();
    std::fs::write(path, all).unwrap();
}

/// The velocity of a transformer with given tensors on inputs that are always the same.
fn velocity(tensors: &Tensors, residency: Residency) -> Tensor {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    write(&path, tensors);
    std::fs::copy(fixture("sample-wan-t2v-diffusers/config.json"), folder.path().join("config.json")).unwrap();
    let file = DenoiserFile::open(Checkpoint::open(&path).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    let network = file.load(ComputeFormat::single(), Device::Cpu, residency, &mut |_| Ok(())).unwrap();
    let is_video = file.config.facts().is_video;
    let values = |shape: &[i64]| {
        let count = shape.iter().product::<i64>();
        (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.37).sin().reshape(shape)
    };
    let (text, pooled) =
        if is_video { (values(&[1, 5, 16]), None) } else { (values(&[1, 5, 32]), Some(values(&[1, 24]))) };
    let latents = if is_video { values(&[1, 16, 2, 4, 6]) } else { values(&[1, 16, 4, 6]) };
    let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: None, guidance: (!is_video).then_some(3.5) };
    let context = network.prepare(&inputs, [if is_video { 2 } else { 1 }, 4, 6]).unwrap();
    network.velocity(&latents, &[0.7], &context, &mut |_, _| Ok(BlockChoice::Run)).unwrap()
}

fn assert_same(found: &Tensors, expected: &Tensors) {
    let _no_grad = tch::no_grad_guard();
    let expected = velocity(expected, Residency::Mapped);
    for residency in [Residency::Mapped, Residency::Packed, Residency::Expanded] {
        let difference = f64::try_from((velocity(found, residency) - &expected).abs().max()).unwrap();
        assert!(difference < 2e-5, "{residency:?}: {difference}");
    }
}

fn plain(name: &str, tensor: Tensor) -> (String, &'static str, Tensor) {
    (name.to_owned(), "F32", tensor)
}

#[test]
fn files_that_were_cast_as_a_whole_have_narrow_vectors_too() {
    for name in [FLUX, WAN] {
        for (stored, kind) in [("F8_E4M3", Kind::Float8e4m3fn), ("F8_E5M2", Kind::Float8e5m2)] {
            let narrow = rewritten(name, |name, tensor| (name.to_owned(), stored, tensor.to_kind(kind)));
            let rounded = rewritten(name, |name, tensor| plain(name, tensor.to_kind(kind).to_kind(Kind::Float)));
            assert_same(&narrow, &rounded);
        }
    }
}

#[test]
fn fluxs_norms_have_comfyuis_names_too() {
    let renamed = rewritten(FLUX, |name, tensor| plain(&name.replace("_norm.scale", "_norm.weight"), tensor));
    assert!(renamed.contains_key("single_blocks.0.norm.key_norm.weight"));
    assert_same(&renamed, &rewritten(FLUX, plain));
}

#[test]
fn leading_axes_of_one_may_be_missing() {
    let flat = rewritten(WAN, |name, tensor| {
        plain(name, if name.ends_with("modulation") { tensor.squeeze_dim(0) } else { tensor })
    });
    assert_same(&flat, &rewritten(WAN, plain));
}

/// Matrices as comfy-kitchen stores them in mxfp8, with scales of 1: sides are padded to 32.
#[test]
fn padded_matrices_are_cut_to_the_networks_size() {
    let is_padded = |name: &str| {
        let ends = [
            "attn1.to_q.weight",
            "attn1.to_k.weight",
            "attn1.to_v.weight",
            "attn2.to_out.0.weight",
            "ffn.net.2.weight",
        ];
        ends.iter().any(|end| name.ends_with(end))
    };
    let mut padded = rewritten(NARROW_WAN, |name, tensor| {
        if !is_padded(name) {
            return plain(name, tensor);
        }
        let (rows, columns) = tensor.size2().unwrap();
        let wide = Tensor::ones([(rows + 31) / 32 * 32, (columns + 31) / 32 * 32], (Kind::Float, Device::Cpu));
        wide.narrow(0, 0, rows).narrow(1, 0, columns).copy_(&tensor);
        (name.to_owned(), "F8_E4M3", wide.to_kind(Kind::Float8e4m3fn))
    });
    assert_eq!(padded["blocks.0.attn1.to_q.weight"].1, [32, 32], "24 are padded");
    for name in padded.keys().filter(|name| is_padded(name)).cloned().collect::<Vec<_>>() {
        let [rows, columns] = padded[&name].1[..] else { panic!() };
        let layer = name.trim_end_matches(".weight");
        let (tall, wide) = (rows.next_multiple_of(128), (columns / 32).next_multiple_of(4));
        padded.insert(format!("{layer}.weight_scale"), ("U8", vec![tall, wide], vec![127; tall * wide]));
        let text = br#"{"format": "mxfp8", "params": null}"#.to_vec();
        padded.insert(format!("{layer}.comfy_quant"), ("U8", vec![text.len()], text));
    }
    let rounded = rewritten(NARROW_WAN, |name, tensor| {
        let kind = if is_padded(name) { Kind::Float8e4m3fn } else { Kind::Float };
        plain(name, tensor.to_kind(kind).to_kind(Kind::Float))
    });
    assert_same(&padded, &rounded);
}

#[test]
fn other_networks_may_stand_beside_a_transformer() {
    let mut beside = rewritten(WAN, |name, tensor| plain(&format!("model.diffusion_model.{name}"), tensor));
    let picture = "conditioner.vision_model.embeddings.patch_embedding.weight";
    beside.insert(picture.into(), ("F32", vec![1, 3, 2, 2], vec![0; 48]));
    assert_same(&beside, &rewritten(WAN, plain));
    let mut beside = rewritten(WAN, plain);
    beside.insert("vae.decoder.conv1.weight".into(), ("F32", vec![1], vec![0; 4]));
    assert_same(&beside, &rewritten(WAN, plain));
    // A tensor of no other network makes it another transformer, which would run wrong: it is
    // called by its name where that is known, and else by the tensor.
    for (name, called) in
        [("ref_conv.weight", "WAN Fun's transformer"), ("control_adapter.conv.weight", "WAN Fun's"), ("vae", "vae")]
    {
        let mut other = rewritten(WAN, plain);
        other.insert(name.into(), ("F32", vec![1], vec![0; 4]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        write(&path, &other);
        let error = DenoiserFile::open(Checkpoint::open(&path).unwrap()).unwrap_err().to_string();
        assert!(error.contains(called), "{error}");
    }
}

#[test]
fn widths_that_no_network_has_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    for (network, name, shape) in [
        (FLUX, "img_in.weight", vec![1 << 40, 0]),
        (FLUX, "img_in.weight", vec![0, 64]),
        (WAN, "patch_embedding.weight", vec![1 << 40, 0, 1, 2, 2]),
        (WAN, "patch_embedding.weight", vec![128, 0, 1, 2, 2]),
        (WAN, "blocks.0.ffn.0.bias", vec![0]),
        (WAN, "img_emb.proj.1.weight", vec![0, 1 << 40]),
    ] {
        let mut tensors = rewritten(network, plain);
        tensors.insert(name.into(), ("F32", shape.clone(), Vec::new()));
        write(&path, &tensors);
        let error = Checkpoint::open(&path).map(|file| DenoiserFile::open(file).unwrap_err().to_string());
        let error = error.unwrap_or_else(|error| error.to_string());
        assert!(!error.is_empty() && !error.contains('\n'), "{name} {shape:?}: {error}");
    }
    // Axes that overflow together are refused.
    write(&path, &rewritten(FLUX, plain));
    for axes in [[i64::MAX - 1, 2, 2], [-2, 2, 128], [16, 56, 57]] {
        let text = json!({ "_class_name": "FluxTransformer2DModel", "axes_dims_rope": axes }).to_string();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let error = DenoiserFile::open(Checkpoint::open(&path).unwrap()).unwrap_err().to_string();
        assert!(error.contains("with axes"), "{error}");
    }
}

#[test]
fn products_in_fp8_need_one_scale_for_a_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let has_products = |scales: &str| {
        let mut tensors = Tensors::new();
        for (name, stored) in rewritten(FLUX, |name, tensor| (name.to_owned(), "F32", tensor)) {
            let is_matrix = stored.1.len() == 2 && name.contains("blocks.");
            if !is_matrix || scales.is_empty() {
                tensors.insert(name, stored);
                continue;
            }
            let [rows, columns] = [stored.1[0], stored.1[1]];
            let count = if scales == "rows" { rows } else { 1 };
            let shape = if scales == "rows" { vec![rows, 1] } else { Vec::new() };
            tensors
                .insert(name.replace(".weight", ".weight_scale"), ("F32", shape, 0.01_f32.to_le_bytes().repeat(count)));
            tensors.insert(name, ("F8_E4M3", vec![rows, columns], vec![0x38; rows * columns]));
        }
        let path = folder.path().join(format!("{scales}.safetensors"));
        write(&path, &tensors);
        DenoiserFile::open(Checkpoint::open(&path).unwrap()).unwrap().has_fp8_products()
    };
    assert!(has_products("one"));
    assert!(!has_products("rows") && !has_products(""));
}
