//! Encoding: agreement with diffusers' latents, what is written, what is recorded, what is refused.

use std::{fs, path::Path};

use image::{ExtendedColorType, ImageEncoder, RgbImage, codecs::png::PngEncoder};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::program::{Place, Run, bundled, decibels, fixture, largest_difference, root, sample};

const WHOLE: [&str; 6] = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32"];

fn photograph() -> String {
    root().join("examples/latents/astronaut.png").display().to_string()
}

pub fn encode<S: AsRef<str>>(place: &Place, picture: &str, vae: &str, options: &[S]) -> Run {
    let mut arguments = ["encode", picture, "--vae", vae, "--device", "cpu"].map(str::to_owned).to_vec();
    arguments.extend(options.iter().map(|option| option.as_ref().to_owned()));
    place.run(&arguments)
}

/// An f32 tensor of a file, with its shape.
pub fn tensor(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
    let values = tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    (tensor.shape().to_vec(), values)
}

/// A part of the photograph as a PNG.
fn part(left: u32, top: u32, width: u32, height: u32) -> Vec<u8> {
    let picture = image::open(photograph()).unwrap().to_rgb8();
    png(&image::imageops::crop_imm(&picture, left, top, width, height).to_image())
}

pub fn png(picture: &RgbImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (width, height) = picture.dimensions();
    PngEncoder::new(&mut bytes).write_image(picture, width, height, ExtendedColorType::Rgb8).unwrap();
    bytes
}

#[test]
fn every_layout_agrees_with_diffusers() {
    let all: Value = serde_json::from_str(&fs::read_to_string(fixture("cases.json")).unwrap()).unwrap();
    for case in all["encodes"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let text = |key: &str| fixture(case[key].as_str().unwrap());
        let (shape, values) = sample(text("picture").as_ref());
        let (expected_shape, expected) = tensor(text("reference").as_ref(), "latent");
        let place = Place::new();
        let [samples, _, height, width] = shape[..] else { panic!("{name}: {shape:?}") };
        for number in 0..samples {
            let plane = height * width;
            let at = |x: u32, y: u32, channel: usize| {
                let value = values[(3 * number + channel) * plane + y as usize * width + x as usize];
                (value * 127.5 + 127.5).round().clamp(0.0, 255.0) as u8
            };
            let picture = RgbImage::from_fn(width as u32, height as u32, |x, y| {
                image::Rgb([0, 1, 2].map(|channel| at(x, y, channel)))
            });
            place.write("x.png", png(&picture));
            encode(&place, "x.png", &text("vae"), &[&WHOLE[..], &["-o", "x.safetensors"]].concat()).succeeded();
            let (found_shape, found) = tensor(&place.path("x.safetensors"), "latent");
            assert_eq!(found_shape[1..], expected_shape[1..], "{name}");
            // Eight bits are what a picture has; the network itself is compared to 1e-4 beside it.
            let expected = &expected[number * found.len()..(number + 1) * found.len()];
            let most = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
            let difference = largest_difference(&found, expected);
            assert!(difference <= 0.03 * most, "{name}: {difference} of {most}");
        }
    }
}

#[test]
fn a_latent_for_comfyui_decodes_to_the_photograph() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    encode::<&str>(&place, &photograph(), &vae, &[]).succeeded();
    // The picture's name, in the current folder.
    assert_eq!(place.files(), ["astronaut.latent"]);
    let path = place.path("astronaut.latent");
    assert_eq!(tensor(&path, "latent_tensor").0, [1, 16, 64, 64]);
    assert_eq!(tensor(&path, "latent_format_version_0").0, [0]);
    place.decode(&["astronaut.latent", "--vae", &vae], &["-o", "back.png"]).succeeded();
    let pixels = |path: &Path| {
        let picture = image::open(path).unwrap().to_rgb8();
        picture.into_raw().into_iter().map(|value| f32::from(value) / 127.5 - 1.0).collect::<Vec<_>>()
    };
    let apart = decibels(&pixels(&place.path("back.png")), &pixels(photograph().as_ref()));
    assert!(apart > 24.0, "{apart} dB");
}

