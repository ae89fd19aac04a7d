//! From a prompt to a picture or clip: agreement with diffusers' pipelines, conditionings that are
//! kept, what is refused.

#[path = "generate/agreement.rs"]
mod agreement;
#[path = "generate/description.rs"]
mod description;
#[path = "generate/likeness.rs"]
mod likeness;
#[path = "generate/memory.rs"]
mod memory;
#[path = "generate/resuming.rs"]
mod resuming;

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    encode::tensor,
    program::{Place, fixture, largest_difference, root, texts},
};

fn cases(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(fixture(&format!("{name}/cases.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A tensor of what diffusers made of a case.
fn expected(name: &str, index: usize, what: &str) -> Vec<f32> {
    tensor(fixture(&format!("{name}/expected.safetensors")).as_ref(), &format!("{index}.{what}")).1
}

/// The arguments that ask for a case.
fn arguments(name: &str, case: &Value) -> Vec<String> {
    let number = |key: &str| case[key].to_string();
    let mut arguments = vec!["generate".to_owned(), case["prompt"].as_str().unwrap().to_owned()];
    let size = format!("{}x{}", case["width"], case["height"]);
    arguments.extend(["--model", &fixture(name), "--size", &size, "--device", "cpu"].map(str::to_owned));
    arguments.extend(["--as", "diffusers", "--steps", &number("num_inference_steps")].map(str::to_owned));
    arguments.extend(["--seed", &number("seed"), "--set", "precision=f32"].map(str::to_owned));
    match case["negative"].as_str() {
        Some(negative) => arguments.extend(
            ["--negative", negative, "--cfg", &number("guidance_scale"), "--frames", &number("num_frames")]
                .map(str::to_owned),
        ),
        None => arguments.extend(["--guidance", &number("guidance_scale")].map(str::to_owned)),
    }
    let picture = fixture(&format!("{name}/picture.png"));
    if Path::new(&picture).is_file() {
        arguments.extend(["--image".to_owned(), picture]);
    }
    arguments
}

/// A LoRA for the fixture's transformer, 32 wide.
pub fn lora(value: f32) -> Vec<u8> {
    let name = |part: &str| format!("transformer.transformer_blocks.0.attn.to_q.lora_{part}.weight");
    let (down, up) = (value.to_le_bytes().repeat(2 * 32), value.to_le_bytes().repeat(32 * 2));
    let view = |shape: [usize; 2], data| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap()
    };
    let tensors = [(name("A"), view([2, 32], &down)), (name("B"), view([32, 2], &up))];
    safetensors::serialize(tensors, None).unwrap()
}

/// A prompt that no earlier run had: tests share a cache.
pub fn fresh_prompt() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("a cat {}", now.as_nanos())
}

/// The stages of a report, by name.
fn stages<'a>(report: &'a Value, name: &str) -> Vec<&'a Value> {
    report["stages"].as_array().unwrap().iter().filter(|stage| stage["stage"] == name).collect()
}

fn with(base: &[String], more: &[&str]) -> Vec<String> {
    base.iter().cloned().chain(more.iter().map(|&word| word.to_owned())).collect()
}

#[test]
fn the_bundled_model_makes_a_clip_that_moves_as_it_is_told() {
    let place = Place::new();
    for (prompt, way) in [("a blue square moving right", 1.0), ("a blue square moving to the left on white", -1.0)] {
        let run =
            place.run(&["generate", prompt, "--model", "wan-shapes", "-o", "clip/", "--seed", "1", "--json"]).json();
        assert_eq!(stages(&run, "decode").len(), 1);
        // The mean place of what is blue.
        let across = |frame: &str| {
            let pixels = image::open(place.path("clip").join(frame)).unwrap().into_rgb8();
            let is_blue = |pixel: &image::Rgb<u8>| pixel[2] > 150 && pixel[0] < 120;
            let blue = pixels.enumerate_pixels().filter(|(.., pixel)| is_blue(pixel)).map(|(x, ..)| f64::from(x));
            let (count, sum) = blue.fold((0.0, 0.0), |(count, sum), x| (count + 1.0, sum + x));
            assert!(count > 100.0, "{prompt} {frame}: {count}");
            sum / count
        };
        let moved = way * (across("frame-000017.png") - across("frame-000001.png"));
        assert!(moved > 15.0, "{prompt}: {moved}");
        fs::remove_dir_all(place.path("clip")).unwrap();
    }
}

