//! Models in the folders in which people keep them: what is listed, and what `generate` finds.

use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::Value;

use crate::program::{Place, Run, fixture, root, sample};

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
    generate_to(place, "out.png", more)
}

fn generate_to(place: &Place, output: &str, more: &[&str]) -> Run {
    let words = ["generate", "a cat", "--device", "cpu", "--size", "32x32", "--steps", "2", "-o", output];
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

/// The names of what is listed.
fn names(listed: &Value, of: &str) -> Vec<String> {
    listed[of].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_file_with_several_names_is_one_model() {
    let place = Place::new();
    comfyui(&place, "ComfyUI/models");
    let once = place.run(&["models", "ComfyUI", "--json"]).json();
    // A link to a folder, to its parent, to itself, to the place from within, and further names.
    let at = |name: &str| place.path("ComfyUI/models").join(name);
    symlink("diffusion_models", at("unet")).unwrap();
    symlink("../models", at("loop")).unwrap();
    symlink(".", at("vae/here")).unwrap();
    symlink("../../..", at("vae/far")).unwrap();
    symlink("one.safetensors", at("diffusion_models/a-link.safetensors")).unwrap();
    fs::hard_link(at("diffusion_models/one.safetensors"), at("diffusion_models/second.safetensors")).unwrap();
    symlink("self.safetensors", at("vae/self.safetensors")).unwrap();
    symlink("ComfyUI", place.path("Link")).unwrap();
    for folders in [&["ComfyUI"][..], &["Link"], &["ComfyUI", "Link", "ComfyUI/models/vae"], &["ComfyUI/models/loop"]] {
        let listed = place.run(&[&["models", "--json"], folders].concat()).json();
        let mut files = names(&listed, "files");
        files.retain(|name| name != "self");
        assert_eq!((names(&listed, "models"), files), (names(&once, "models"), names(&once, "files")), "{folders:?}");
        let model = &listed["models"][0];
        let mut also: Vec<&str> =
            model["also"].as_array().unwrap().iter().map(|other| other["name"].as_str().unwrap()).collect();
        also.sort_unstable();
        assert_eq!(also, ["a-link", "second"], "{model}");
    }
    let table = place.run(&["models", "ComfyUI", "--files"]).succeeded().stdout();
    assert_eq!(table.lines().filter(|line| line.contains("transformer: ")).count(), 1, "{table}");
    assert!(table.contains("also diffusion_models/a-link.safetensors, diffusion_models/second.safetensors"), "{table}");
    let mut pixels = Vec::new();
    for model in ["one", "a-link", "second", "second.safetensors", "ComfyUI", "ComfyUI/models/unet/one.safetensors"] {
        generate_to(&place, "out.safetensors", &["--models", "ComfyUI", "--model", model]).succeeded();
        pixels.push(sample(&place.path("out.safetensors")));
    }
    assert!(pixels.iter().all(|one| *one == pixels[0]));
    // Two files of one name are two models still.
    put(&place, "generate-flux", "transformer", "ComfyUI/models/diffusion_models/x/one.safetensors");
    generate(&place, &["--models", "ComfyUI", "--model", "one"]).failed(2, "several models of that name");
}

#[test]
fn folders_that_comfyui_is_configured_to_search_are_searched() {
    let place = Place::new();
    comfyui(&place, "all");
    for folder in ["ComfyUI/models/vae", "ComfyUI/models/checkpoints", "other"] {
        fs::create_dir_all(place.path(folder)).unwrap();
    }
    fs::rename(place.path("all/text_encoders"), place.path("other/words")).unwrap();
    let text = "a:\n  base_path: ../all\n  diffusion_models: diffusion_models\n  vae: |\n    nowhere\n    vae\n\
                b:\n  clip: ../other/words   # CLIP and T5\n";
    place.write("ComfyUI/extra_model_paths.yaml", text);
    for folder in ["ComfyUI", "ComfyUI/models"] {
        let listed = place.run(&["models", folder, "--json"]).json();
        assert_eq!(names(&listed, "models"), ["one"], "{listed}");
        assert_eq!(listed["models"][0]["lacks"], serde_json::json!([]), "{listed}");
        assert_eq!(listed["places"][0]["extra"].as_array().unwrap().len(), 3, "{listed}");
    }
    let table = place.run(&["models", "ComfyUI"]).succeeded().stdout();
    assert!(table.contains("extra_model_paths.yaml") && table.contains("one"), "{table}");
    generate(&place, &["--models", "ComfyUI", "--model", "one"]).succeeded();
    generate(&place, &["--models", "ComfyUI", "--model", "all/diffusion_models/one.safetensors"]).succeeded();

    // A name in two folders means the file in the one that is searched first: ComfyUI's own, or the
    // default.
    let own = "ComfyUI/models/diffusion_models/one.safetensors";
    put(&place, "generate-flux", "transformer", own);
    let mut bytes = fs::read(place.path(own)).unwrap();
    let end = bytes.len();
    bytes[end - 64..].fill(0);
    fs::write(place.path(own), bytes).unwrap();
    let made = |model: &str| {
        generate_to(&place, "out.safetensors", &["--models", "ComfyUI", "--model", model]).succeeded();
        sample(&place.path("out.safetensors"))
    };
    let [first, second] = [own, "all/diffusion_models/one.safetensors"].map(made);
    assert!(first != second && made("one") == first);
    let listed = place.run(&["models", "ComfyUI", "--json"]).json();
    assert_eq!(names(&listed, "models"), ["one", "one"], "{listed}");
    place.write("ComfyUI/extra_model_paths.yaml", text.replace("a:\n", "a:\n  is_default: true\n"));
    let listed = place.run(&["models", "ComfyUI", "--json"]).json();
    assert_eq!(listed["places"][0]["extra"][0]["is_default"], true, "{listed}");
    assert!(made("one") == second);

    // A file that can't be read is said in a line, and the rest is searched.
    place.write("ComfyUI/extra_model_paths.yaml", "a: &a [*a]\n");
    let run = place.run(&["models", "ComfyUI", "--json"]);
    assert_eq!(names(&run.json(), "models"), ["one"]);
    assert!(run.stderr().contains("extra_model_paths.yaml: no sound YAML"), "{}", run.stderr());
}

#[test]
fn a_link_to_a_blob_that_is_missing_is_named() {
    let place = Place::new();
    let snapshot = "hub/models--tiny--flux/snapshots/0a1b";
    copy(Path::new(&fixture("generate-flux")), &place.path(snapshot));
    let broken = |name: &str| {
        let path = place.path(snapshot).join(name);
        fs::remove_file(&path).unwrap();
        symlink("../../../blobs/d4", path).unwrap();
    };
    let file = "transformer/diffusion_pytorch_model.safetensors";
    broken(file);
    let hub = fs::canonicalize(place.path("hub")).unwrap().display().to_string();
    let words = "a link to a blob that is not there: the download is incomplete: run hf download tiny/flux";
    let listed = place.run(&["models", "hub", "--json"]).json();
    assert!(names(&listed, "models").is_empty(), "{listed}");
    let problems: Vec<&str> =
        listed["files"].as_array().unwrap().iter().filter_map(|file| file["problem"].as_str()).collect();
    assert_eq!(problems, [format!("can't be read: {words} {file} --cache-dir hub")]);
    place.run(&["inspect", &format!("{snapshot}/{file}")]).failed(2, words);
    place.run(&["inspect", &format!("{snapshot}/transformer")]).failed(2, words);
    let whole = format!("{words} {file} --cache-dir {hub}");
    let repository = format!("{hub}/models--tiny--flux");
    for model in [format!("{hub}/../{snapshot}"), format!("{hub}/../{snapshot}/{file}"), repository] {
        generate(&place, &["--model", &model]).failed(2, words);
    }
    let mut command = place.command(&["generate", "a cat", "--model", "tiny/flux", "-o", "out.png"]);
    Run(command.env("HF_HUB_CACHE", &hub).output().unwrap()).failed(2, &whole);

    // A description beside the file is no less missing than the file.
    fs::remove_file(place.path(snapshot).join(file)).unwrap();
    fs::copy(fixture(&format!("generate-flux/{file}")), place.path(snapshot).join(file)).unwrap();
    generate(&place, &["--model", snapshot]).succeeded();
    broken("transformer/config.json");
    generate(&place, &["--model", snapshot]).failed(2, words);
    let embed = ["embed", "a cat", "--device", "cpu", "--text-encoder", snapshot, "-o", "out.safetensors"];
    place.run(&embed).succeeded();
    broken("tokenizer/merges.txt");
    place.run(&embed).failed(2, words);
}

#[test]
fn a_row_of_models_is_one_line_in_a_pipe() {
    let place = Place::new();
    let deep = format!("{0}/{0}/models", "a-folder-with-a-name-that-is-as-long-as-people-make-them");
    comfyui(&place, &deep);
    let long = "flux1-dev-a-model-with-a-name-longer-than-any-column-of-a-terminal-would-ever-be.safetensors";
    fs::rename(
        place.path(&deep).join("diffusion_models/one.safetensors"),
        place.path(&deep).join("diffusion_models").join(long),
    )
    .unwrap();
    let model = long.strip_suffix(".safetensors").unwrap();
    for arguments in [&["models", &deep][..], &["models", &deep, "--files"]] {
        let table = place.run(arguments).succeeded().stdout();
        let row = table.lines().find(|line| line.starts_with(model)).unwrap_or_else(|| panic!("{table}"));
        for part in ["text_encoders/c/two.safetensors", "text_encoders/t/three.safetensors", "vae/four.safetensors"] {
            assert!(row.contains(part), "{table}");
        }
        assert!(
            !arguments.contains(&"--files")
                || table.lines().any(|line| line.starts_with(&format!("diffusion_models/{long}")))
        );
        assert_eq!(place.run(arguments).stdout(), table);
    }
}

#[test]
fn the_text_encoders_of_a_model_are_taken_by_its_name() {
    let place = Place::new();
    comfyui(&place, "ComfyUI/models");
    let whole = fixture("generate-flux");
    let embed =
        |more: &[&str]| place.run(&[&["embed", "a cat", "--device", "cpu", "-o", "out.safetensors"], more].concat());
    let made = |more: &[&str]| {
        embed(more).succeeded();
        let bytes = fs::read(place.path("out.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        ["prompt_embeds", "pooled_prompt_embeds"].map(|name| file.tensor(name).unwrap().data().to_vec())
    };
    let by_hand = made(&["--text-encoder", &whole]);
    assert_eq!(made(&["--model", &whole]), by_hand);
    for model in ["ComfyUI", "one", "ComfyUI/models/diffusion_models/one.safetensors"] {
        assert_eq!(made(&["--model", model, "--models", "ComfyUI"]), by_hand, "{model}");
    }
    // A model of which only the encoders are there serves; one without them does not.
    fs::remove_dir_all(place.path("ComfyUI/models/vae")).unwrap();
    made(&["--model", "ComfyUI/models/diffusion_models/one.safetensors"]);
    fs::remove_dir_all(place.path("ComfyUI/models/text_encoders/t")).unwrap();
    embed(&["--model", "ComfyUI/models/diffusion_models/one.safetensors"]).failed(2, "needs a T5 text encoder");
    embed(&["--model", "nothing"]).failed(2, "no model of that name");
    embed(&[]).failed(2, "--text-encoder");
    embed(&["--model", &whole, "--text-encoder", &whole]).failed(2, "--text-encoder");
    // The one that ships, by its name.
    let bundled = root().join("examples/models/flux-shapes").display().to_string();
    assert_eq!(made(&["--model", "flux-shapes"]), made(&["--model", &bundled]));
}
