//! The formats of pictures: the texts that they keep, bits and quality.

use std::{collections::BTreeMap, fs};

use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde_json::Value;

use crate::{
    outputs::{PROMPT, WORKFLOW, decode, png, small, vae},
    program::{Place, texts},
};

/// The ASCII entries of a little-endian EXIF directory, by tag; parsed here as TIFF 6.0 specifies.
fn exif(directory: &[u8]) -> BTreeMap<u16, String> {
    assert_eq!(directory[..4], *b"II*\0");
    let short = |at: usize| u16::from_le_bytes(directory[at..at + 2].try_into().unwrap());
    let long = |at: usize| u32::from_le_bytes(directory[at..at + 4].try_into().unwrap()) as usize;
    let start = long(4);
    let entry = |number: usize| {
        let at = start + 2 + number * 12;
        assert_eq!(short(at + 2), 2, "ASCII");
        let value = &directory[long(at + 8)..][..long(at + 4)];
        assert_eq!(value.last(), Some(&0));
        (short(at), String::from_utf8(value[..value.len() - 1].to_vec()).unwrap())
    };
    (0..short(start) as usize).map(entry).collect()
}

/// The contents of a file's first chunk of this name, in RIFF.
fn riff_chunk(bytes: &[u8], name: &[u8; 4]) -> Vec<u8> {
    let mut rest = &bytes[12..];
    loop {
        let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        if rest[..4] == *name {
            return rest[8..8 + length].to_vec();
        }
        rest = &rest[8 + length.next_multiple_of(2)..];
    }
}

/// The EXIF of a JPEG.
fn jpeg_exif(bytes: &[u8]) -> Vec<u8> {
    let mut rest = &bytes[2..];
    loop {
        let length = u16::from_be_bytes(rest[2..4].try_into().unwrap()) as usize;
        if rest[1] == 0xe1 {
            return rest[4..2 + length].strip_prefix(b"Exif\0\0").unwrap().to_vec();
        }
        rest = &rest[2 + length..];
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn every_format_keeps_the_workflow_or_says_that_it_does_not() {
    let place = Place::new();
    place.write("a.latent", small());
    for name in ["a.webp", "a.jpg", "a.safetensors", "a.png"] {
        let run = decode(&place, &["a.latent"], &["-o", name]);
        run.succeeded();
        assert!(!run.stderr().contains("note"), "{name}: {}", run.stderr());
    }
    for directory in [
        riff_chunk(&fs::read(place.path("a.webp")).unwrap(), b"EXIF"),
        jpeg_exif(&fs::read(place.path("a.jpg")).unwrap()),
    ] {
        // As ComfyUI writes them: the workflow in Make, the prompt in Model.
        let found = exif(&directory);
        assert_eq!(json(found[&0x010f].strip_prefix("workflow:").unwrap()), json(WORKFLOW));
        assert_eq!(json(found[&0x0110].strip_prefix("prompt:").unwrap()), json(PROMPT));
        assert!(found.values().any(|text| text.starts_with("tilewright:{")), "{found:?}");
    }
    let raw = fs::read(place.path("a.safetensors")).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&raw).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    assert_eq!((metadata["workflow"].as_str(), metadata["prompt"].as_str()), (WORKFLOW, PROMPT));

    // From each of them, encode passes both texts on to the latent.
    for name in ["a.webp", "a.jpg", "a.safetensors", "a.png"] {
        let arguments = ["encode", name, "--vae", &vae(), "--device", "cpu", "--no-history", "-o", "back.latent"];
        place.run(&arguments).succeeded();
        let bytes = fs::read(place.path("back.latent")).unwrap();
        let metadata = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
        assert_eq!((json(&metadata["workflow"]), json(&metadata["prompt"])), (json(WORKFLOW), json(PROMPT)), "{name}");
        let record = json(&metadata["tilewright"]);
        assert!(record["stage"] == "encode", "its own record: {record}");
    }
}

#[test]
fn a_workflow_too_large_for_a_jpeg_is_told_of() {
    let place = Place::new();
    let values = [0; 4096];
    let workflow = format!("{{\"x\":\"{}\"}}", "y".repeat(70_000));
    let tensors = [("latent_tensor", TensorView::new(Dtype::F32, vec![1, 16, 8, 8], &values).unwrap())];
    let texts = [("workflow".to_owned(), workflow.clone()), ("prompt".to_owned(), PROMPT.to_owned())];
    let bytes = safetensors::serialize(tensors, Some(texts.into_iter().collect())).unwrap();
    place.write("a.latent", bytes);
    let run = decode(&place, &["a.latent"], &["-o", "a.jpg"]);
    run.succeeded();
    assert!(run.stderr().contains("note: a.jpg is written without workflow: a JPEG has room"), "{}", run.stderr());
    let found = exif(&jpeg_exif(&fs::read(place.path("a.jpg")).unwrap()));
    assert!(!found.contains_key(&0x010f) && found.contains_key(&0x0110));
    assert_eq!(image::open(place.path("a.jpg")).unwrap().width(), 64);
    let run = decode(&place, &["a.latent"], &["-o", "a.webp"]);
    assert!(!run.stderr().contains("note"), "{}", run.stderr());
    let found = exif(&riff_chunk(&fs::read(place.path("a.webp")).unwrap(), b"EXIF"));
    assert_eq!(found[&0x010f], format!("workflow:{workflow}"));
}

#[test]
fn bits_and_quality_are_as_asked() {
    let place = Place::new();
    place.write("a.latent", small());
    decode(&place, &["a.latent"], &["-o", "deep.png", "--bits", "16"]).succeeded();
    decode(&place, &["a.latent"], &["-o", "raw.safetensors"]).succeeded();
    let mut reader = png(&place.path("deep.png"));
    assert_eq!(reader.info().bit_depth, png::BitDepth::Sixteen);
    assert_eq!(reader.info().srgb, Some(png::SrgbRenderingIntent::Perceptual));
    assert_eq!(json(&texts(&place.path("deep.png"))["workflow"]), json(WORKFLOW));
    let mut found = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut found).unwrap();
    let (shape, values) = place.sample("raw.safetensors");
    let plane = shape[2] * shape[3];
    for (place, pair) in found.chunks_exact(2).enumerate() {
        let value = f64::from(values[place % 3 * plane + place / 3]);
        let expected = ((value + 1.0) / 2.0 * 65_535.0).round_ties_even().clamp(0.0, 65_535.0);
        assert_eq!(f64::from(u16::from_be_bytes([pair[0], pair[1]])), expected);
    }
    let length = |quality: &str| {
        decode(&place, &["a.latent"], &["-o", "q.jpg", "--quality", quality]).succeeded();
        fs::metadata(place.path("q.jpg")).unwrap().len()
    };
    assert!(length("10") < length("100"));
    for (options, words) in [
        (&["-o", "a.jpg", "--bits", "16"][..], "--bits 16 is for .png"),
        (&["-o", "a.png", "--quality", "50"], "--quality is for .jpg"),
        (&["-o", "a.jpg", "--quality", "0"], "--quality"),
        (&["-o", "a.jpg", "--bits", "12"], "expected 8 or 16"),
    ] {
        decode(&place, &["a.latent"], options).failed(2, words);
    }
}