#[test]
fn encoders_are_decided_by_a_policy_and_replayed() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let words = ["embed", "a cat", "--text-encoder", &model, "--device", "cpu", "-o", "out.safetensors"];
    let with = |more: &[&str]| place.run(&[&words[..], more].concat());
    let report = with(&["--json", "--policy", "text=fixed", "--set", "text.precision=mixed-bf16"]).json();
    let plan = &report["encoders"][1]["plan"];
    assert_eq!((&plan["precision"]["kind"], &plan["place"]), (&"mixed".into(), &"host".into()));
    // A policy that leaves encoders to the host is no failure.
    let report = with(&["--json", "--policy", "gfx1151"]).json();
    assert_eq!(report["encoders"][0]["fallback"]["reason"], "not-answered");
    let explained = with(&["--explain"]);
    explained.succeeded();
    assert!(explained.stdout().contains("adaptive considered") && explained.stdout().contains("→"));
    with(&["--record", "records.jsonl", "--record", "full"]).succeeded();
    let records = fs::read_to_string(place.path("records.jsonl")).unwrap();
    let schema = fs::read_to_string(root().join("host/plan/text-record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    for line in records.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        assert!(schema.is_valid(&record), "{line}");
        assert_eq!(record["exchange"]["calls"].as_array().unwrap().len(), 2, "decide and learn");
    }
    let replayed = place.run(&["policy", "replay", "records.jsonl"]);
    replayed.succeeded();
    assert!(replayed.stdout().contains("4 equal"), "{}", replayed.stdout());
    with(&["--policy", "denoise=fixed"]).failed(2, "no denoise stage");
    with(&["--set", "precision=i4"]).failed(2, "precision=i4");
}

#[test]
fn stages_have_policies_and_settings_of_their_own() {
    let place = Place::new();
    let base = arguments("generate-flux", &cases("generate-flux")[0]);
    let words = ["--policy", "denoise=fixed", "--set", "denoise.feed-forward=2", "--set", "decode.precision=f32"];
    let run = place.run(&with(&base, &[&words[..], &["--json", "-o", "out.png"]].concat())).json();
    let denoise = stages(&run, "denoise")[0];
    assert_eq!((&denoise["policy"]["name"], &denoise["plan"]["feed_forward"]), (&"fixed".into(), &2.into()));
    assert_eq!(stages(&run, "decode")[0]["policy"]["name"], "adaptive");
    let fixed = with(&base, &["--policy", "fixed", "--json", "-o", "other.png"]);
    let run = place.run(&fixed).json();
    let name = |stage: &str| stages(&run, stage)[0]["policy"]["name"].as_str().unwrap().to_owned();
    assert_eq!([name("denoise"), name("decode")], ["fixed", "fixed"]);
    let mut anew = with(&base, &["--policy", "text=fixed", "--set", "text.weights=expanded", "--json", "-o", "3.png"]);
    anew[1] = fresh_prompt();
    let run = place.run(&anew).json();
    for text in stages(&run, "text") {
        assert_eq!((&text["policy"]["name"], &text["plan"]["weights"]), (&"fixed".into(), &"expanded".into()));
    }
    place.run(&with(&base, &["--set", "text.tyle=3", "-o", "no.png"])).failed(2, "no setting 'tyle'");
    assert!(!place.path("no.png").exists());
}

#[test]
fn a_dry_run_says_what_each_stage_would_take() {
    let place = Place::new();
    let mut base = arguments("generate-flux", &cases("generate-flux")[0]);
    base[1] = fresh_prompt();
    let run = place.run(&with(&base, &["--dry-run", "-o", "out.png"]));
    run.succeeded();
    let text = run.stdout();
    for words in ["CLIP", "T5", "denoise", "3 steps", "decode"] {
        assert!(text.contains(words), "{text}");
    }
    let tight = place.run(&with(&base, &["--dry-run", "-o", "out.png", "--memory-limit", "100KiB"]));
    assert!(tight.stdout().contains("over the limit") || !tight.stderr().is_empty(), "{}", tight.stdout());
    assert_eq!(place.files().iter().filter(|name| name.contains("out")).count(), 0, "{:?}", place.files());
}

#[test]
fn what_is_missing_or_of_another_kind_is_said() {
    let place = Place::new();
    let flux = fixture("generate-flux");
    let part = |name: &str| format!("{flux}/{name}");
    let of = |words: &[&str]| place.run(&[&["generate", "a cat", "-o", "out.png", "--device", "cpu"], words].concat());
    for file in ["config.json", "diffusion_pytorch_model.safetensors"] {
        fs::copy(part(&format!("transformer/{file}")), place.path(file)).unwrap();
    }
    let alone = ["--transformer", "diffusion_pytorch_model.safetensors"];
    of(&alone)
        .failed(2, "needs a CLIP text encoder of width 32, and no file that was found is one: give --text-encoder");
    let encoders = ["--text-encoder", &part("text_encoder"), "--text-encoder", &part("text_encoder_2")];
    of(&[&alone, &encoders[..]].concat()).failed(2, "needs a VAE of pictures with 4 channels");
    of(&["--model", &part("tokenizer")]).failed(2, "a folder without a transformer that can be run");
    of(&["--model", "nowhere"]).failed(2, "nowhere: no such file, and no model of that name");
    of(&["--model", &flux, "--text-encoder", &part("text_encoder"), "--size", "32x32"])
        .failed(2, "conditioned by CLIP and T5, and CLIP is given");
    of(&["--model", &flux, "--text-encoder", &part("transformer")]).failed(2, "not a text encoder that can be run");
    of(&["--model", &flux, "--vae", &part("transformer")]).failed(2, "");
    let wan = fixture("generate-wan");
    of(&["--model", &flux, "--vae", &format!("{wan}/vae"), "--size", "32x32"]).failed(2, "");
    of(&["--model", &flux, "--fps", "12", "--size", "32x32"]).failed(2, "--fps is for clips");
    of(&["--model", &flux, "--size", "33x32"]).failed(2, "");
    // Encoders don't run for what is refused anyway.
    for (words, why) in
        [(["--frames", "9"], "this format holds one frame, the clip has 9"), (["--guidance", "3"], "takes no guidance")]
    {
        let run = of(&[&["--model", &wan, "--size", "32x32"], &words[..]].concat());
        run.failed(2, why);
        assert!(!run.stderr().contains("text: "), "{}", run.stderr());
    }
    assert!(!place.path("out.png").exists());
}