#[test]
fn scaling_is_applied_where_it_is_asked_for() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    let picture = place.write("x.png", part(200, 60, 64, 64));
    encode(&place, &picture, &vae, &["-o", "plain.safetensors"]).succeeded();
    encode(&place, &picture, &vae, &["-o", "scaled.safetensors", "--scaled"]).succeeded();
    let given = ["--scaled", "--scaling-factor", "2", "--shift-factor", "-0.5", "-o", "given.safetensors"];
    encode(&place, &picture, &vae, &given).succeeded();
    let latent = |name: &str| tensor(&place.path(name), "latent").1;
    let of = |factor: f32, shift: f32| {
        latent("plain.safetensors").into_iter().map(|value| (value - shift) * factor).collect::<Vec<_>>()
    };
    // Flux's.
    assert!(largest_difference(&latent("scaled.safetensors"), &of(0.3611, 0.1159)) < 1e-5);
    assert!(largest_difference(&latent("given.safetensors"), &of(2.0, -0.5)) < 1e-4);
    for (name, more) in [("plain.safetensors", &[][..]), ("scaled.safetensors", &["--scaled"])] {
        let options = [&WHOLE[..], &["-o", "raw.safetensors"], more].concat();
        place.decode(&[name, "--vae", &vae], &options).succeeded();
        fs::rename(place.path("raw.safetensors"), place.path(&format!("raw-{name}"))).unwrap();
    }
    let raw = |name: &str| place.sample(&format!("raw-{name}")).1;
    assert!(largest_difference(&raw("plain.safetensors"), &raw("scaled.safetensors")) < 1e-3);
}

#[test]
fn odd_sides_are_cropped_to_the_middle_and_said() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    place.write("odd.png", part(180, 40, 75, 69));
    // 75 − 72 = 3 and 69 − 64 = 5: one and two pixels go at the left and at the top.
    place.write("even.png", part(181, 42, 72, 64));
    let run = encode(&place, "odd.png", &vae, &[&WHOLE[..], &["-o", "odd.safetensors"]].concat());
    assert!(run.succeeded().stderr().contains("75×69 is cropped to 72×64"), "{}", run.stderr());
    let run = encode(&place, "even.png", &vae, &[&WHOLE[..], &["-o", "even.safetensors"]].concat());
    assert!(!run.succeeded().stderr().contains("cropped"), "{}", run.stderr());
    let latent = |name: &str| tensor(&place.path(name), "latent");
    assert_eq!(latent("odd.safetensors"), latent("even.safetensors"));
    assert_eq!(latent("odd.safetensors").0, [1, 16, 8, 9]);
}

#[test]
fn other_formats_are_read_and_turned() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    let picture = image::load_from_memory(&part(180, 40, 96, 64)).unwrap().to_rgb8();
    picture.save(place.path("x.png")).unwrap();
    picture.save(place.path("x.webp")).unwrap();
    image::codecs::jpeg::JpegEncoder::new_with_quality(fs::File::create(place.path("x.jpg")).unwrap(), 100)
        .encode_image(&picture)
        .unwrap();
    // The same lying on its side, with the camera's note that says so: Exif in a JPEG's APP1
    // segment, orientation 6.
    let jpeg = |picture: &RgbImage| {
        let mut bytes = Vec::new();
        image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 100).encode_image(picture).unwrap();
        bytes
    };
    let tiff = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let segment = [&b"Exif\0\0"[..], tiff].concat();
    let side = jpeg(&image::imageops::rotate270(&picture));
    let length = (segment.len() as u16 + 2).to_be_bytes();
    place.write("side.jpg", [&side[..2], &[0xff, 0xe1], &length, &segment, &side[2..]].concat());
    let latent = |name: &str| {
        encode(&place, name, &vae, &[&WHOLE[..], &["-o", "x.safetensors"]].concat()).succeeded();
        tensor(&place.path("x.safetensors"), "latent")
    };
    let (shape, expected) = latent("x.png");
    assert_eq!(shape, [1, 16, 8, 12]);
    assert_eq!(latent("x.webp"), (shape.clone(), expected.clone()));
    let most = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
    for name in ["x.jpg", "side.jpg"] {
        let (found_shape, found) = latent(name);
        assert_eq!(found_shape, shape, "{name}");
        let power: f32 = expected.iter().map(|value| value * value).sum();
        let error: f32 = found.iter().zip(&expected).map(|(one, other)| (one - other).powi(2)).sum();
        assert!(error < 0.01 * power, "{name}: {error} of {power}, largest {most}");
    }
}

