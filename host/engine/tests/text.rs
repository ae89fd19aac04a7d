//! Text encoders: their memory against its estimate, and what goes wrong.

mod scripted;

use std::{ops::ControlFlow, sync::Arc};

use scripted::{Quiet, alone, fixtures, machine};
use tch::{Device, Kind, Tensor};
use tilewright_engine::{Cancelled, Error, Observer, TextJob};
use tilewright_models::{Checkpoint, EncoderFile};
use tilewright_plan::{Dtype, Precision};
use tilewright_torch::memory;

fn encoder(name: &str) -> EncoderFile {
    let file = Arc::new(Checkpoint::open_part(&fixtures().join(name), &[]).unwrap());
    EncoderFile::find_all(&file).unwrap().remove(0)
}

fn embedded(encoder: &EncoderFile, tokens: u32) -> [Tensor; 1] {
    let ids: Vec<u32> = (0..tokens).map(|id| id % encoder.config.vocabulary() as u32).collect();
    [encoder.add_positions(&encoder.embed(&ids).unwrap().unsqueeze(0)).unwrap()]
}

fn job<'a>(encoder: &'a EncoderFile, embedded: &'a [Tensor], memory_limit: u64) -> TextJob<'a> {
    TextJob { machine: machine(), encoder, embedded, left_out: 1, precision: None, memory_limit }
}

#[test]
fn memory_is_what_was_estimated_and_is_given_back() {
    let _alone = alone();
    for (name, tokens) in [("text-t5", 512), ("text-umt5", 512), ("text-clip-l", 77), ("text-clip-g", 77)] {
        let encoder = encoder(name);
        let embedded = embedded(&encoder, tokens);
        for precision in [Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16)] {
            let job = TextJob { precision: Some(precision), ..job(&encoder, &embedded, 1 << 34) };
            drop(job.run(&mut Quiet).unwrap());
            let before = memory::of(Device::Cpu).unwrap().in_use;
            let encoded = job.run(&mut Quiet).unwrap();
            let expected = job.estimate(precision).unwrap();
            let held = encoded.outcome.peak_bytes + encoder.stored_bytes;
            let ratio = expected.held_bytes() as f64 / held as f64;

            assert!((0.98..=1.02).contains(&ratio), "{name} {precision}: {expected:?}, {held} measured");
            drop(encoded);
            assert_eq!(memory::of(Device::Cpu).unwrap().in_use, before);
        }
    }
}

/// CLIP of a block whose feed-forward layer is so wide that it holds more than attention, as in the
/// published ones.
fn wide_clip(folder: &std::path::Path) -> EncoderFile {
    let (hidden, wide, layer) = (64, 1024, "text_model.encoder.layers.0");
    let mut shapes = vec![
        ("text_model.embeddings.token_embedding.weight".to_owned(), vec![100, hidden]),
        ("text_model.embeddings.position_embedding.weight".to_owned(), vec![77, hidden]),
    ];
    let layers = [("mlp.fc1", [wide, hidden]), ("mlp.fc2", [hidden, wide])];
    let square = ["q_proj", "k_proj", "v_proj", "out_proj"].map(|name| format!("self_attn.{name}"));
    let square = square.iter().map(|name| (name.as_str(), [hidden, hidden]));
    for (name, [out, into]) in layers.into_iter().chain(square) {
        shapes.push((format!("{layer}.{name}.weight"), vec![out, into]));
        shapes.push((format!("{layer}.{name}.bias"), vec![out]));
    }
    for norm in [&format!("{layer}.layer_norm1"), &format!("{layer}.layer_norm2"), "text_model.final_layer_norm"] {
        shapes.extend(["weight", "bias"].map(|part| (format!("{norm}.{part}"), vec![hidden])));
    }
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(name, shape)| (name, Tensor::ones(shape, (Kind::Float, Device::Cpu)) * 0.01))
        .collect();
    let path = folder.join("clip.safetensors");
    Tensor::write_safetensors(&tensors, &path).unwrap();
    EncoderFile::find_all(&Arc::new(Checkpoint::open(&path).unwrap())).unwrap().remove(0)
}

#[test]
fn wide_feed_forward_layers_hold_what_is_estimated() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let encoder = wide_clip(folder.path());
    // So many that a product's scratch is less.
    let embedded = embedded(&encoder, 77).map(|text| text.repeat([4, 1, 1]));
    let precision = Precision::Uniform(Dtype::F32);
    let job = TextJob { precision: Some(precision), ..job(&encoder, &embedded, 1 << 34) };
    drop(job.run(&mut Quiet).unwrap());
    let held = job.run(&mut Quiet).unwrap().outcome.peak_bytes + encoder.stored_bytes;
    let ratio = job.estimate(precision).unwrap().held_bytes() as f64 / held as f64;
    assert!((0.98..=1.02).contains(&ratio), "{ratio}");
}

#[test]
fn narrow_types_come_near_f32() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 64);
    let of = |precision| {
        let job = TextJob { precision: Some(precision), ..job(&encoder, &embedded, 1 << 34) };
        job.run(&mut Quiet).unwrap().states.remove(0).last
    };
    let (exact, mixed) = (of(Precision::Uniform(Dtype::F32)), of(Precision::Mixed(Dtype::Bf16)));
    let apart = ((&mixed - &exact).abs().max() / exact.abs().max()).double_value(&[]);
    assert!(apart > 0.0 && apart < 6e-2, "{apart}");
}

#[test]
fn too_little_memory_is_said() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 512);
    let error = job(&encoder, &embedded, encoder.stored_bytes + (1 << 20)).run(&mut Quiet).unwrap_err();
    assert!(matches!(error, Error::EncoderDoesNotFit { .. }), "{error}");
    assert!(error.to_string().contains("too little for T5 of width 64"), "{error}");
}

#[test]
fn damaged_weights_are_said() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 8).map(|tensor| tensor * f64::NAN);
    let error = job(&encoder, &embedded, 1 << 34).run(&mut Quiet).unwrap_err().to_string();
    assert!(error.contains("NaN or infinite") && error.contains("in f32 too"), "{error}");
}

/// Ends the load.
struct Impatient;

impl Observer for Impatient {
    fn loading_progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        ControlFlow::Break(Cancelled)
    }
}

#[test]
fn a_load_ends_when_it_is_cancelled() {
    let _alone = alone();
    let encoder = encoder("text-umt5");
    let embedded = [Tensor::zeros([1, 8, encoder.config.hidden()], (Kind::Float, Device::Cpu))];
    let error = job(&encoder, &embedded, 1 << 34).run(&mut Impatient).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
}
