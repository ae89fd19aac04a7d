//! `inspect` says what a file is, and `decode` says the same if it is given the wrong one.

use std::fs;

use serde_json::{Map, Value, json};

use crate::program::{Place, bundled, fixture, one_tensor};

/// A file's header, and the offset of its data in bytes.
fn header(bytes: &[u8]) -> (Map<String, Value>, usize) {
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..end]).unwrap(), end)
}

/// A file of these tensors, of one dtype with `size` bytes a value, each byte the same.
fn filled(tensors: impl IntoIterator<Item = (String, Vec<u64>)>, dtype: &str, size: u64) -> Vec<u8> {
    let (mut entries, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * size;
        entries.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes]}));
        end += bytes;
    }
    let text = Value::from(entries).to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &vec![0x3c; end as usize]].concat()
}

/// The file of a fixture's transformer.
fn transformer(name: &str) -> String {
    let usual = ["diffusion_pytorch_model", "flux1-tiny", "wan-tiny"].map(|file| format!("{name}/{file}.safetensors"));
    let file = usual.iter().map(|file| fixture(file)).find(|path| fs::exists(path).unwrap());
    file.unwrap_or_else(|| panic!("{name} has no transformer"))
}

/// The names and shapes of a fixture's tensors.
fn shapes(name: &str) -> Vec<(String, Vec<u64>)> {
    let (entries, _) = header(&fs::read(fixture(name)).unwrap());
    let shape =
        |entry: &Value| entry["shape"].as_array().unwrap().iter().map(|extent| extent.as_u64().unwrap()).collect();
    entries
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, entry)| (name.clone(), shape(entry)))
        .collect()
}

#[test]
fn weights_of_integers_are_said_and_refused_by_a_dry_run_too() {
    let place = Place::new();
    let file = place.write("i16.safetensors", filled(shapes("flux-bfl/ae.safetensors"), "I16", 2));
    let text = place.run(&["inspect", &file]).succeeded().stdout();
    assert!(text.contains("i16") && text.contains("can't run") && text.contains("give a file in f32, f16"), "{text}");
    let report = place.run(&["inspect", &file, "--json"]).json();
    assert!(!report["decoder"]["uncomputable"].as_array().unwrap().is_empty(), "{report}");
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), file];
    for options in [&["--dry-run"][..], &["-o", "out.png"]] {
        place.decode(&inputs, options).failed(2, "is stored as I16: f64, f32, f16, bf16 and FP8 can be read");
    }
    assert_eq!(place.files(), ["i16.safetensors"]);
}

#[test]
fn a_decoder_or_an_encoder_alone_is_called_so() {
    let place = Place::new();
    let part = |start: &str| {
        shapes("sd15-ldm/vae-ft-mse.safetensors")
            .into_iter()
            .filter(|(name, _)| name.starts_with(start))
            .collect::<Vec<_>>()
    };
    let decoder = place.write("d.safetensors", filled(part("decoder."), "F16", 2));
    let encoder = place.write("e.safetensors", filled(part("encoder."), "F16", 2));
    assert!(place.run(&["inspect", &decoder]).succeeded().stdout().contains("the decoder alone"));
    let text = place.run(&["inspect", &encoder]).succeeded().stdout();
    assert!(text.contains("KL autoencoder (VAE), the encoder alone"), "{text}");
    let latent = fixture("sd15-ldm/latent.safetensors");
    place.decode(&[latent, "--vae".into(), encoder], &["-o", "out.png"]).failed(2, "a VAE's encoder alone");
}