#[test]
fn every_policy_encodes_and_records_follow_the_published_schema() {
    let schema = fs::read_to_string(root().join("host/plan/record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let place = Place::new();
    let [_, _, vae] = bundled();
    let picture = place.write("x.png", part(128, 0, 192, 160));
    for policy in ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"] {
        let options = ["--policy", policy, "--json", "-o", "x.latent", "--record", "records.jsonl"];
        let mut record = encode(&place, &picture, &vae, &options).json();
        let outputs = record.as_object_mut().unwrap().remove("outputs");
        assert_eq!(outputs, Some(serde_json::json!(["x.latent"])), "beside the record itself");
        let errors: Vec<String> = schema.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{policy}: {errors:?}");
        let request = &record["request"];
        assert_eq!((request["height"].as_u64(), request["width"].as_u64()), (Some(160), Some(192)));
        assert_eq!(record["stage"], "encode");
        assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() > 0);
        match policy {
            // It has no rules for encodes and says so.
            "gfx1151" => {
                assert_eq!(record["fallback"]["reason"], "not-answered", "{record}");
                assert_eq!(
                    record["fallback"]["detail"],
                    "it answers decode and denoise, and leaves encode to the host"
                );
            }
            _ => assert_eq!(record["fallback"], Value::Null, "{policy}: {record}"),
        }
        // The file says how it was made.
        let bytes = fs::read(place.path("x.latent")).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let kept: Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["tilewright"]).unwrap();
        assert_eq!(kept, record);
        fs::remove_file(place.path("x.latent")).unwrap();
    }
    let records = fs::read_to_string(place.path("records.jsonl")).unwrap();
    assert_eq!(records.lines().count(), 5);
}

#[test]
fn a_dry_run_decides_and_encodes_nothing() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    let options = ["--dry-run", "--json", "-o", "never.latent"];
    let record = encode(&place, &photograph(), &vae, &options).json();
    assert_eq!(record["outcome"], Value::Null);
    assert!(record["estimate"]["peak_bytes"].as_u64().unwrap() > 0);
    assert!(place.files().is_empty());
    let run = encode(&place, &photograph(), &vae, &["--dry-run", "--explain"]);
    assert!(run.succeeded().stdout().contains("considered"), "{}", run.stdout());
}

#[test]
fn a_third_of_what_whole_needs_still_ends_in_a_latent() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    let picture = place.write("x.png", part(128, 0, 256, 256));
    let options = [&WHOLE[..], &["--json", "-o", "whole.latent"]].concat();
    let whole = encode(&place, &picture, &vae, &options).json();
    let limit = (whole["outcome"]["peak_bytes"].as_u64().unwrap() / 3).to_string();
    let (_, expected) = tensor(&place.path("whole.latent"), "latent_tensor");
    for policy in ["adaptive", "gfx1151", "comfyui", "diffusers"] {
        let options = ["--policy", policy, "--memory-limit", &limit, "--no-history", "--json", "-o", "small.latent"];
        let record = encode(&place, &picture, &vae, &options).json();
        let held = record["outcome"]["peak_bytes"].as_u64().unwrap();
        assert!(held <= limit.parse().unwrap(), "{policy}: {held} held of {limit}");
        assert_eq!(record["plan"]["space"]["kind"], "blended", "{policy}");
        let (shape, found) = tensor(&place.path("small.latent"), "latent_tensor");
        assert_eq!(shape, [1, 16, 32, 32]);
        let power: f32 = expected.iter().map(|value| value * value).sum();
        let error: f32 = found.iter().zip(&expected).map(|(one, other)| (one - other).powi(2)).sum();
        assert!(error < 0.2 * power, "{policy}: {error} of {power}");
    }
}

