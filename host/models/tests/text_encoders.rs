//! Text encoders against transformers (`tests/fixtures/make_text_fixtures.py`).

#![cfg(feature = "torch")]

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use serde::Deserialize;
use tch::{Device, Tensor};
use tilewright_fixtures::fixture;
use tilewright_models::{
    Checkpoint, ComputeFormat, EncoderConfig, EncoderFile, EncoderKind, EncoderStates, transformer::Residency,
};

/// A list of ids; of those with a mask, the rest is padding.
#[derive(Deserialize)]
struct List {
    name: String,
    ids: Vec<u32>,
    #[serde(default)]
    attention_mask: Vec<usize>,
}

#[derive(Deserialize)]
struct Lists {
    lists: Vec<List>,
}

fn lists(name: &str) -> Vec<List> {
    let text = fs::read_to_string(fixture(name).join("tokens.json")).unwrap();
    serde_json::from_str::<Lists>(&text).unwrap().lists
}

fn reference(name: &str, file: &str) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(fixture(name).join(file)).unwrap().into_iter().collect()
}

fn encoders(path: PathBuf) -> Vec<EncoderFile> {
    let file = Arc::new(Checkpoint::open_part(&path, &[]).unwrap());
    let found = EncoderFile::find_all(&file).unwrap();
    found.iter().for_each(|encoder| encoder.check().unwrap());
    found
}

fn only(path: PathBuf) -> EncoderFile {
    let mut found = encoders(path);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn states(encoder: &EncoderFile, ids: &[u32], residency: Residency) -> EncoderStates<Tensor> {
    let loaded = encoder.load(ComputeFormat::single(), Device::Cpu, residency, &mut |_| Ok(())).unwrap();
    let embedded = encoder.add_positions(&encoder.embed(ids).unwrap().unsqueeze(0)).unwrap();
    loaded.states(&embedded, 1).unwrap()
}

fn assert_near(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.size(), expected.size(), "{what}");
    let largest = expected.abs().max().double_value(&[]).max(1.0);
    let apart = (found - expected).abs().max().double_value(&[]) / largest;
    assert!(apart < 1e-5, "{what}: {apart}");
}

fn row(states: &Tensor, ids: &[u32], end: u32) -> Tensor {
    let place = ids.iter().position(|id| *id == end).unwrap();
    states.select(1, place as i64)
}

#[test]
fn clips_vision_sees_as_transformers_does() {
    let name = "text-clip-vision";
    let file = Arc::new(Checkpoint::open_part(&fixture(name), &[]).unwrap());
    let encoder = EncoderFile::find_vision(&file).unwrap();
    encoder.check().unwrap();
    let pixels = &reference(name, "pixels.safetensors")["pixel_values"];
    let expected = reference(name, "reference.safetensors");
    for residency in [Residency::Mapped, Residency::Expanded] {
        let loaded = encoder.load(ComputeFormat::single(), Device::Cpu, residency, &mut |_| Ok(())).unwrap();
        let states = loaded.states(&encoder.embed_pictures(pixels).unwrap(), 1).unwrap();
        assert_near(states.inner.as_ref().unwrap(), &expected["penultimate"], "penultimate");
        assert_near(&states.last.select(1, 0), &expected["pooled"], "pooled");
    }
    // Neither kind is taken for the other.
    let error = EncoderFile::find_all(&file).unwrap_err().to_string();
    assert!(error.contains("not a text encoder that can be run"), "{error}");
    let text = Arc::new(Checkpoint::open_part(&fixture("text-clip-l"), &[]).unwrap());
    let error = EncoderFile::find_vision(&text).unwrap_err().to_string();
    assert!(error.contains("not a vision encoder that can be run"), "{error}");
}

#[test]
fn clip_encodes_as_transformers_does() {
    for (name, file) in [
        ("text-clip-l", "."),
        ("text-clip-l-unprefixed", "."),
        ("text-clip-g", "."),
        ("text-clip-l-single", "clip_l.safetensors"),
        ("text-sd15", "v1-5-tiny.safetensors"),
    ] {
        let encoder = only(fixture(name).join(file));
        let of = if name == "text-clip-l-unprefixed" { "text-clip-l" } else { name };
        let expected = reference(of, "reference.safetensors");
        let end = encoder.config.vocabulary() as u32 - 1;
        for (index, list) in lists(of).iter().enumerate() {
            for residency in [Residency::Mapped, Residency::Expanded] {
                let found = states(&encoder, &list.ids, residency);
                let of = |name: &str| expected[name].narrow(0, index as i64, 1);
                assert_near(&found.last, &of("last"), &list.name);
                assert_near(&found.inner.unwrap(), &of("penultimate"), &list.name);
                let pooled = row(&found.last, &list.ids, end);
                let pooled = encoder.project(&pooled).unwrap().unwrap_or(pooled);
                assert_near(&pooled, &of("pooled"), &list.name);
            }
        }
    }
}

