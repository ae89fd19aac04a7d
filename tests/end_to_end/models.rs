//! Models in the folders in which people keep them: what is listed, and what `generate` finds.

use std::{fs, path::Path};

use crate::program::{Place, Run, fixture};

/// Copies a part of a pipeline to a file of any name, with its configuration beside it.
fn put(place: &Place, name: &str, part: &str, to: &str) {
    let from = fixture(&format!("{name}/{part}"));
    let from = Path::new(&from);
    let to = place.path(to);
    let folder = to.parent().unwrap();
    fs::create_dir_all(folder).unwrap();
    let own = fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path());
    let mut weights = own.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    fs::copy(weights.next().unwrap(), &to).unwrap();
    if from.join("config.json").is_file() {
        fs::copy(from.join("config.json"), folder.join("config.json")).unwrap();
    }
}

/// A folder as ComfyUI has it, with the parts of a Flux model under names that say nothing.
fn comfyui(place: &Place, root: &str) {
    for (part, to) in [
        ("transformer", "diffusion_models/one.safetensors"),
        ("text_encoder", "text_encoders/c/two.safetensors"),
        ("text_encoder_2", "text_encoders/t/three.safetensors"),
        ("vae", "vae/four.safetensors"),
    ] {
        put(place, "generate-flux", part, &format!("{root}/{to}"));
    }
    // The scaling is Flux's, by which its VAEs are told.
    let config = place.path(&format!("{root}/vae/config.json"));
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("1.5305", "0.3611").replace("0.0609", "0.1159")).unwrap();
    for (from, to) in [("tokenizer", "c"), ("tokenizer_2", "t")] {
        for entry in fs::read_dir(fixture(&format!("generate-flux/{from}"))).unwrap() {
            let path = entry.unwrap().path();
            let folder = place.path(&format!("{root}/text_encoders/{to}"));
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    fs::create_dir_all(place.path(&format!("{root}/loras"))).unwrap();
    fs::write(place.path(&format!("{root}/loras/torn.safetensors")), [0; 40]).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &to) } else { fs::copy(&path, &to).map(drop).unwrap() }
    }
}

fn generate(place: &Place, more: &[&str]) -> Run {
    let words = ["generate", "a cat", "--device", "cpu", "--size", "32x32", "--steps", "2", "-o", "out.png"];
    place.run(&[&words[..], more].concat())
}

#[test]
fn parts_are_found_by_what_they_are() {
    let place = Place::new();
    comfyui(&place, "ComfyUI/models");
    let listed = place.run(&["models", "ComfyUI", "--json"]).json();
    assert_eq!(listed["places"][0]["keeping"], "comfyui");
    let models = listed["models"].as_array().unwrap();
    assert_eq!(models.len(), 1, "{models:?}");
    assert_eq!(models[0]["name"], "one");
    assert!(models[0]["lacks"].as_array().unwrap().is_empty(), "{models:?}");
    assert_eq!(models[0]["parts"]["text_encoders"].as_array().unwrap().len(), 2);
    let torn = listed["files"].as_array().unwrap().iter().find(|file| file["name"] == "torn").unwrap();
    assert!(torn["problem"].is_string(), "{torn}");
    let table = place.run(&["models", "ComfyUI/models", "--files"]).succeeded().stdout();
    assert!(table.contains("one") && table.contains("can't be used"), "{table}");

    // By the folder, by the file, and by the name.
    let whole = fixture("generate-flux");
    generate(&place, &["--model", &whole]).succeeded();
    let reference = fs::read(place.path("out.png")).unwrap().len();
    for model in ["ComfyUI", "ComfyUI/models", "ComfyUI/models/diffusion_models/one.safetensors"] {
        generate(&place, &["--model", model]).succeeded();
        assert!(fs::read(place.path("out.png")).unwrap().len().abs_diff(reference) < 4096);
    }
    for name in ["one", "one.safetensors"] {
        generate(&place, &["--model", name, "--models", "ComfyUI"]).succeeded();
    }
    generate(&place, &["--model", "two", "--models", "ComfyUI"]).failed(2, "no model of that name");
    generate(&place, &["--transformer", "ComfyUI/models/diffusion_models/one.safetensors"]).succeeded();
}

#[test]
fn a_missing_part_is_named_with_its_width() {
    let place = Place::new();
    comfyui(&place, "models");
    fs::remove_dir_all(place.path("models/text_encoders/t")).unwrap();
    let table = place.run(&["models", "models"]).succeeded().stdout();
    let words: Vec<&str> = table.split_whitespace().collect();
    assert!(words.contains(&"lacks") && words.contains(&"T5"), "{table}");
    let listed = place.run(&["models", "models", "--json"]).json();
    assert_eq!(listed["models"][0]["lacks"][0]["kind"], "t5", "{listed}");
    generate(&place, &["--model", "models/diffusion_models/one.safetensors"])
        .failed(2, "needs a T5 text encoder of width 32, and no file that was found is one: give --text-encoder");
    fs::remove_dir_all(place.path("models/vae")).unwrap();
    fs::create_dir(place.path("models/vae")).unwrap();
    let listed = place.run(&["models", "models", "--json"]).json();
    assert_eq!(listed["models"][0]["lacks"].as_array().unwrap().len(), 2, "{listed}");
    assert!(!place.path("out.png").exists());
}

#[test]
fn a_repository_of_hugging_faces_cache_has_its_name() {
    let place = Place::new();
    let snapshot = place.path("hub/models--tiny--flux/snapshots/0a1b");
    copy(Path::new(&fixture("generate-flux")), &snapshot);
    fs::create_dir_all(place.path("hub/models--tiny--flux/refs")).unwrap();
    fs::write(place.path("hub/models--tiny--flux/refs/main"), "0a1b").unwrap();
    fs::create_dir_all(place.path("hub/models--tiny--flux/snapshots/ffff")).unwrap();
    let listed = place.run(&["models", "hub", "--json"]).json();
    assert_eq!(listed["models"][0]["name"], "tiny/flux", "{listed}");
    for name in ["tiny/flux", "flux"] {
        let words = ["generate", "a cat", "--model", name, "--size", "32x32", "--steps", "1", "-o", "out.png"];
        let mut command = place.command(&words);
        let output = command.env("HF_HUB_CACHE", place.path("hub")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    place.run(&["models", "nowhere"]).failed(2, "nowhere: no such folder");
}