#[test]
fn encodes_and_decodes_keep_their_histories_apart() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    let picture = place.write("x.png", part(200, 60, 64, 64));
    encode(&place, &picture, &vae, &["-o", "x.latent"]).succeeded();
    place.decode(&["x.latent", "--vae", &vae], &["-o", "x.png"]).succeeded();
    let list = place.run(&["history", "list", "--json"]).succeeded().stdout();
    let stages: Vec<String> = list
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            record["stage"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(stages, ["decode", "encode"]);
}

#[test]
fn a_second_name_of_a_file_that_was_written_is_refused() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    place.write("x.png", part(200, 60, 64, 64));
    place.write("y.png", part(100, 60, 64, 64));
    // As a name in other letters, where a folder ignores case.
    std::os::unix::fs::symlink("x.latent", place.path("y.latent")).unwrap();
    place.write("x.latent", "old");
    let clash = "y.latent: is written twice by -o: give names that differ; y.png is left; 1 of 2 were encoded";
    place.run(&["encode", "x.png", "y.png", "--vae", &vae, "--device", "cpu"]).failed(2, clash);
    assert_eq!(tensor(&place.path("x.latent"), "latent_tensor").0, [1, 16, 8, 8]);
}

#[test]
fn wrong_arguments_and_files_end_with_two() {
    let [latent, _, vae] = bundled();
    let picture = photograph();
    let alone = fixture("flux-bfl/ae.safetensors");
    let folder = root().join("examples/models").display().to_string();
    let cases: [(&str, &str, &[&str], &str); 14] = [
        ("nowhere.png", &vae, &[], "nowhere.png"),
        (&folder, &vae, &[], "holds no pictures"),
        (&latent, &vae, &[], "unknown input ending"),
        (&picture, "nowhere.safetensors", &[], "nowhere.safetensors"),
        (&picture, &latent, &[], "a latent, not a VAE"),
        (&picture, &alone, &[], "no encoder in it: only the decoder's part is there; give the whole VAE"),
        (&picture, &vae, &["-o", "out.png"], "unknown output ending"),
        (&picture, &vae, &["-o", "missing/out.latent"], "missing"),
        (&picture, &vae, &["-o", "out.latent", "--scaled"], "carries no scaling"),
        (&picture, &vae, &["--memory-limit", "1MiB"], "the least is about"),
        (&picture, &vae, &["--policy", "nobody"], "unknown policy"),
        (&picture, &vae, &["--set", "novalue"], "KEY=VALUE"),
        (&picture, &vae, &["--threads", "0"], "threads"),
        (&picture, &vae, &["--record", "missing/records.jsonl"], "missing"),
    ];
    for (picture, vae, options, words) in cases {
        let place = Place::new();
        encode(&place, picture, vae, options).failed(2, words);
        assert!(place.files().is_empty(), "{options:?} left {:?}", place.files());
    }
}

/// A PNG's header that announces `width` × `height` pixels, and nothing after it.
fn announced(width: u32, height: u32) -> Vec<u8> {
    let chunk = [&b"IHDR"[..], &width.to_be_bytes(), &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let mut sum = u32::MAX;
    for byte in &chunk {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    [&b"\x89PNG\r\n\x1a\n\0\0\0\x0d"[..], &chunk, &(!sum).to_be_bytes()].concat()
}

#[test]
fn pictures_that_cannot_be_encoded_end_with_two() {
    let whole = part(0, 0, 64, 64);
    let cases: [(Vec<u8>, &str); 7] = [
        (Vec::new(), "an empty file (0 bytes): a PNG, JPEG, WebP or GIF is expected"),
        (b"GIF89a\x01\0\x01\0".to_vec(), "can't be read"),
        (whole[..whole.len() / 2].to_vec(), "can't be read"),
        (announced(64, 64), "can't be read"),
        (announced(1 << 20, 1 << 20), " GiB to be read, of at most "),
        (announced(60_000, 60_000), " GiB to be read, of at most "),
        (part(0, 0, 64, 7), "64×7 pixels are less than the 8×8"),
    ];
    for (contents, words) in cases {
        let place = Place::new();
        let [_, _, vae] = bundled();
        place.write("x.png", contents);
        encode::<&str>(&place, "x.png", &vae, &[]).failed(2, words);
        assert_eq!(place.files(), ["x.png"]);
    }
}
