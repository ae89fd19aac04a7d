//! The descriptions that a picture carries.

use super::*;

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
    let nodes: Vec<&Value> =
        workflow["nodes"].as_array().unwrap().iter().filter(|node| node["type"] != "Note").collect();
    assert_eq!(nodes.len(), prompt.as_object().unwrap().len());
    for &node in &nodes {
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

/// The words beside a picture's graph.
fn notes(path: &Path) -> String {
    let workflow: Value = serde_json::from_str(&texts(path)["workflow"]).unwrap();
    let notes = workflow["nodes"].as_array().unwrap().iter().filter(|node| node["type"] == "Note");
    notes.map(|note| note["widgets_values"][0].as_str().unwrap().to_owned()).collect()
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
    // T5 reads 512 tokens there, and nodes can do so.
    assert_eq!(nodes(&by_hand, "T5TokenizerOptions")[0]["min_length"], 512);
    assert_eq!(
        notes(&place.path("out.png")),
        "Not quite as it was made:\n\nPrompts were cut at 77 tokens of CLIP and 512 of T5, as diffusers does: nodes read all of them."
    );
    assert!(nodes(&plain, "T5TokenizerOptions").is_empty());
    let tokens = run(&["--size", "32x32", "--text-tokens", "300"]);
    assert_eq!(nodes(&tokens, "T5TokenizerOptions")[0]["min_length"], 300);
    assert_eq!(notes(&place.path("out.png")), "");
    run(&["--size", "32x32", "--as", "diffusers", "--sampler", "dpmpp_2m", "--text-tokens", "256"]);
    let differences = notes(&place.path("out.png"));
    for words in ["The sampler was diffusers' solver that stands for dpmpp_2m", "whole timesteps, cut off"] {
        assert!(differences.contains(words), "{differences}");
    }

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
        (fixture("text-clip-vision/64x64.png"), "not made from a prompt here"),
        ("none.png".into(), "no such file"),
        (format!("{model}/cases.json"), "not made from a prompt here"),
    ] {
        place.run(&["generate", "--like", &picture, "--model", &model, "-o", "no.png"]).failed(2, why);
    }
    place.run(&["generate", "--model", &model, "-o", "no.png"]).failed(2, "PROMPT");
}
