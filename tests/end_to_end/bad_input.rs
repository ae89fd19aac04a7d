//! Wrong arguments and hostile files: one clear line, the right exit status, and no file left
//! behind.

use std::fs;

use crate::program::{Place, bundled, fixture, latent, one_tensor, root};

#[test]
fn wrong_arguments_end_with_two() {
    let cases: [(&[&str], &str); 15] = [
        (&["--memory-limit", "lots"], "is not a size"),
        (&["--memory-limit", "0"], "is not a size"),
        (&["--memory-limit", "-4GiB"], ""),
        (&["--memory-limit", "1MiB"], "the least is about"),
        (&["--policy", "nobody"], "unknown policy"),
        (&["--policy", "fixed", "--set", "colour=red"], "colour"),
        (&["--policy", "fixed", "--set", "space=blended", "--set", "tile=0"], "tile"),
        (&["--policy", "fixed", "--set", "space=blended", "--set", "tile=256", "--set", "overlap=-8"], "overlap"),
        (&["--policy", "fixed", "--set", "space=blended", "--set", "tile=256", "--set", "overlap=256"], "overlap"),
        (&["--set", "novalue"], "KEY=VALUE"),
        (&["-o", "out.bmp"], "ending"),
        (&["-o", "missing/out.png"], "missing"),
        (&["--device", "cuda:7"], "cuda:7"),
        (&["--threads", "0"], "threads"),
        (&["--tensor", "nothing"], "nothing"),
    ];
    for (options, words) in cases {
        let place = Place::new();
        let run = if options.contains(&"--device") {
            place.run(
                &[&["decode".to_owned()], &bundled()[..], &options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>()]
                    .concat(),
            )
        } else {
            place.decode(&bundled(), options)
        };
        run.failed(2, words);
        assert!(place.files().is_empty(), "{options:?} left {:?}", place.files());
    }
}

#[test]
fn latents_that_cannot_be_decoded_end_with_two() {
    let infinite = latent(&[1, 16, 8, 8], f32::INFINITY);
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &[0; 12]].concat();
    let overlapping = header(
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
    );
    let cases: [(Vec<u8>, &str); 14] = [
        (vec![], "0 bytes"),
        (overlapping, "overlap"),
        (b"hello".to_vec(), "a text, not a safetensors file: give the safetensors file: it begins with 'hello'"),
        (latent(&[1, 16, 8, 8], 0.5)[..300].to_vec(), "truncated"),
        ([&[0xff_u8; 8][..], b"{}"].concat(), "files have at most"),
        (latent(&[1, 4, 8, 8], 0.5), "4 channels"),
        (latent(&[16, 8, 8], 0.5), "[N, C, H, W]"),
        (latent(&[1, 16, 0, 8], 0.5), "nothing to decode"),
        (latent(&[1, 16, 5, 8, 8], 0.5), "5 frames"),
        (latent(&[1, 16, 8, 8], f32::NAN), "NaN"),
        (infinite, "infinite"),
        (one_tensor("latents", "I64", &[1, 16, 1, 1], &[0; 128]), "I64"),
        (one_tensor("latents", "F32", &[1 << 40, 1 << 40, 1 << 40, 1], &[0; 16]), "larger than any memory"),
        (b"PK\x03\x04 a pickle in a zip archive: data.pkl".to_vec(), "a zip archive without the directory at its end"),
    ];
    for (contents, words) in cases {
        let place = Place::new();
        let file = place.write("x.latent", contents);
        let [_, vae, path] = bundled();
        place.decode(&[file, vae, path], &["-o", "out.png"]).failed(2, words);
        assert_eq!(place.files(), ["x.latent"]);
    }
}

#[test]
fn latents_that_are_no_files_end_with_two() {
    let [_, vae, path] = bundled();
    for (latent, words) in [("nowhere.latent", "nowhere.latent"), (".", "a folder")] {
        let place = Place::new();
        place.decode(&[latent, &vae, &path], &["-o", "out.png"]).failed(2, words);
        assert!(place.files().is_empty());
    }
}

#[test]
fn files_that_are_no_vae_end_with_two() {
    let place = Place::new();
    let [latent, vae, _] = bundled();
    let with = |file: &str, words: &str| {
        place.decode(&[latent.clone(), vae.clone(), file.to_owned()], &["-o", "out.png"]).failed(2, words);
        assert!(!place.path("out.png").exists());
    };
    with("nowhere.safetensors", "nowhere.safetensors");
    with(&root().join("examples").display().to_string(), "a folder without a file of weights");
    with(&latent.clone(), "a latent, not a VAE");
    with(&fixture("README.md"), "safetensors");
}

/// The fixture's file with its header changed.
fn changed(name: &str, change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let bytes = fs::read(fixture(name)).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat()
}

#[test]
fn a_wrong_tensor_is_named_with_the_shape_expected() {
    const NAME: &str = "decoder.up.0.block.0.conv1.weight";
    let renamed = changed("flux-bfl/ae.safetensors", |header| {
        let taken = header.as_object_mut().unwrap().remove(NAME).unwrap();
        header["unrelated.weight"] = taken;
    });
    let reshaped = changed("flux-bfl/ae.safetensors", |header| {
        let shape = header[NAME]["shape"].as_array_mut().unwrap();
        let merged = shape[0].as_u64().unwrap() * shape[1].as_u64().unwrap();
        *shape = vec![merged.into(), 1.into(), shape[2].clone(), shape[3].clone()];
    });
    let retyped = changed("flux-bfl/ae.safetensors", |header| header[NAME]["dtype"] = "I16".into());
    let added = changed("flux-bfl/ae.safetensors", |header| {
        let taken = header.as_object_mut().unwrap().remove(NAME).unwrap();
        header["decoder.surprise.weight"] = taken;
    });
    let expected = "[32, 64, 3, 3] expected";
    for (contents, words) in
        [(renamed, "missing"), (reshaped, expected), (retyped, "I16"), (added, "decoder.surprise.weight")]
    {
        let place = Place::new();
        let file = place.write("ae.safetensors", contents);
        let run = place.decode(&[fixture("flux-bfl/latent.safetensors"), "--vae".into(), file], &["-o", "out.png"]);
        run.failed(2, words);
        if words != "decoder.surprise.weight" {
            run.failed(2, NAME);
        }
        assert_eq!(place.files(), ["ae.safetensors"]);
    }
}

#[test]
fn a_policy_file_that_is_no_policy_ends_with_two() {
    let outside = wat::parse_str(r#"(component (import "wasi:clocks/wall-clock@0.2.0" (instance)))"#).unwrap();
    let cases: [(&[u8], &str); 4] = [
        (b"", "not WebAssembly"),
        (b"#!/bin/sh\n", "not WebAssembly"),
        (b"\0asm\x01\0\0\0", ""),
        (&outside, "wasi:clocks"),
    ];
    for (contents, words) in cases {
        let place = Place::new();
        let file = place.write("p.wasm", contents);
        place.decode(&bundled(), &["--policy", &file, "-o", "out.png"]).failed(2, words);
        assert_eq!(place.files(), ["p.wasm"]);
    }
}