#[test]
fn prompts_of_every_sort_are_read() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let long = "a red circle, ".repeat(200);
    for prompt in ["", "   ", "((a:1.2)", "a\u{0}b\u{1b}[31m".trim_start_matches('\u{0}'), "猫 🐈", &long] {
        if prompt.contains('\u{0}') {
            continue;
        }
        let words = ["embed", "--text-encoder", &model, "--device", "cpu", "-o", "out.safetensors", "--json", "--"];
        let report = place.run(&[&words[..], &[prompt]].concat()).json();
        assert!(report["shape"][1].as_i64().unwrap() >= 256, "{report}");
    }
    for (words, why) in [
        (vec!["embed", "-", "-", "--text-encoder", &model, "-o", "x.safetensors"], "one prompt"),
        (vec!["embed", "a", "--text-encoder", &model, "-o", "x.latent"], "written to .safetensors"),
        (vec!["embed", "a", "--text-encoder", &model, "-o", "x.safetensors", "--set", "tile=3"], "no setting 'tile'"),
        (
            vec!["embed", "a", "--text-encoder", &model, "-o", "x.safetensors", "--memory-limit", "1KiB"],
            "too little for CLIP",
        ),
        (
            vec!["embed", "a", "--text-encoder", &model, "-o", "x.safetensors", "--embeddings", "none"],
            "no folder of embeddings",
        ),
    ] {
        place.run(&words).failed(2, why);
    }
    let words = ["embed", "a", &long, "--text-encoder", &model, "--device", "cpu", "-o", "two.safetensors"];
    place.run(&words).failed(2, "no conditioning of one shape");
    assert!(!place.path("two.safetensors").exists());
}

#[test]
fn a_picture_to_begin_with_is_made_anew_where_the_mask_is_white() {
    let place = Place::new();
    let (model, picture) = (fixture("generate-flux"), fixture("text-clip-vision/64x64.png"));
    image::GrayImage::from_fn(64, 64, |x, _| image::Luma([if x < 32 { 255 } else { 0 }]))
        .save(place.path("mask.png"))
        .unwrap();
    let words = ["generate", "a blue cat", "--model", &model, "--image", &picture, "--denoise", "0.6", "--steps", "4"];
    let words = [&words[..], &["--seed", "3", "--device", "cpu", "--set", "precision=f32", "--json"]].concat();
    let masked = ["--mask", "mask.png", "-o", "out.png", "--keep", "kept.safetensors"];
    let report = place.run(&[&words[..], &masked].concat()).json();
    let stages: Vec<&str> =
        report["stages"].as_array().unwrap().iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert_eq!(stages[stages.len() - 3..], ["encode", "denoise", "decode"]);
    assert!(stages[..stages.len() - 3].iter().all(|stage| *stage == "text"));
    assert!(texts(&place.path("out.png"))["parameters"].contains("Size: 64x64, Denoising strength: 0.6"));
    let vae = format!("{model}/vae");
    let encode = ["encode", &picture, "--vae", &vae, "--device", "cpu", "--set", "precision=f32"];
    place.run(&[&encode[..], &["-o", "image.safetensors"]].concat()).succeeded();
    let (shape, kept) = tensor(&place.path("kept.safetensors"), "latent");
    let (_, image) = tensor(&place.path("image.safetensors"), "latent");
    assert_eq!(shape, [1, 4, 8, 8]);
    for (index, (found, given)) in kept.iter().zip(&image).enumerate() {
        let is_kept = index % 8 >= 4;
        assert_eq!((found - given).abs() < 1e-4, is_kept, "{index}: {found} {given}");
    }
    // Without a mask everything is made anew.
    place.run(&[&words[..], &["-o", "all.png", "--keep", "all.safetensors"]].concat()).succeeded();
    let (_, all) = tensor(&place.path("all.safetensors"), "latent");
    assert!(all.iter().zip(&image).all(|(found, given)| (found - given).abs() > 1e-6));

    let failed = |words: &[&str], why: &str| {
        place
            .run(&[&["generate", "a cat", "--model"], words, &["-o", "no.png", "--device", "cpu"]].concat())
            .failed(2, why);
    };
    failed(&[&model, "--mask", "mask.png"], "--image");
    failed(&[&model, "--image", "none.png"], "none.png");
    failed(&[&model, "--image", &format!("{model}/cases.json")], "cases.json");
    failed(&[&fixture("generate-wan"), "--image", &picture], "this transformer makes clips of text alone");
    assert!(!place.path("no.png").exists());
}