#[test]
fn a_checkpoint_may_hold_two_encoders() {
    let mut found = encoders(fixture("text-sdxl").join("sd_xl_tiny.safetensors"));
    found.sort_by_key(|encoder| encoder.config.kind());
    let kinds: Vec<EncoderKind> = found.iter().map(|encoder| encoder.config.kind()).collect();
    assert_eq!(kinds, [EncoderKind::Clip, EncoderKind::OpenClip]);
    let text = fs::read_to_string(fixture("text-sdxl").join("tokens.json")).unwrap();
    let ids: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let expected = reference("text-sdxl", "reference.safetensors");
    let of = |key: &str| -> Vec<u32> { serde_json::from_value(ids[key]["lists"][0]["ids"].clone()).unwrap() };
    let all: Vec<_> = found
        .iter()
        .zip(["l", "g"])
        .map(|(encoder, key)| (states(encoder, &of(key), Residency::Mapped), of(key)))
        .collect();
    let inner: Vec<Tensor> = all.iter().map(|(states, _)| states.inner.as_ref().unwrap().shallow_clone()).collect();
    assert_near(&Tensor::cat(&inner, 2), &expected["prompt_embeds"], "both");
    let end = found[1].config.vocabulary() as u32 - 1;
    let pooled = found[1].project(&row(&all[1].0.last, &all[1].1, end)).unwrap().unwrap();
    assert_near(&pooled, &expected["pooled_prompt_embeds"], "pooled");
}

#[test]
fn t5_and_umt5_encode_as_transformers_does() {
    let cases = [
        ("text-t5", ".", "reference.safetensors", EncoderKind::T5),
        ("text-umt5", ".", "reference.safetensors", EncoderKind::Umt5),
        ("text-t5-single", "t5xxl_fp16.safetensors", "reference-t5xxl_fp16.safetensors", EncoderKind::T5),
        ("text-t5-single", "t5xxl_fp8_e4m3fn.safetensors", "reference-t5xxl_fp8_e4m3fn.safetensors", EncoderKind::T5),
        (
            "text-t5-single",
            "t5xxl_fp8_e4m3fn_scaled.safetensors",
            "reference-t5xxl_fp8_e4m3fn_scaled.safetensors",
            EncoderKind::T5,
        ),
        (
            "text-t5-single",
            "t5-v1_1-xxl-encoder-Q8_0.gguf",
            "reference-t5-v1_1-xxl-encoder-Q8_0.safetensors",
            EncoderKind::T5,
        ),
        (
            "text-umt5-single",
            "models_t5_umt5-xxl-enc-bf16.safetensors",
            "reference-models_t5_umt5-xxl-enc-bf16.safetensors",
            EncoderKind::Umt5,
        ),
        ("text-umt5-single", "umt5_xxl_fp16.safetensors", "reference-umt5_xxl_fp16.safetensors", EncoderKind::Umt5),
        (
            "text-umt5-single",
            "umt5_xxl_fp8_e4m3fn_scaled.safetensors",
            "reference-umt5_xxl_fp8_e4m3fn_scaled.safetensors",
            EncoderKind::Umt5,
        ),
        (
            "text-umt5-single",
            "umt5-xxl-encoder-Q8_0.gguf",
            "reference-umt5-xxl-encoder-Q8_0.safetensors",
            EncoderKind::Umt5,
        ),
    ];
    for (name, file, expected, kind) in cases {
        let encoder = only(fixture(name).join(file));
        assert_eq!(encoder.config.kind(), kind, "{name}/{file}");
        let expected = reference(name, expected);
        for list in lists(name) {
            let what = format!("{name}/{file} {}", list.name);
            if let Some(expected) = expected.get(&list.name) {
                assert_near(&states(&encoder, &list.ids, Residency::Mapped).last, expected, &what);
            }
            // Without padding, as with a mask over it.
            let Some(expected) = expected.get(&format!("{}.masked", list.name)) else { continue };
            let used = list.attention_mask.iter().sum::<usize>();
            let found = states(&encoder, &list.ids[..used], Residency::Expanded).last;
            assert_near(&found, &expected.narrow(1, 0, used as i64), &what);
        }
    }
}

#[test]
fn ids_beyond_the_vocabulary_are_refused() {
    let encoder = only(fixture("text-t5"));
    let error = encoder.embed(&[0, 4_000_000_000]).unwrap_err().to_string();
    assert!(error.contains("shared.weight") && error.contains("row 4000000000"), "{error}");
    let EncoderConfig::T5(config) = &encoder.config else { panic!("{:?}", encoder.config) };
    assert_eq!((config.blocks, config.heads, config.attention), (3, 3, 48));
}

/// Layers at their published widths, out of the folder that `make_text_fixtures.py --real FOLDER`
/// makes.
#[test]
#[ignore = "needs TILEWRIGHT_REAL, the folder of make_text_fixtures.py --real"]
fn published_widths_agree_too() {
    let folder = PathBuf::from(std::env::var_os("TILEWRIGHT_REAL").unwrap());
    for name in ["text-t5-xxl", "text-clip-l-wide", "text-clip-g-wide"] {
        let encoder = only(folder.join(name));
        let text = fs::read_to_string(folder.join(name).join("tokens.json")).unwrap();
        let expected: BTreeMap<String, Tensor> =
            Tensor::read_safetensors(folder.join(name).join("reference.safetensors")).unwrap().into_iter().collect();
        for (index, list) in serde_json::from_str::<Lists>(&text).unwrap().lists.iter().enumerate() {
            let found = states(&encoder, &list.ids, Residency::Mapped);
            let of = |name: &str| expected.get(name).map(|all| all.narrow(0, index as i64, 1));
            let expected = expected.get(&list.name).map(Tensor::shallow_clone).or_else(|| of("last"));
            assert_near(&found.last, &expected.unwrap(), &format!("{name} {}", list.name));
            if let (Some(inner), Some(expected)) = (found.inner, of("penultimate")) {
                assert_near(&inner, &expected, &format!("{name} {}", list.name));
            }
        }
    }
}