#[test]
fn networks_of_other_kinds_are_named_and_refused_by_name() {
    let place = Place::new();
    let tensors = |names: &[(&str, &[u64])]| {
        names.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect::<Vec<_>>()
    };
    let cases = [
        (tensors(&[("lora_unet_double_blocks_0_img_attn_proj.lora_down.weight", &[4, 8])]), "a LoRA for Flux"),
        (
            tensors(&[
                ("text_model.embeddings.token_embedding.weight", &[2, 768]),
                ("text_model.encoder.layers.0.mlp.fc1.weight", &[2, 2]),
            ]),
            "CLIP-L, a text encoder",
        ),
        (tensors(&[("encoder.block.0.layer.0.SelfAttention.q.weight", &[2, 4096])]), "T5-XXL, a text encoder"),
        (
            tensors(&[("double_blocks.0.img_attn.qkv.weight", &[2, 2]), ("single_blocks.0.linear1.weight", &[2, 2])]),
            "Flux.1's transformer",
        ),
        (
            tensors(&[("blocks.0.cross_attn.norm_k.weight", &[2]), ("blocks.0.self_attn.norm_k.weight", &[2])]),
            "WAN's transformer",
        ),
        (
            tensors(&[
                ("controlnet_cond_embedding.conv_in.weight", &[2, 2]),
                ("down_blocks.0.resnets.0.time_emb_proj.weight", &[2]),
            ]),
            "a ControlNet (diffusers)",
        ),
        (
            tensors(&[("decoder.layers.1.weight", &[2, 2]), ("encoder.layers.1.weight", &[2, 2])]),
            "TAESD, a tiny autoencoder",
        ),
    ];
    for (tensors, words) in cases {
        let file = place.write("x.safetensors", filled(tensors, "F16", 2));
        let text = place.run(&["inspect", &file]).succeeded().stdout();
        let expected = match words.contains("transformer") || words.contains("LoRA") {
            true => "can't run",
            false => "neither a latent nor a VAE",
        };
        assert!(text.contains(words) && text.contains(expected), "{words}: {text}");
        let [latent, option, _] = bundled();
        let run = place.decode(&[latent, option, file], &["-o", "out.png"]);
        run.failed(2, if words.contains("tiny") { "a tiny autoencoder" } else { words });
    }
}

#[test]
fn transformers_are_described_with_the_command_that_takes_them() {
    let place = Place::new();
    let cases: [(&str, &[&str]); 5] = [
        ("sample-flux-diffusers", &["Flux.1 with guidance", "2 double and 2 single blocks", " diffusers\n"]),
        ("sample-flux-original-schnell", &["Flux.1 without guidance", " original"]),
        ("sample-wan-t2v-original", &["text to video (T2V)", "a VAE of the family wan-2.1"]),
        ("sample-wan-i2v-diffusers", &["WAN 2.1, image to video (I2V)"]),
        ("sample-ti2v-original", &["TI2V", "a VAE of the family wan-2.2"]),
    ];
    for (name, words) in cases {
        let text = place.run(&["inspect", &transformer(name)]).succeeded().stdout();
        for words in words.iter().chain(&["transformer: ", "tilewright sample --transformer"]) {
            assert!(text.contains(words), "{name} lacks {words:?}: {text}");
        }
        let report = place.run(&["inspect", &transformer(name), "--json"]).json();
        assert_eq!((&report["kind"], &report["format"]), (&json!("transformer"), &json!("safetensors")));
        assert_eq!(report["transformer"]["problem"], json!(null));
    }
    let text = place.run(&["inspect", &fixture("lora/flux-kohya-clip.safetensors")]).succeeded().stdout();
    for words in ["a LoRA for Flux", "2 layers of rank", "6 keys of text encoders", "--lora FILE:STRENGTH"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = place.run(&["inspect", &fixture("lora/refuse-dora.safetensors")]).succeeded().stdout();
    assert!(text.contains("a LoRA for Flux") && text.contains("DoRA (dora_scale), which is not supported"), "{text}");
    let conditioning = fixture("sample-flux-diffusers/conditioning.safetensors");
    let text = place.run(&["inspect", &conditioning]).succeeded().stdout();
    assert!(text.contains("conditioning: what text encoders hand"), "{text}");
}

#[test]
fn a_folder_is_described_part_by_part_and_its_vae_decodes() {
    let place = Place::new();
    fs::create_dir_all(place.path("pipe/vae")).unwrap();
    fs::create_dir_all(place.path("pipe/tokenizer")).unwrap();
    place.write("pipe/model_index.json", b"{}");
    place.write("pipe/tokenizer/merges.txt", b"");
    fs::copy(fixture("flux-bfl/ae.safetensors"), place.path("pipe/vae/model.safetensors")).unwrap();
    let text = place.run(&["inspect", "pipe"]).succeeded().stdout();
    assert!(text.contains("pipe/vae/model.safetensors") && text.contains("KL autoencoder"), "{text}");
    for folder in ["pipe", "pipe/vae"] {
        let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), folder.into()];
        place.decode(&inputs, &["-o", "out.png"]).succeeded();
    }
    fs::remove_dir_all(place.path("pipe/vae")).unwrap();
    place.run(&["inspect", "pipe"]).failed(2, "holds no model's file");
}

