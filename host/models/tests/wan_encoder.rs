//! The video encoder against diffusers, on the fixtures that
//! `tests/fixtures/make_video_fixtures.py` made.

#![cfg(feature = "torch")]

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tilewright_fixtures::fixture;
use tilewright_models::{
    Checkpoint, ComputeFormat, HalfConfig, Identity,
    wan_vae::{Encoder, EncoderConfig, EncoderState},
};
use tilewright_plan::{Dtype, Layout, Precision};

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("video_cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["encodes"].as_array().unwrap().clone()
}

fn tensor(path: &Value, name: &str) -> Tensor {
    let file = Checkpoint::open(&fixture(path.as_str().unwrap())).unwrap();
    let shape = file.shape(name).unwrap().to_vec();
    file.load(name, &shape, Kind::Float, Device::Cpu).unwrap()
}

fn encoder(case: &Value, precision: Precision, layout: Layout) -> Encoder {
    // Networks this small take longer with several threads than with one.
    tch::set_num_threads(1);
    let file = Checkpoint::open(&fixture(case["vae"].as_str().unwrap())).unwrap();
    let identity = Identity::of(&file);
    let config = EncoderConfig::read(&file, &identity).unwrap();
    config.check_weights(&file, &identity).unwrap();
    let format = ComputeFormat::new(precision, layout).unwrap();
    Encoder::load(&file, &identity, &config, format, Device::Cpu).unwrap()
}

/// The means of every clip of a case, with pushes of `latent_frames` latent frames after the first.
fn encode(case: &Value, precision: Precision, layout: Layout, latent_frames: i64) -> Tensor {
    let _no_grad = tch::no_grad_guard();
    let encoder = encoder(case, precision, layout);
    let clips = tensor(&case["clip"], "sample");
    let [samples, _, frames, ..] = clips.size()[..] else { panic!("a clip has five dimensions") };
    let stride = latent_frames * i64::from(encoder.config().temporal_scale());
    let clip = |sample: i64| {
        let clip = clips.narrow(0, sample, 1);
        let mut state = EncoderState::default();
        let (mut parts, mut start) = (Vec::new(), 0);
        while start < frames {
            let count = if start == 0 { 1 } else { stride.min(frames - start) };
            let mut last = 0.0;
            let part = encoder.push(&mut state, &clip.narrow(2, start, count), &mut |share| {
                assert!(share >= last, "progress goes forward");
                last = share;
                Ok(())
            });
            assert!((last - 1.0).abs() < 1e-9, "progress ends at 1, not {last}");
            parts.push(part.unwrap());
            start += count;
        }
        Tensor::cat(&parts, 2)
    };
    Tensor::cat(&(0..samples).map(clip).collect::<Vec<_>>(), 0)
}

fn largest(tensor: &Tensor) -> f64 {
    f64::try_from(tensor.abs().max()).unwrap()
}

#[test]
fn encodes_in_f32_agree_with_diffusers_however_the_clip_is_divided() {
    let cases = cases();
    assert!(cases.len() >= 10);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let expected = tensor(&case["reference"], "latent");
        for (layout, latent_frames) in
            [(Layout::ChannelsFirst, 1), (Layout::ChannelsFirst, 3), (Layout::ChannelsLast, 1 << 10)]
        {
            let found = encode(&case, Precision::Uniform(Dtype::F32), layout, latent_frames);
            assert_eq!(found.size(), expected.size(), "{name}");
            let difference = largest(&(found - &expected));
            let tolerance = 1e-4 * largest(&expected).max(1.0);
            assert!(difference <= tolerance, "{name} {layout} by {latent_frames}: {difference} > {tolerance}");
        }
    }
}

#[test]
fn encodes_in_other_types_stay_near_f32() {
    for case in cases().into_iter().filter(|case| case["name"].as_str().unwrap().ends_with("original-17")) {
        let expected = tensor(&case["reference"], "latent");
        let decibels = |precision| {
            let found = encode(&case, precision, Layout::ChannelsFirst, 1);
            let mean = |tensor: Tensor| f64::try_from(tensor.square().mean(Kind::Float)).unwrap();
            10.0 * (mean(expected.shallow_clone()) / mean(found - &expected)).log10()
        };
        let name = case["name"].as_str().unwrap();
        for (precision, least) in [
            (Precision::Uniform(Dtype::Bf16), 25.0),
            (Precision::Mixed(Dtype::Bf16), 28.0),
            (Precision::Mixed(Dtype::F16), 45.0),
        ] {
            let found = decibels(precision);
            assert!(found > least, "{name} {precision}: {found} dB");
        }
    }
}

#[test]
fn frames_that_do_not_fit_are_refused() {
    let case = |name: &str| cases().into_iter().find(|case| case["name"] == name).unwrap();
    let _no_grad = tch::no_grad_guard();
    let f32 = Precision::Uniform(Dtype::F32);
    let wan22 = encoder(&case("encode-wan22-original-1"), f32, Layout::ChannelsFirst);
    let frames = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let mut state = EncoderState::default();
    let mut push = |shape: &[i64]| {
        wan22
            .push(&mut state, &frames(shape), &mut |_| Ok(()))
            .map(|latent| latent.size())
            .map_err(|error| error.to_string())
    };
    let cases: [(&[i64], &str); 9] = [
        (&[1, 3, 5, 32, 32], "5 frames at first: the first one comes alone"),
        (&[2, 3, 1, 32, 32], "one clip is [1, C, T, H, W]"),
        (&[3, 1, 32, 32], "one clip is [1, C, T, H, W]"),
        (&[1, 4, 1, 32, 32], "pictures of 4 channels: 3 expected"),
        (&[1, 3, 1, 40, 32], "frames of 32×40 pixels: sides that are multiples of 16 expected"),
        (&[1, 3, 1, 0, 32], "sides of at least 16 expected"),
        (&[1, 3, 1, 32, 48], ""),
        (&[1, 3, 3, 32, 48], "3 frames: a multiple of 4 expected"),
        (&[1, 3, 4, 32, 32], "frames of 32×32 pixels after those of 48×32"),
    ];
    for (shape, words) in cases {
        match push(shape) {
            Err(message) => assert!(!words.is_empty() && message.contains(words), "{message:?} lacks {words:?}"),
            Ok(size) => assert!(words.is_empty() && size == [1, 48, 1, 2, 3], "{size:?} of {shape:?}"),
        }
    }
    let wan21 = encoder(&case("encode-wan21-original-1"), f32, Layout::ChannelsFirst);
    let small = wan21.push(&mut EncoderState::default(), &frames(&[1, 3, 1, 7, 16]), &mut |_| Ok(())).unwrap_err();
    assert!(small.to_string().contains("sides of at least 8 expected"), "{small}");
}
