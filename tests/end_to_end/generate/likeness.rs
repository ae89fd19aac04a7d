//! Pictures made again like others: the model is found, wherever it lies, and what differs is said.

use super::*;

fn pixels(place: &Place, name: &str) -> Vec<u8> {
    image::open(place.path(name)).unwrap().into_rgb8().into_raw()
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &name);
        } else {
            fs::copy(&path, &name).unwrap();
        }
    }
}

/// The bundled model of pictures stays the model, though its pictures have one frame, as a clip's
/// stills have.
#[test]
fn a_picture_of_the_bundled_model_is_made_again_by_it() {
    let place = Place::new();
    let words = ["generate", "a red circle on a blue square", "--steps", "2", "--device", "cpu", "--seed", "random"];
    let first = place.run(&[&words[..], &["-o", "a.png"]].concat());
    let drawn = first.succeeded().stderr();
    let drawn = drawn.lines().find_map(|line| line.strip_prefix("note: --seed ")?.split(',').next()).unwrap();
    let again = place.run(&["generate", "--like", "a.png", "-o", "b.png", "--device", "cpu"]);
    again.succeeded();
    assert!(again.stderr().contains("model: flux-shapes ("), "{}", again.stderr());
    assert!(!again.stderr().contains("in place of"), "{}", again.stderr());
    assert!(pixels(&place, "a.png") == pixels(&place, "b.png"));
    let told = place.run(&["inspect", "b.png", "--json"]).json();
    let told = &told["parameters"];
    assert_eq!(told["seed"].to_string(), drawn);
    assert_eq!((&told["model"], &told["prompt"]), (&"flux-shapes".into(), &"a red circle on a blue square".into()));
    assert_eq!((&told["size"], &told["steps"], &told["cfg"]), (&"128x128".into(), &2.into(), &2.0.into()));
    let text = place.run(&["inspect", "b.png"]).succeeded().stdout();
    for words in ["a red circle on a blue square", drawn, "flux-shapes/transformer (sampled:", "euler", "simple"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // One frame is a picture, and several are a clip.
    for (frames, size) in [("1", 128), ("5", 64)] {
        let run =
            place.run(&["generate", "a circle", "--frames", frames, "--dry-run", "--json", "-o", "c.webp"]).json();
        assert_eq!((&run["settings"]["width"], &run["settings"]["steps"]), (&size.into(), &12.into()));
        let stages: Vec<&Value> = run["stages"].as_array().unwrap().iter().map(|stage| &stage["stage"]).collect();
        assert_eq!(stages[stages.len() - 2..], ["denoise", "decode"]);
        assert_eq!(run["outputs"], serde_json::json!([]));
    }
    assert!(!place.path("c.webp").exists());
}

#[test]
fn a_clip_is_made_again_by_the_model_of_clips() {
    let place = Place::new();
    let words =
        ["generate", "a red circle", "--model", "wan-shapes", "--steps", "1", "--frames", "5", "--device", "cpu"];
    place.run(&[&words[..], &["-o", "a.webp"]].concat()).succeeded();
    place.run(&["generate", "--like", "a.webp", "-o", "b.webp", "--device", "cpu"]).succeeded();
    assert!(fs::read(place.path("a.webp")).unwrap() == fs::read(place.path("b.webp")).unwrap());
    let told = place.run(&["inspect", "b.webp", "--json"]).json();
    assert_eq!((&told["parameters"]["frames"], &told["parameters"]["fps"]), (&5.into(), &"16".into()));
}

#[test]
fn a_model_is_known_by_its_contents_and_what_differs_is_said() {
    let place = Place::new();
    let source = fixture("generate-flux");
    let words = ["generate", "a red circle", "--size", "48x32", "--steps", "2", "--device", "cpu", "--seed", "5"];
    place.write("style.safetensors", lora(0.3));
    place
        .run(&[&words[..], &["--model", &source, "--lora", "style.safetensors:0.5", "-o", "a.png"]].concat())
        .succeeded();
    let like =
        |more: &[&str]| place.run(&[&["generate", "--like", "a.png", "--device", "cpu", "-o", "b.png"], more].concat());
    // Neither a model of that name nor its contents are anywhere.
    like(&[])
        .failed(2, "generate-flux: no model of that name or with its transformer (generate-flux/transformer, sampled:");
    assert!(!place.path("b.png").exists());
    // Under another name, in another folder, with its LoRA under another name, too.
    copy(Path::new(&source), &place.path("models/mine"));
    fs::create_dir(place.path("models/loras")).unwrap();
    fs::rename(place.path("style.safetensors"), place.path("models/loras/renamed.safetensors")).unwrap();
    let found = like(&["--models", "models"]);
    found.succeeded();
    assert!(found.stderr().contains("model: mine ("), "{}", found.stderr());
    assert!(!found.stderr().contains("in place of"), "{}", found.stderr());
    assert!(pixels(&place, "a.png") == pixels(&place, "b.png"));
    // A value that is given counts, and is said.
    let other = like(&["--models", "models", "--seed", "7", "--guidance", "2"]);
    other.succeeded();
    let words = other.stderr();
    assert!(words.contains("note: a.png: --seed 7 in place of its 5"), "{words}");
    assert!(words.contains("note: a.png: --guidance 2, which it did not have"), "{words}");
    assert!(pixels(&place, "a.png") != pixels(&place, "b.png"));
    // The LoRA is gone, and the VAE is another.
    fs::remove_file(place.path("models/loras/renamed.safetensors")).unwrap();
    let vae = place.path("models/mine/vae/diffusion_pytorch_model.safetensors");
    let mut bytes = fs::read(&vae).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&vae, bytes).unwrap();
    let changed = like(&["--models", "models"]);
    changed.succeeded();
    let words = changed.stderr();
    assert!(words.contains("warning: a.png: made without its LoRA style.safetensors:0.5 (sampled:"), "{words}");
    assert!(words.contains("note: a.png: VAE mine/vae (sampled:"), "{words}");
    assert!(words.contains("in place of its generate-flux/vae (sampled:"), "{words}");
}

