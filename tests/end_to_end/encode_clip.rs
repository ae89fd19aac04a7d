//! Encoding clips: agreement with diffusers' latents, the files that clips come from, what is
//! recorded, what is refused.

use std::{env, fs, path::Path};

use image::RgbImage;
use serde_json::Value;

use crate::{
    encode::{encode, tensor},
    program::{Place, decibels, fixture, largest_difference, one_tensor, root},
};

const WHOLE: [&str; 6] = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32"];

fn bundled() -> String {
    root().join("examples/models/wan-tiny/Wan2.1_VAE.safetensors").display().to_string()
}

fn shapes() -> String {
    root().join("examples/latents/shapes.latent").display().to_string()
}

/// A clip's frames as raw values, [1, 3, T, H, W], that move.
pub fn clip(frames: usize, height: usize, width: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for channel in 0..3 {
        for frame in 0..frames {
            for y in 0..height {
                for x in 0..width {
                    let at = (y as f32 * 0.11 + frame as f32 * 0.3).sin() * (x as f32 * 0.07 + channel as f32).cos();
                    data.extend((0.8 * at).to_le_bytes());
                }
            }
        }
    }
    one_tensor("sample", "F32", &[1, 3, frames, height, width], &data)
}

#[test]
fn clips_agree_with_diffusers_scaled_or_not() {
    let all: Value = serde_json::from_str(&fs::read_to_string(fixture("video_cases.json")).unwrap()).unwrap();
    let mut encoded = 0;
    for case in all["encodes"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let text = |key: &str| fixture(case[key].as_str().unwrap());
        let shape: Vec<u64> = case["clip_shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        // Others are cropped, and several at once are refused.
        let scale = if case["version"] == "2.2" { 16 } else { 8 };
        if shape[0] > 1 || !shape[3].is_multiple_of(scale) || !shape[4].is_multiple_of(scale) {
            continue;
        }
        encoded += 1;
        let place = Place::new();
        let (clip, vae) = (text("clip"), text("vae"));
        encode(&place, &clip, &vae, &[&WHOLE[..], &["-o", "x.latent"]].concat()).succeeded();
        let (expected_shape, expected) = tensor(text("reference").as_ref(), "latent");
        let (found_shape, found) = tensor(&place.path("x.latent"), "latent_tensor");
        assert_eq!((found_shape.len(), &found_shape), (5, &expected_shape), "{name}");
        assert_eq!(tensor(&place.path("x.latent"), "latent_format_version_0").0, [0]);
        let most = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        assert!(largest_difference(&found, &expected) <= 1e-4 * most, "{name}");
        encode(&place, &clip, &vae, &[&WHOLE[..], &["-o", "y.safetensors", "--scaled"]].concat()).succeeded();
        let (_, scaled) = tensor(&place.path("y.safetensors"), "latent");
        let of = |key: &str| -> Option<Vec<f32>> {
            Some(case[key].as_array()?.iter().map(|value| value.as_f64().unwrap() as f32).collect())
        };
        let (Some(mean), Some(std)) = (of("latents_mean"), of("latents_std")) else { continue };
        let plane = found.len() / mean.len();
        let expected: Vec<f32> =
            found.iter().enumerate().map(|(at, value)| (value - mean[at / plane]) / std[at / plane]).collect();
        assert!(largest_difference(&scaled, &expected) <= 1e-4 * most, "{name}, scaled");
    }
    assert!(encoded >= 6, "{encoded}");
}

#[test]
fn frames_and_sides_that_are_over_are_left_out_and_said() {
    let place = Place::new();
    let vae = bundled();
    place.write("x.safetensors", clip(11, 69, 75));
    let found = |options: &[&str]| {
        let run = encode(&place, "x.safetensors", &vae, &[&WHOLE[..], &["-o", "x.latent"], options].concat());
        run.succeeded();
        (tensor(&place.path("x.latent"), "latent_tensor"), run.stderr())
    };
    let ((shape, all), said) = found(&[]);
    assert_eq!(shape, [1, 16, 3, 8, 9]);
    assert!(said.contains("75×69 is cropped to 72×64") && said.contains("9 of 11 frames are encoded"), "{said}");
    let ((shape, some), said) = found(&["--frames", "5"]);
    assert_eq!(shape, [1, 16, 2, 8, 9]);
    assert!(!said.contains("frames are encoded"), "{said}");
    // Later frames do not change the latents of earlier ones.
    for channel in 0..16 {
        let (from, of) = (&all[channel * 3 * 72..][..2 * 72], &some[channel * 2 * 72..][..2 * 72]);
        assert!(largest_difference(from, of) < 1e-5);
    }
}

#[test]
fn clips_from_folders_and_videos_decode_to_what_they_were() {
    let place = Place::new();
    let vae = bundled();
    place.decode(&[shapes(), "--vae".into(), vae.clone()], &[&WHOLE[..], &["-o", "frames/"]].concat()).succeeded();
    let names = |folder: &str| {
        let mut names: Vec<_> = fs::read_dir(place.path(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    };
    let pixels = |folder: &str| -> Vec<f32> {
        let open = |path: &std::path::PathBuf| image::open(path).unwrap().to_rgb8().into_raw();
        names(folder).iter().flat_map(open).map(|value| f32::from(value) / 127.5 - 1.0).collect()
    };
    encode::<&str>(&place, "frames", &vae, &[]).succeeded();
    let (shape, latent) = tensor(&place.path("frames.latent"), "latent_tensor");
    assert_eq!(shape, tensor(shapes().as_ref(), "latent_tensor").0);
    place.decode(&["frames.latent", "--vae", &vae], &[&WHOLE[..], &["-o", "back/"]].concat()).succeeded();
    let apart = decibels(&pixels("frames"), &pixels("back"));
    assert!(apart > 24.0, "{apart} dB");

    let path = env::var("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|folder| folder.join("ffmpeg").is_file()) {
        eprintln!("no ffmpeg: no video is encoded");
        return;
    }
    let with_ffmpeg = |arguments: &[&str]| {
        let output = place.command(arguments).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    with_ffmpeg(&["decode", &shapes(), "--vae", &vae, "--device", "cpu", "-o", "clip.mp4"]);
    with_ffmpeg(&["encode", "clip.mp4", "--vae", &vae, "--device", "cpu"]);
    let (video_shape, video) = tensor(&place.path("clip.latent"), "latent_tensor");
    assert_eq!(video_shape, shape);
    let power: f32 = latent.iter().map(|value| value * value).sum();
    let error: f32 = latent.iter().zip(&video).map(|(one, other)| (one - other).powi(2)).sum();
    // The loss of H.264.
    assert!(error < 0.1 * power, "{error} of {power}");
}

#[test]
fn a_picture_is_a_clip_of_one_frame() {
    let place = Place::new();
    let picture = root().join("examples/latents/astronaut.png").display().to_string();
    encode(&place, &picture, &bundled(), &["-o", "x.safetensors"]).succeeded();
    assert_eq!(tensor(&place.path("x.safetensors"), "latent").0, [1, 16, 1, 64, 64]);
}

#[test]
fn every_policy_encodes_clips_and_in_little_memory() {
    let schema = fs::read_to_string(root().join("host/plan/record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let place = Place::new();
    let vae = bundled();
    place.write("x.safetensors", clip(9, 192, 224));
    let options = [&WHOLE[..], &["--json", "-o", "whole.latent"]].concat();
    let whole = encode(&place, "x.safetensors", &vae, &options).json();
    let limit = (whole["outcome"]["peak_bytes"].as_u64().unwrap() * 8 / 10).to_string();
    let (_, expected) = tensor(&place.path("whole.latent"), "latent_tensor");
    for policy in ["adaptive", "gfx1151", "comfyui", "diffusers"] {
        let options = ["--policy", policy, "--memory-limit", &limit, "--no-history", "--json", "-o", "x.latent"];
        let record = encode(&place, "x.safetensors", &vae, &options).json();
        let errors: Vec<String> = schema.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{policy}: {errors:?}");
        assert_eq!(record["request"]["frames"], 9);
        let held = record["outcome"]["peak_bytes"].as_u64().unwrap();
        assert!(held <= limit.parse().unwrap(), "{policy}: {held} held of {limit}");
        let (shape, found) = tensor(&place.path("x.latent"), "latent_tensor");
        assert_eq!(shape, [1, 16, 3, 24, 28]);
        let power: f32 = expected.iter().map(|value| value * value).sum();
        let error: f32 = found.iter().zip(&expected).map(|(one, other)| (one - other).powi(2)).sum();
        assert!(error < 0.2 * power, "{policy}: {error} of {power}");
    }
    let options = ["--dry-run", "--json", "-o", "never.latent"];
    let record = encode(&place, "x.safetensors", &vae, &options).json();
    assert!(record["outcome"].is_null() && record["estimate"]["peak_bytes"].as_u64().unwrap() > 0);
    assert!(!place.path("never.latent").exists());
}

fn picture(path: &Path, width: u32, height: u32) {
    RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, 99])).save(path).unwrap();
}

#[test]
fn clips_that_cannot_be_encoded_end_with_two() {
    let place = Place::new();
    for folder in ["empty", "mixed"] {
        fs::create_dir(place.path(folder)).unwrap();
    }
    for (name, width) in [("1.png", 64), ("2.png", 64), ("3.png", 72)] {
        picture(&place.path("mixed").join(name), width, 64);
    }
    picture(&place.path("small.png"), 64, 7);
    place.write("text.mp4", "no video");
    place.write("text.txt", "no video");
    place.write("x.safetensors", clip(9, 64, 64));
    place.write("two.safetensors", one_tensor("sample", "F32", &[2, 3, 1, 64, 64], &vec![0; 2 * 3 * 64 * 64 * 4]));
    place.write("gray.safetensors", one_tensor("sample", "F32", &[1, 1, 1, 64, 64], &vec![0; 64 * 64 * 4]));
    let before = place.files();
    let (wan, image) = (bundled(), root().join("examples/models/flux-tiny/ae.safetensors").display().to_string());
    let decoder = fixture("wan21-three-levels/Wan2.1_VAE.safetensors");
    let cases: [(&str, &str, &[&str], &str); 14] = [
        ("nowhere.mp4", &wan, &[], "nowhere.mp4"),
        ("empty", &wan, &[], "holds no pictures"),
        ("x.safetensors", &image, &[], "9 frames, and this VAE encodes pictures"),
        ("small.png", &wan, &[], "64×7 pixels are less than the 8×8"),
        ("text.mp4", &wan, &[], "ffmpeg"),
        ("text.txt", &wan, &[], "unknown input ending"),
        ("two.safetensors", &wan, &[], "2 clips, and an encode takes one"),
        ("gray.safetensors", &wan, &[], "1 channel, the VAE takes 3"),
        ("x.safetensors", &decoder, &[], "no encoder in it: only the decoder's part is there"),
        ("x.safetensors", &wan, &["--frames", "0"], "frames"),
        ("x.safetensors", &wan, &["-o", "x.mp4"], "unknown output ending"),
        ("x.safetensors", &wan, &["--scaled", "-o", "out.latent"], "carries no scaling"),
        ("x.safetensors", &wan, &["--scaling-factor", "2"], "are for image VAEs"),
        ("x.safetensors", &wan, &["--memory-limit", "1MiB"], "too little for this clip: the least is about"),
    ];
    for (input, vae, options, words) in cases {
        encode(&place, input, vae, options).failed(2, words);
        assert_eq!(place.files(), before, "{input} {options:?}");
    }
    // The third of five frames has another size.
    for (name, width) in [("4.png", 64), ("5.png", 64)] {
        picture(&place.path("mixed").join(name), width, 64);
    }
    encode::<&str>(&place, "mixed", &wan, &[]).failed(2, "the pictures of a clip have one size: this is 72×64");
    assert_eq!(place.files(), before);
    // An image VAE takes one frame of a clip.
    encode(&place, "x.safetensors", &image, &["--frames", "1", "-o", "first.latent"]).succeeded();
    assert_eq!(tensor(&place.path("first.latent"), "latent_tensor").0, [1, 16, 8, 8]);
}