#[test]
fn what_tilewright_wrote_is_known_again_several_files_at_once() {
    let place = Place::new();
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
    place.decode(&inputs, &["--record", "r.jsonl", "-o", "out.png"]).succeeded();
    let [latent, ..] = bundled();
    let text = place.run(&["inspect", "out.png", "r.jsonl", &latent]).succeeded().stdout();
    for words in [
        "a PNG picture",
        "decided",
        "by adaptive",
        "decision record",
        "1, 0 of them full",
        "latent_tensor [1, 16, 64, 64]",
    ] {
        assert!(text.contains(words), "{text} lacks {words}");
    }
    let reports = place.run(&["inspect", "out.png", "r.jsonl", "--json"]).json();
    assert_eq!(reports[0]["decision"]["policy"]["name"], "adaptive");
    assert_eq!((&reports[1]["kind"], &reports[1]["records"]), (&json!("records"), &json!(1)));
    // A file that can't be read does not hide the others.
    let run = place.run(&["inspect", "nowhere", "out.png"]);
    assert!(run.stdout().contains("a PNG picture"));
    run.failed(2, "nowhere");
}

#[test]
fn every_picture_that_tilewright_wrote_shows_its_workflow_and_decision() {
    let place = Place::new();
    let values: Vec<u8> = (0..16 * 8 * 8).flat_map(|index| (index as f32 * 0.001).to_le_bytes()).collect();
    let entry = json!({"dtype": "F32", "shape": [1, 16, 8, 8], "data_offsets": [0, values.len()]});
    let text = json!({"__metadata__": {"workflow": "{\"nodes\":[]}"}, "latents": entry}).to_string();
    let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &values].concat();
    let inputs = [place.write("w.safetensors", file), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
    for name in ["w.png", "w.jpg", "w.webp"] {
        place.decode(&inputs, &["-o", name]).succeeded();
        let text = place.run(&["inspect", name]).succeeded().stdout();
        assert!(text.contains("workflow, ") && text.contains("by adaptive"), "{name}: {text}");
        assert_eq!(place.run(&["inspect", name, "--json"]).json()["decision"]["policy"]["name"], "adaptive");
    }
}

#[test]
fn raw_frames_are_no_latent_and_what_cannot_be_decoded_is_said() {
    let place = Place::new();
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
    place.decode(&inputs, &["-o", "raw.safetensors"]).succeeded();
    let text = place.run(&["inspect", "raw.safetensors"]).succeeded().stdout();
    assert!(text.contains("pixels: raw frames") && !text.contains("latent"), "{text}");
    assert_eq!(place.run(&["inspect", "raw.safetensors", "--json"]).json()["kind"], "pixels");
    let cases: [(&str, u64, &[u64], &str); 4] = [
        ("I16", 2, &[1, 16, 8, 8], "is stored as I16"),
        ("I64", 8, &[1, 16, 8, 8], "is stored as I64"),
        ("BOOL", 1, &[1, 16, 8, 8], "is stored as BOOL"),
        ("F32", 4, &[1, 16, 0, 8], "nothing to decode"),
    ];
    for (dtype, size, shape, words) in cases {
        let file = place.write("x.safetensors", filled([("latents".to_owned(), shape.to_vec())], dtype, size));
        let text = place.run(&["inspect", &file]).succeeded().stdout();
        assert!(text.contains("can't decode") && text.contains(words), "{dtype}: {text}");
        assert!(place.run(&["inspect", &file, "--json"]).json()["undecodable"].as_str().unwrap().contains(words));
    }
    let text = place.run(&["inspect", &inputs[0]]).succeeded().stdout();
    assert!(!text.contains("can't decode"), "{text}");
}

