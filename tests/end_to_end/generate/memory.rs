//! Conditionings that are kept, and memory that each stage lets go.

use super::*;

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

#[test]
fn a_weight_beyond_numbers_is_named_and_nothing_of_it_is_kept() {
    let place = Place::new();
    let mut base = with(&arguments("generate-flux", &cases("generate-flux")[0]), &["--as", "comfyui", "-o", "out.png"]);
    base.retain(|word| word != "diffusers");
    let at = base.iter().position(|word| word == "--as").unwrap();
    base.remove(at);
    let prompt = fresh_prompt();
    for (weight, shown) in [("1e38", "1e38"), ("-3.0e38", "-3e38"), ("1e20", "1e20")] {
        base[1] = format!("a (é:1.2) (cat:{weight}), {prompt}");
        // The second time, too: nothing of the first one was kept.
        for _ in 0..2 {
            let words = format!("the prompt's weight {shown} of \"cat\", at character 12, is too large");
            let run = place.run(&base);
            run.failed(2, &words);
            assert!(!run.stderr().contains("conditioning"), "{}", run.stderr());
        }
    }
    let model = fixture("generate-flux");
    let words = ["embed", "(cat:1e38)", "--text-encoder", &model, "--device", "cpu", "-o", "out.safetensors"];
    place.run(&words).failed(2, "the prompt's weight 1e38 of \"cat\", at character 2, is too large");
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_prompt_that_is_too_long_is_said_with_what_fits() {
    let place = Place::new();
    let model = fixture("generate-flux");
    let prompt = format!("{} {}", "red fox, ".repeat(9000), fresh_prompt());
    let generate = ["generate", &*prompt, "--model", &model, "--size", "32x32", "--steps", "1", "-o", "out.png"];
    let embed = ["embed", &*prompt, "--text-encoder", &model, "-o", "out.safetensors"];
    for words in [&generate[..], &embed] {
        for dry_run in [&["--dry-run"][..], &[]] {
            let run = place.run(&[words, &["--device", "cpu", "--memory-limit", "256MiB"], dry_run].concat());
            run.failed(2, "the prompt is too long: it has ");
            assert!(run.stderr().contains(" fit into a memory limit of 256 MiB; shorten it"), "{}", run.stderr());
        }
    }
    assert_eq!(place.files(), [""; 0]);
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
    for name in ["generate-flux", "generate-wan", "flux-shapes", "wan-shapes"] {
        let is_bundled = name.ends_with("-shapes");
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
        assert!((0.95..1.05).contains(&(peak / most("estimate"))), "{name}: {peak} {}", most("estimate"));
        let sum: u64 = all.iter().map(|stage| bytes(stage, "outcome")).sum();
        assert!(peak < 0.9 * sum as f64, "{name}: {peak} of {sum}");
        // A conditioning and a latent, and no weights, of which the bundled encoders have 1.5 and 1
        // MB. WAN's conditionings have 512 tokens each, and there are two of them.
        let (held, encoder_bytes) = match name {
            "generate-wan" => (150_000, 0),
            "flux-shapes" => (100_000, 1_500_000),
            "wan-shapes" => (100_000, 1_000_000),
            _ => (100_000, 0),
        };
        for before in run["memory"]["in_use_before"].as_array().unwrap() {
            assert!(before["bytes"].as_u64().unwrap() < held, "{name}: {before}");
        }
        let encoders = stages(&run, "text").into_iter().map(|stage| bytes(stage, "outcome")).sum::<u64>();
        assert!(encoders > encoder_bytes, "{name}: {encoders}");
    }
}
