//! From a prompt to a picture or clip: agreement with diffusers' pipelines, conditionings that are
//! kept, what is refused.

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

/// A prompt that no earlier run had: tests share a cache.
fn fresh_prompt() -> String {
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
fn pictures_and_clips_are_diffusers() {
    let place = Place::new();
    for name in ["generate-flux", "generate-wan", "generate-wan-i2v"] {
        for (index, case) in cases(name).iter().enumerate() {
            let outputs = ["-o", "out.safetensors", "--keep", "kept.safetensors"];
            place.run(&with(&arguments(name, case), &outputs)).succeeded();
            for (file, own, theirs, most) in [
                ("kept.safetensors", "latent", "latent", 1e-4),
                // diffusers clamps a clip.
                ("out.safetensors", "sample", "sample", 1e-4),
            ] {
                let mut found = tensor(&place.path(file), own).1;
                let mut reference = expected(name, index, theirs);
                if own == "sample" {
                    for values in [&mut found, &mut reference] {
                        values.iter_mut().for_each(|value| *value = value.clamp(-1.0, 1.0));
                    }
                }
                let largest = reference.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
                let apart = largest_difference(&found, &reference) / largest;
                assert!(apart < most, "{name} {index} {own}: {apart}");
            }
        }
    }
}

#[test]
fn pictures_are_comfyuis() {
    let place = Place::new();
    let vae = root().join("examples/models/flux-tiny/ae.safetensors");
    let texts = ["text_encoder", "text_encoder_2"].map(|name| fixture(&format!("text-embed/flux/{name}")));
    let transformer = fixture("generate-comfyui/transformer.safetensors");
    let cases = cases("generate-comfyui");
    assert!(cases.len() >= 5);
    for (index, case) in cases.iter().enumerate() {
        let mut words = vec!["generate", case["prompt"].as_str().unwrap(), "--transformer", &transformer];
        words.extend(["--text-encoder", &texts[0], "--text-encoder", &texts[1], "--vae", vae.to_str().unwrap()]);
        words.extend(case["options"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()));
        words.extend(case["negative"].as_str().into_iter().flat_map(|negative| ["--negative", negative]));
        words.extend(["--device", "cpu", "--set", "precision=f32"]);
        words.extend(["-o", "out.safetensors", "--keep", "kept.safetensors"]);
        place.run(&words).succeeded();
        for (file, what) in [("kept.safetensors", "latent"), ("out.safetensors", "sample")] {
            let (found, reference) = (tensor(&place.path(file), what).1, expected("generate-comfyui", index, what));
            let largest = reference.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
            let apart = largest_difference(&found, &reference) / largest;
            assert!(apart < 1e-4, "{index} {what}: {apart}");
        }
    }
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
fn embed_writes_what_diffusers_encodes() {
    let place = Place::new();
    for (name, encoders) in [("generate-flux", 2), ("generate-wan", 1)] {
        for (index, case) in cases(name).iter().enumerate() {
            let model = fixture(name);
            let arguments = ["embed", case["prompt"].as_str().unwrap(), "--text-encoder", &model, "--as", "diffusers"];
            let words = [&arguments[..], &["--device", "cpu", "-o", "out.safetensors", "--json"]].concat();
            let report = place.run(&words).json();
            assert_eq!(report["encoders"].as_array().unwrap().len(), encoders);
            assert_eq!(
                (&report["encoders"][0]["stage"], &report["encoders"][0]["policy"]["name"]),
                (&"text".into(), &"adaptive".into())
            );
            let wanted: &[&str] =
                if encoders == 2 { &["prompt_embeds", "pooled_prompt_embeds"] } else { &["prompt_embeds"] };
            for tensor_name in wanted {
                let found = tensor(&place.path("out.safetensors"), tensor_name).1;
                let reference = expected(name, index, tensor_name);
                let apart = largest_difference(&found, &reference);
                assert!(apart < 1e-4, "{name} {index} {tensor_name}: {apart}");
            }
            let bytes = fs::read(place.path("out.safetensors")).unwrap();
            let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            let texts = header.metadata().as_ref().unwrap();
            assert_eq!(texts["prompt"], case["prompt"].as_str().unwrap());
        }
    }
}

#[test]
fn embed_reads_prompts_as_comfyui_and_diffusers_do() {
    let place = Place::new();
    let list: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(fixture("text-embed/cases.json")).unwrap()).unwrap();
    assert!(list.len() > 40);
    for case in &list {
        let name = case["name"].as_str().unwrap();
        let mut words = vec!["embed".to_owned(), "--device".into(), "cpu".into(), "--as".into()];
        words.push(case["as"].as_str().unwrap().to_owned());
        for encoder in case["text_encoders"].as_array().unwrap() {
            words.extend(["--text-encoder".into(), fixture(&format!("text-embed/{}", encoder.as_str().unwrap()))]);
        }
        if case["embeddings"].as_bool().unwrap_or(case["embeddings"].is_string()) {
            words.extend(["--embeddings".into(), fixture("text-embed/embeddings")]);
        }
        words.extend(["-o".into(), "out.safetensors".into(), "--".into(), case["prompt"].as_str().unwrap().into()]);
        place.run(&words).succeeded();
        for (what, _) in case["shapes"].as_object().unwrap() {
            let (shape, found) = tensor(&place.path("out.safetensors"), what);
            let reference = fixture("text-embed/reference.safetensors");
            let (expected_shape, reference) = tensor(reference.as_ref(), &format!("{name}.{what}"));
            assert_eq!(shape, expected_shape, "{name} {what}");
            let largest = reference.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
            let apart = largest_difference(&found, &reference) / largest;
            assert!(apart < 1e-4, "{name} {what}: {apart}");
        }
    }
}

#[test]
fn a_prompt_is_encoded_once() {
    let place = Place::new();
    let mut base = with(&arguments("generate-flux", &cases("generate-flux")[0]), &["--json"]);
    base[1] = fresh_prompt();
    let first = place.run(&with(&base, &["-o", "one.png"])).json();
    let kinds: Vec<&Value> = stages(&first, "text").iter().map(|stage| &stage["request"]["model"]["kind"]).collect();
    assert_eq!(kinds, ["clip-32", "t5-32"]);
    let again = place.run(&with(&base, &["-o", "two.png"])).json();
    assert_eq!((&again["stages"][0]["stage"], &again["stages"][0]["kept"]), (&"text".into(), &true.into()));
    assert_eq!(again["stages"][1]["stage"], "denoise");
    assert_eq!(again["stages"][2]["stage"], "decode");
    assert_eq!(again["outputs"], serde_json::json!(["two.png"]));
    let pixels = |name: &str| image::open(place.path(name)).unwrap().into_rgb8().into_raw();
    assert_eq!(pixels("one.png"), pixels("two.png"));
    let mut other = base.clone();
    other[1] += " on a square";
    let other = place.run(&with(&other, &["-o", "three.png"])).json();
    assert_eq!(stages(&other, "text").len(), 2);
}

#[test]
fn a_second_run_reads_nothing_of_the_encoders() {
    let place = Place::new();
    let model = place.path("model");
    copy_folder(Path::new(&fixture("generate-flux")), &model);
    let mut base = arguments("generate-flux", &cases("generate-flux")[0]);
    base[1] = fresh_prompt();
    let at = base.iter().position(|word| word == "--model").unwrap();
    base[at + 1] = model.to_str().unwrap().to_owned();
    place.run(&with(&base, &["-o", "one.png"])).succeeded();
    let mut wiped = 0;
    for folder in ["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"] {
        for file in fs::read_dir(model.join(folder)).unwrap() {
            // As the file system tells it, it is the same file.
            let file = fs::OpenOptions::new().write(true).open(file.unwrap().path()).unwrap();
            let facts = file.metadata().unwrap();
            file.set_len(0).unwrap();
            file.set_len(facts.len()).unwrap();
            file.set_modified(facts.modified().unwrap()).unwrap();
            wiped += 1;
        }
    }
    assert!(wiped >= 6);
    place.run(&with(&base, &["-o", "two.png"])).succeeded();
    let pixels = |name: &str| image::open(place.path(name)).unwrap().into_rgb8().into_raw();
    assert_eq!(pixels("one.png"), pixels("two.png"));
    base[1] += " on a square";
    place.run(&with(&base, &["-o", "three.png"])).failed(2, "");
    assert!(!place.path("three.png").exists());
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn stages_run_in_memory_that_the_others_have_let_go() {
    let place = Place::new();
    for name in ["generate-flux", "flux-shapes"] {
        let is_bundled = name == "flux-shapes";
        let mut base = match is_bundled {
            true => ["generate", "", "--model", name, "--device", "cpu"].map(str::to_owned).to_vec(),
            false => arguments(name, &cases(name)[0]),
        };
        base[1] = fresh_prompt();
        let expanded = ["--set", "text.weights=expanded", "--set", "denoise.weights=expanded"];
        let run = place.run(&with(&base, &[&expanded[..], &["--json", "-o", "out.safetensors"]].concat())).json();
        let bytes = |stage: &Value, side: &str| {
            let of = |name: &str| stage[side][name].as_u64().unwrap_or_default();
            let weights = if stage["stage"] == "decode" { 0 } else { of("weights_bytes") };
            of("peak_bytes") + weights
        };
        let all = run["stages"].as_array().unwrap();
        let most = |side: &str| all.iter().map(|stage| bytes(stage, side)).max().unwrap() as f64;
        let peak = run["memory"]["peak_bytes"].as_f64().unwrap();
        println!("{name}: {peak} of {} and {}: {}", most("outcome"), most("estimate"), run["memory"]);
        // Weights of Winograd are larger than they are estimated if channels fill no block.
        let above = if is_bundled { 1.15 } else { 1.05 };
        assert!((0.95..above).contains(&(peak / most("estimate"))), "{name}: {peak} {}", most("estimate"));
        let sum: u64 = all.iter().map(|stage| bytes(stage, "outcome")).sum();
        assert!(peak < 0.9 * sum as f64, "{name}: {peak} of {sum}");
        // A conditioning and a latent, and no weights, of which these encoders have 1.5 MB.
        for before in run["memory"]["in_use_before"].as_array().unwrap() {
            assert!(before["bytes"].as_u64().unwrap() < 100_000, "{name}: {before}");
        }
        let encoders = stages(&run, "text").into_iter().map(|stage| bytes(stage, "outcome")).sum::<u64>();
        assert!(!is_bundled || encoders > 1_500_000, "{encoders}");
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
fn a_picture_tells_how_it_was_made() {
    let place = Place::new();
    let case = &cases("generate-wan")[0];
    let run = place.run(&with(&arguments("generate-wan", case), &["--frames", "1", "-o", "still.png"]));
    run.failed(2, "--frames");
    let mut words = arguments("generate-wan", case);
    let frames = words.iter().position(|word| word == "--frames").unwrap();
    words[frames + 1] = "1".into();
    let run = place.run(&with(&words, &["-o", "still.png"]));
    run.succeeded();
    let told = texts(&place.path("still.png"));
    let parameters = &told["parameters"];
    for words in ["a cat moving left\nNegative prompt: bad cat\n", "Steps: 3", "CFG scale: 5", "Seed: 7", "48x32"] {
        assert!(parameters.contains(words), "{parameters}");
    }
}

/// A PNG's graph for ComfyUI, in the form of its server, after a look at that of its interface.
fn graph(path: &Path) -> Value {
    let texts = texts(path);
    let read = |name: &str| -> Value { serde_json::from_str(&texts[name]).unwrap() };
    let (prompt, workflow) = (read("prompt"), read("workflow"));
    assert!(texts["workflow"].is_ascii() && workflow["version"] == 0.4);
    let nodes = workflow["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), prompt.as_object().unwrap().len());
    for node in nodes {
        let own = &prompt[node["id"].to_string()];
        assert_eq!(node["type"], own["class_type"]);
        for (slot, input) in node["inputs"].as_array().unwrap().iter().enumerate() {
            let mut links = workflow["links"].as_array().unwrap().iter();
            let link = links.find(|link| link[0] == input["link"]).unwrap();
            assert_eq!([&link[3], &link[5]], [&node["id"], &input["type"]]);
            assert_eq!(link[4], slot);
            let from = nodes.iter().find(|node| node["id"] == link[1]).unwrap();
            let output = &from["outputs"][link[2].as_u64().unwrap() as usize];
            assert_eq!(output["type"], input["type"]);
            assert!(output["links"].as_array().unwrap().contains(&link[0]));
            let name = input["name"].as_str().unwrap();
            assert_eq!(own["inputs"][name], serde_json::json!([link[1].to_string(), link[2]]));
        }
    }
    prompt
}

/// The inputs of a graph's nodes of a class.
fn nodes(graph: &Value, class: &str) -> Vec<Value> {
    let all = graph.as_object().unwrap().values();
    all.filter(|node| node["class_type"] == class).map(|node| node["inputs"].clone()).collect()
}

#[test]
fn a_picture_carries_comfyuis_graph() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let picture = fixture("text-clip-vision/64x64.png");
    let run = |words: &[&str]| {
        let base =
            ["generate", "a cat {red|blue} ü", "--model", &model, "--device", "cpu", "-o", "out.png", "--steps", "2"];
        place.run(&[&base, words].concat()).succeeded();
        graph(&if words.contains(&"1,2") { place.path("out-01.png") } else { place.path("out.png") })
    };
    let plain = run(&["--size", "32x48", "--seed", "9", "--guidance", "2.5", "--shift", "1.3"]);
    let sampler = &nodes(&plain, "KSampler")[0];
    for (name, value) in [("seed", 9.into()), ("steps", 2.into()), ("cfg", 1.0.into()), ("denoise", Value::from(1.0))] {
        assert_eq!(sampler[name], value, "{name}");
    }
    assert_eq!([&sampler["sampler_name"], &sampler["scheduler"]], ["euler", "simple"]);
    assert_eq!(nodes(&plain, "CLIPTextEncode")[0]["text"], "a cat {red|blue} ü");
    assert_eq!(nodes(&plain, "FluxGuidance")[0]["guidance"], 2.5);
    assert_eq!(nodes(&plain, "ModelSamplingFlux")[0]["max_shift"], 1.3);
    assert_eq!(nodes(&plain, "EmptySD3LatentImage")[0]["width"], 32);
    assert_eq!(nodes(&plain, "UNETLoader")[0]["unet_name"], "generate-flux.safetensors");
    assert_eq!([nodes(&plain, "ConditioningZeroOut").len(), nodes(&plain, "SaveImage").len()], [1, 1]);

    let seeds = run(&["--size", "32x32", "--seed", "1,2"]);
    let mut of: Vec<u64> = nodes(&seeds, "KSampler").iter().map(|node| node["seed"].as_u64().unwrap()).collect();
    of.sort_unstable();
    assert_eq!(of, [1, 2]);
    let from = run(&["--image", &picture, "--mask", &picture, "--denoise", "0.5", "--cfg", "2", "--negative", "bad"]);
    assert_eq!(nodes(&from, "KSampler")[0]["denoise"], 0.5);
    assert_eq!(nodes(&from, "CLIPTextEncode").len(), 2);
    assert_eq!([nodes(&from, "VAEEncode").len(), nodes(&from, "SetLatentNoiseMask").len()], [1, 1]);
    let by_hand = run(&["--size", "32x32", "--as", "diffusers"]);
    assert!(nodes(&by_hand, "KSampler").is_empty());
    let sigmas = nodes(&by_hand, "ManualSigmas")[0]["sigmas"].as_str().unwrap().split(", ").count();
    assert_eq!(sigmas, 3);
    assert_eq!(nodes(&by_hand, "SamplerCustomAdvanced").len(), 1);

    let wan = fixture("generate-wan");
    let words =
        ["generate", "a cat", "--model", &wan, "--size", "48x32", "--frames", "1", "--steps", "2", "-o", "still.png"];
    place.run(&words).succeeded();
    let clip = graph(&place.path("still.png"));
    let sampler = &nodes(&clip, "KSampler")[0];
    assert_eq!([&sampler["sampler_name"], &sampler["cfg"]], [&Value::from("uni_pc"), &Value::from(6.0)]);
    assert_eq!(nodes(&clip, "CLIPLoader")[0]["type"], "wan");
    assert_eq!(nodes(&clip, "EmptyHunyuanLatentVideo")[0]["length"], 1);
    assert_eq!([nodes(&clip, "CreateVideo").len(), nodes(&clip, "SaveVideo").len()], [1, 1]);
    assert!(nodes(&clip, "ModelSamplingSD3").is_empty());
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
    let clip = of(&["--model", &wan, "--frames", "9", "--size", "32x32"]);
    clip.failed(2, "this format holds one frame, the clip has 9");
    assert!(!clip.stderr().contains("text: "), "refused before encoders run: {}", clip.stderr());
    let standard = place.run(&["generate", "a cat", "-o", "-", "--model", &flux]);
    standard.failed(2, "is written to a file");
    assert!(!place.path("out.png").exists());
}

#[test]
fn prompts_of_every_sort_are_read() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let long = "a red circle, ".repeat(2000);
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

#[test]
fn a_picture_is_made_again_like_another() {
    let place = Place::new();
    let pixels = |name: &str| image::open(place.path(name)).unwrap().into_rgb8().into_raw();
    for (model, more) in [
        ("generate-flux", &["--sampler", "dpmpp_2m", "--scheduler", "beta", "--guidance", "2", "--seed", "5,6"][..]),
        ("generate-wan", &["--cfg", "4", "--negative", "bad", "--frames", "1", "--set", "denoise.precision=bf16"]),
        ("generate-flux", &["--as", "diffusers", "--set", "denoise.feed-forward=2", "--batch", "2"]),
    ] {
        let model = fixture(model);
        let words =
            ["generate", "a red circle", "--model", &model, "--size", "48x32", "--steps", "3", "--device", "cpu"];
        let first = place.run(&[&words[..], more, &["-o", "first.png", "--json"]].concat()).json();
        let outputs = first["outputs"].as_array().unwrap();
        let source = outputs[0].as_str().unwrap();
        let like = ["generate", "--like", source, "--model", &model, "--device", "cpu", "-o", "again.png", "--json"];
        let again = place.run(&like).json();
        for (one, other) in outputs.iter().zip(again["outputs"].as_array().unwrap()) {
            assert_eq!(pixels(one.as_str().unwrap()), pixels(other.as_str().unwrap()), "{one}");
        }
        let precision = |run: &Value| stages(run, "denoise")[0]["plan"]["precision"].clone();
        assert_eq!(precision(&first), precision(&again));
        // An option that is given counts.
        let other = [&like[..7], &["--seed", "77", "-o", "other.png", "--json"]].concat();
        let other = place.run(&other).json();
        assert_ne!(pixels(source), pixels(other["outputs"][0].as_str().unwrap()));
    }
    let model = fixture("generate-flux");
    for (picture, why) in [
        (fixture("text-clip-vision/64x64.png"), "not made by tilewright generate"),
        ("none.png".into(), "no such file"),
        (format!("{model}/cases.json"), "not made by tilewright generate"),
    ] {
        place.run(&["generate", "--like", &picture, "--model", &model, "-o", "no.png"]).failed(2, why);
    }
    place.run(&["generate", "--model", &model, "-o", "no.png"]).failed(2, "PROMPT");
}