#[test]
fn a_picture_goes_to_standard_output_as_the_help_says() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let words = ["generate", "a cat", "--model", &model, "--size", "32x32", "--steps", "1", "--device", "cpu"];
    let run = place.run(&[&words[..], &["-o", "-"]].concat());
    run.succeeded();
    let shown = image::load_from_memory(&run.0.stdout).unwrap().into_rgb8();
    place.run(&[&words[..], &["-o", "file.png"]].concat()).succeeded();
    assert!(shown.into_raw() == pixels(&place, "file.png"));
    assert!(run.stderr().contains("denoise"), "{}", run.stderr());
    assert_eq!(place.files(), ["file.png"]);
    for (more, why) in [(["--json"], "-o - and --json"), (["--resume"], "-o - and --resume")] {
        place.run(&[&words[..], &["-o", "-"], &more].concat()).failed(2, why);
    }
}

#[test]
fn words_that_other_programs_obey_are_named_once() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let words = ["--model", &model, "--size", "32x32", "--steps", "1", "--device", "cpu", "-o", "out.png"];
    let prompt = "a cat <lora:style:0.8> BREAK {red|blue}, embedding:none embedding:none";
    let run = place.run(&[&["generate", prompt, "--cfg", "2", "--negative", "BREAK"], &words[..]].concat());
    run.succeeded();
    let lines = run.stderr();
    for words in
        ["the prompt's <lora:style:0.8> is words", "the prompt's BREAK is words", "the prompt's {red|blue} is words"]
    {
        assert_eq!(lines.matches(words).count(), 1, "{words}: {lines}");
    }
    assert_eq!(lines.matches("warning: embedding: is read as words").count(), 1, "{lines}");
    place.run(&[&["generate", "a cat", "--reuse", "7"], &words[..]].concat()).failed(2, "error: --reuse: a reuse of 7");
    let mut small = words;
    small[3] = "33x32";
    place.run(&[&["generate", "a cat"], &small[..]].concat()).failed(2, "error: --size: a size of 33×32");
    place.run(&[&["generate", "a cat", "--frames", "9"], &words[..]].concat()).failed(2, "error: --frames: 9 frames");
}
