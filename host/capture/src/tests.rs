//! Captures that are written and read again.

mod report;
mod tampering;
mod writing;

use std::{path::Path, time::Duration};

use serde_json::json;
use tilewright_plan::Stage;

use crate::{Capture, Dtype, End, Settings, TensorView, room::Space};

/// Elements of a tensor of 64 bytes.
const ELEMENTS: [u8; 64] = [7; 64];

fn tensor() -> TensorView<'static> {
    TensorView { dtype: Dtype::F32, shape: &[4, 4], bytes: &ELEMENTS }
}

fn settings(folder: &Path) -> Settings {
    Settings { layers: Some("blocks.*.attn".parse().unwrap()), ..Settings::new(folder) }
}

/// A capture on a disk that is never full.
fn begin(settings: Settings) -> crate::Result<Capture> {
    Capture::begin_with(settings, Box::new(|_| Some(Space { free: 1 << 40, total: 1 << 40 })))
}

/// A capture of a text stage and of a denoise stage with three tensors of layers.
fn write(settings: Settings) -> crate::Result<()> {
    let capture = begin(settings)?;
    let mut text = capture.stage(Stage::Text, 1)?;
    let ids = TensorView { dtype: Dtype::I64, shape: &[8], bytes: &ELEMENTS };
    text.inputs(&[("tokens", ids)])?;
    text.layer("blocks.0.attn", 0, End::In, tensor())?;
    text.outputs(&[("states", tensor())])?;
    text.facts(&json!({"prompt": "a purple fox", "model": "/home/someone/purple.safetensors"}))?;
    text.finish(Duration::from_millis(20))?;
    let mut denoise = capture.stage(Stage::Denoise, 2)?;
    denoise.inputs(&[("noise", tensor()), ("states", tensor())])?;
    for (layer, end) in [("blocks.0.attn", End::In), ("blocks.0.mlp", End::In), ("blocks.0.attn", End::Out)] {
        denoise.layer(layer, 3, end, tensor())?;
    }
    denoise.layer("blocks.1.attn", 4, End::Out, tensor())?;
    denoise.outputs(&[("latent", tensor())])?;
    denoise.facts(&json!({"seed": 5}))?;
    denoise.record(&json!({"device": {"name": "cpu"}, "hints": [{"name": "prompt", "value": "a purple fox"}]}))?;
    denoise.finish(Duration::from_micros(1500))?;
    capture.finish().map(drop)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
