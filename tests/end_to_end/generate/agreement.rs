//! Agreement with diffusers' pipelines and ComfyUI's code.

use std::collections::BTreeMap;

use super::*;

/// Values are apart by less than a share of the largest reference, or of 1 if none is larger.
fn assert_near(found: &[f32], reference: &[f32], most: f32, what: &str) {
    let largest = reference.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
    let apart = largest_difference(found, reference) / largest;
    assert!(apart < most, "{what}: {apart}");
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
                assert_near(&found, &reference, most, &format!("{name} {index} {own}"));
            }
        }
    }
}

#[test]
fn pictures_begun_with_a_picture_are_diffusers() {
    let (place, name) = (Place::new(), "generate-flux-image");
    let (model, picture) = (fixture("generate-flux"), fixture(&format!("{name}/picture.png")));
    let cases = cases(name);
    assert!(cases.len() >= 3);
    for (index, case) in cases.iter().enumerate() {
        let number = |key: &str| case[key].to_string();
        let [strength, steps] = ["strength", "num_inference_steps"].map(number);
        let [guidance, seed] = ["guidance_scale", "seed"].map(number);
        let mut words = vec!["generate", case["prompt"].as_str().unwrap(), "--model", &model, "--as", "diffusers"];
        words.extend(["--image", &picture, "--denoise", &strength, "--steps", &steps, "--guidance", &guidance]);
        words.extend(["--seed", &seed, "--device", "cpu", "--set", "precision=f32", "-o", "out.safetensors"]);
        place.run(&words).succeeded();
        let mut found = tensor(&place.path("out.safetensors"), "sample").1;
        found.iter_mut().for_each(|value| *value = value.clamp(-1.0, 1.0));
        assert_near(&found, &expected(name, index, "sample"), 1e-4, &format!("{name} {index}"));
    }
    let words = ["generate", "", "--model", &model, "--as", "diffusers", "--image", &picture];
    let none = ["--denoise", "1e-17", "--steps", "4", "--device", "cpu", "-o", "none.png"];
    place.run(&[&words[..], &none].concat()).failed(2, "leaves none of 4 steps");
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
            assert_near(&found, &reference, 1e-4, &format!("{index} {what}"));
        }
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
    // One run for the prompts that the same encoders read alike: each has a row of the output.
    let read_alike = |case: &Value| ["as", "text_encoders", "embeddings", "shapes"].map(|key| case[key].to_string());
    let mut runs: BTreeMap<_, Vec<&Value>> = BTreeMap::new();
    for case in &list {
        runs.entry(read_alike(case)).or_default().push(case);
    }
    for cases in runs.values() {
        let case = cases[0];
        let mut words = vec!["embed".to_owned(), "--device".into(), "cpu".into(), "--as".into()];
        words.push(case["as"].as_str().unwrap().to_owned());
        for encoder in case["text_encoders"].as_array().unwrap() {
            words.extend(["--text-encoder".into(), fixture(&format!("text-embed/{}", encoder.as_str().unwrap()))]);
        }
        if case["embeddings"].as_bool().unwrap_or(case["embeddings"].is_string()) {
            words.extend(["--embeddings".into(), fixture("text-embed/embeddings")]);
        }
        words.extend(["-o".into(), "out.safetensors".into(), "--".into()]);
        words.extend(cases.iter().map(|case| case["prompt"].as_str().unwrap().to_owned()));
        place.run(&words).succeeded();
        for (what, _) in case["shapes"].as_object().unwrap() {
            let (shape, found) = tensor(&place.path("out.safetensors"), what);
            assert_eq!(shape[0], cases.len(), "{words:?}");
            for (case, found) in cases.iter().zip(found.chunks_exact(found.len() / cases.len())) {
                let name = case["name"].as_str().unwrap();
                let reference = fixture("text-embed/reference.safetensors");
                let (expected_shape, reference) = tensor(reference.as_ref(), &format!("{name}.{what}"));
                assert_eq!([&[1], &shape[1..]].concat(), expected_shape, "{name} {what}");
                assert_near(found, &reference, 1e-4, &format!("{name} {what}"));
            }
        }
    }
}

#[test]
fn a_clip_of_more_positions_reads_as_many_tokens_as_transformers_gives_it() {
    let place = Place::new();
    let folder = |name: &str| {
        fs::create_dir(place.path(name)).unwrap();
        for entry in fs::read_dir(fixture("text-long-clip")).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, place.path(name).join(path.file_name().unwrap())).unwrap();
        }
        place.path(name).join("tokenizer_config.json")
    };
    folder("long");
    fs::write(folder("published"), r#"{"model_max_length": 77}"#).unwrap();
    fs::write(folder("endless"), r#"{"model_max_length": 1e30}"#).unwrap();
    fs::remove_file(folder("none")).unwrap();
    let prompts: Value =
        serde_json::from_str(&fs::read_to_string(fixture("text-long-clip/prompts.json")).unwrap()).unwrap();
    let reference = fixture("text-long-clip/reference.safetensors");
    // Folders, conventions, and the length that these read prompts of more than 77 tokens with.
    let cases = [
        (["long", "published", "none", "endless"].as_slice(), "comfyui", 248),
        (["long", "none", "endless"].as_slice(), "diffusers", 248),
        (["published"].as_slice(), "diffusers", 77),
    ];
    for (folders, convention, length) in cases {
        // ComfyUI goes on in a second chunk, and prompts of one shape alone make one file.
        let files: &[&[&str]] =
            if convention == "comfyui" { &[&["short", "long"], &["beyond"]] } else { &[&["short", "long", "beyond"]] };
        for (folder, names) in folders.iter().flat_map(|folder| files.iter().map(move |names| (folder, *names))) {
            let given: Vec<&str> = names.iter().map(|name| prompts[*name].as_str().unwrap()).collect();
            let model = place.path(folder).display().to_string();
            let words =
                ["embed", "--device", "cpu", "--as", convention, "--text-encoder", &model, "-o", "o.safetensors"];
            place.run(&[&words[..], &given].concat()).succeeded();
            let (shape, found) = tensor(&place.path("o.safetensors"), "prompt_embeds");
            let chunks = if names == ["beyond"] { 2 } else { 1 };
            assert_eq!(shape, [names.len(), chunks * length, 16], "{folder} {names:?} {convention}");
            if chunks == 2 {
                continue;
            }
            let (_, pooled) = tensor(&place.path("o.safetensors"), "pooled_prompt_embeds");
            for (ending, found) in [("", found), ("-pooled", pooled)] {
                for (name, found) in names.iter().zip(found.chunks_exact(found.len() / names.len())) {
                    let what = format!("{name}-{length}{ending}");
                    assert_near(found, &tensor(reference.as_ref(), &what).1, 1e-4, &format!("{folder} {what}"));
                }
            }
        }
    }
}