#[test]
fn a_grey_picture_with_very_many_texts_takes_few_lines() {
    let place = Place::new();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
    encoder.set_color(png::ColorType::Grayscale);
    for number in 0..1000 {
        encoder.add_text_chunk(format!("key {number}"), "text".into()).unwrap();
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[1]).unwrap();
    writer.finish().unwrap();
    let text = place.run(&["inspect", &place.write("a.png", bytes)]).succeeded().stdout();
    assert!(text.contains("and 936 more") && text.lines().count() < 80, "{text}");
    assert!(text.contains("1×1, 1 channel") && !text.contains("channels"), "{text}");
}

#[test]
fn an_output_is_never_the_program_that_runs() {
    let place = Place::new();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tilewright"), place.path("out.png")).unwrap();
    place.decode(&bundled(), &["--dry-run", "-o", "out.png"]).failed(2, "is the running program, which is read");
}

#[test]
fn odd_files_are_recognised_wherever_they_are_given() {
    let cases: [(&[u8], &str); 8] = [
        (b"<!DOCTYPE html><html>", "a web page (HTML)"),
        (b"{\"error\": \"gated\"}", "JSON, not a safetensors file"),
        (b"{\"weight_map\": {}}", "the index of a model in several files"),
        (b"PK\x03\x04 of holiday pictures", "a zip archive"),
        (b"\x1f\x8b\x08\0", "packed with gzip"),
        (b"GGUF\x03\0\0\0", "GGUF file"),
        (b"\0asm\x0d\0\x01\0", "WebAssembly, perhaps a policy"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ];
    for (bytes, words) in cases {
        let place = Place::new();
        let file = place.write("odd", bytes);
        place.run(&["inspect", &file]).failed(2, words);
        let [latent, option, vae] = bundled();
        place.decode(&[file.clone(), option.clone(), vae], &["-o", "out.png"]).failed(2, words);
        place.decode(&[latent, option, file], &["-o", "out.png"]).failed(2, words);
    }
}

#[test]
fn a_latent_that_makes_no_sense_for_the_model_gets_advice() {
    let place = Place::new();
    let values = |scale: f32| {
        // Spread evenly within the deviation: no two neighbours are alike.
        let value = |index: usize| ((index * 7919 % 997) as f32 / 997.0 - 0.5) * 3.46 * scale;
        let data: Vec<u8> = (0..16 * 9 * 13).flat_map(|index| value(index).to_le_bytes()).collect();
        one_tensor("latents", "F32", &[1, 16, 9, 13], &data)
    };
    let vae = fixture("flux-bfl/ae.safetensors");
    let cases: [(f32, &[&str], Option<&str>); 4] = [
        (1.0, &[], Some("try --scaled")),
        (1.0, &["--scaled"], None),
        (2.77, &[], None),
        (2.77, &["--scaled"], Some("leave --scaled out")),
    ];
    for (scale, options, words) in cases {
        let file = place.write("x.safetensors", values(scale));
        let options = [options, &["--dry-run"]].concat();
        let run = place.decode(&[file, "--vae".into(), vae.clone()], &options);
        let stderr = run.succeeded().stderr();
        let warnings: Vec<&str> = stderr.lines().filter(|line| line.starts_with("warning: x.safetensors")).collect();
        match words {
            None => assert!(warnings.is_empty(), "{stderr}"),
            Some(words) => assert!(warnings.len() == 1 && warnings[0].contains(words), "{stderr}"),
        }
    }
    // The bundled latent raises no doubt.
    let stderr = place.decode(&bundled(), &["--dry-run"]).succeeded().stderr();
    assert!(!stderr.contains("warning: "), "{stderr}");
}
