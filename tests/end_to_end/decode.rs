//! Decoding: agreement with the references, what is written, what is recorded.

use std::{fs, process::Stdio};

use serde_json::Value;

use crate::program::{Place, bundled, decibels, fixture, largest_difference, latent, root, sample, smaller, texts};

const RAW_F32: [&str; 6] = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32"];

fn cases(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&fs::read_to_string(fixture("cases.json")).unwrap()).unwrap();
    all[kind].as_array().unwrap().clone()
}

#[test]
fn work_goes_on_when_nobody_reads_what_is_told() {
    let place = Place::new();
    let [latent, vae, model] = smaller(&place);
    let plan = ["--policy", "fixed", "--set", "space=blended", "--set", "tile=112", "-o", "out.png", "-vvv"];
    let arguments = [&["decode", &latent, &vae, &model, "--device", "cpu"][..], &plan].concat();
    let mut program = place.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(program.stderr.take());
    assert!(program.wait().unwrap().success());
    assert_eq!(place.files(), ["middle.safetensors", "out.png"]);
}

#[test]
fn every_layout_agrees_with_diffusers() {
    for case in cases("cases") {
        let name = case["name"].as_str().unwrap();
        let text = |key: &str| fixture(case[key].as_str().unwrap());
        let place = Place::new();
        let mut options = RAW_F32.to_vec();
        options.extend(["-o", "raw.safetensors"]);
        if case["scaled"].as_bool().unwrap() {
            options.push("--scaled");
        }
        let tensor = case["tensor"].as_str().unwrap();
        if case["tensors"].as_u64().unwrap() > 1 {
            options.extend(["--tensor", tensor]);
        }
        place.decode(&[text("latent"), "--vae".into(), text("vae")], &options).succeeded();
        let (shape, found) = place.sample("raw.safetensors");
        let (expected_shape, expected) = sample(fixture(case["reference"].as_str().unwrap()).as_ref());
        assert_eq!(shape, expected_shape, "{name}");
        let tolerance = 1e-4 * expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        let difference = largest_difference(&found, &expected);
        assert!(difference <= tolerance, "{name}: {difference} > {tolerance}");
    }
}

#[test]
fn the_bundled_picture_is_the_photograph() {
    let place = Place::new();
    let run = place.decode(
        &bundled(),
        &["-o", "out.png", "--record", "records.jsonl", "--explain", "--explain-image", "tiles.png"],
    );
    run.succeeded();
    assert_eq!(place.files(), ["out.png", "records.jsonl", "tiles.png"]);
    let pixels = |path: std::path::PathBuf| {
        let picture = image::open(path).unwrap().to_rgb8();
        let size = picture.dimensions();
        (size, picture.into_raw().into_iter().map(|value| f32::from(value) / 127.5 - 1.0).collect::<Vec<_>>())
    };
    let (size, found) = pixels(place.path("out.png"));
    let (_, photograph) = pixels(root().join("examples/latents/astronaut.png"));
    assert_eq!(size, (512, 512));
    assert!(decibels(&found, &photograph) > 24.0, "{} dB", decibels(&found, &photograph));

    let texts = texts(&place.path("out.png"));
    for name in ["prompt", "workflow", "tilewright"] {
        let text: Value = serde_json::from_str(&texts[name]).unwrap();
        assert!(text.is_object(), "{name}");
    }
    let record: Value = serde_json::from_str(&fs::read_to_string(place.path("records.jsonl")).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&texts["tilewright"]).unwrap(), record);
    assert_eq!(record["policy"]["name"], "adaptive");
    assert!(run.stdout().contains("considered"), "{}", run.stdout());
}

#[test]
fn sixteen_bit_decodes_stay_near_f32() {
    let place = Place::new();
    let smaller = smaller(&place);
    let raw = |precision: &str| {
        let precision = format!("precision={precision}");
        let name = "raw.safetensors";
        place.decode(&smaller, &["--policy", "fixed", "--set", &precision, "-o", name]).succeeded();
        place.sample(name).1
    };
    let single = raw("f32");
    let half = decibels(&raw("bf16"), &single);
    let mixed = decibels(&raw("mixed-bf16"), &single);
    println!("bf16 {half:.1} dB, mixed bf16 {mixed:.1} dB");
    assert!(half > 30.0, "bf16 {half} dB");
    assert!(mixed > 40.0, "mixed {mixed} dB");
}

#[test]
fn a_tight_limit_ends_in_a_picture_within_it() {
    let place = Place::new();
    let smaller = smaller(&place);
    let free = place.decode(&smaller, &["--json", "-o", "a.png", "--policy", "fixed", "--set", "space=whole"]).json();
    let whole = free["outcome"]["peak_bytes"].as_u64().unwrap();
    let limit = whole / 3;
    for policy in ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"] {
        let record = place
            .decode(&smaller, &["--json", "-o", "b.png", "--policy", policy, "--memory-limit", &limit.to_string()])
            .json();
        let outcome = &record["outcome"];
        assert!(outcome["peak_bytes"].as_u64().unwrap() <= limit, "{policy}: {record}");
        assert!(place.path("b.png").is_file());
        fs::remove_file(place.path("b.png")).unwrap();
    }
}

#[test]
fn a_dry_run_decides_and_decodes_nothing() {
    let place = Place::new();
    let record = place.decode(&bundled(), &["--dry-run", "--json", "-o", "never.png"]).json();
    assert_eq!(record["outcome"], Value::Null);
    assert!(record["estimate"]["peak_bytes"].as_u64().unwrap() > 0);
    assert!(place.files().is_empty());
}

#[test]
fn records_follow_the_published_schema() {
    let schema = fs::read_to_string(root().join("host/plan/record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let place = Place::new();
    let smaller = smaller(&place);
    for policy in ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"] {
        place.decode(&smaller, &["--policy", policy, "--dry-run", "--json"]).json();
        let record = place.decode(&smaller, &["--policy", policy, "--json", "-o", "x.jpg"]).json();
        let errors: Vec<String> = schema.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{policy}: {errors:?}");
    }
}

#[test]
fn the_same_request_gets_the_same_answer_for_the_same_fuel() {
    let place = Place::new();
    let once = || {
        let record = place
            .decode(&bundled(), &["--dry-run", "--json", "--policy", "diffusers", "--memory-limit", "1GiB"])
            .json();
        (record["answer"].clone(), record["fuel"].clone())
    };
    assert_eq!(once(), once());
}

#[test]
fn a_batch_becomes_numbered_files_or_one_raw_file() {
    let place = Place::new();
    let inputs = [
        fixture("sd15-diffusers/latent.safetensors"),
        "--vae".into(),
        fixture("sd15-diffusers/diffusion_pytorch_model.safetensors"),
    ];
    place.decode(&inputs, &["-o", "cat.webp"]).succeeded();
    place.decode(&inputs, &["-o", "cat.safetensors"]).succeeded();
    assert_eq!(place.files(), ["cat-01.webp", "cat-02.webp", "cat-03.webp", "cat.safetensors"]);
    assert_eq!(place.sample("cat.safetensors").0, [3, 3, 34, 46]);
}

#[test]
fn what_an_answer_asks_too_much_of_is_clamped_and_said() {
    let place = Place::new();
    let settings = ["--policy", "fixed", "--set", "space=blended", "--set", "tile=128", "--set", "overlap=100"];
    let record = place.decode(&smaller(&place), &[&settings[..], &["--json", "-o", "x.png"]].concat()).json();
    assert_eq!(record["answer"]["space"]["overlap"], 100);
    assert_eq!(record["plan"]["space"]["overlap"], 32);
    assert_eq!(record["adjusted"], serde_json::json!(["overlap 100 → 32: at most a quarter of the tile"]));
}

#[test]
fn exact_tiles_give_the_whole_picture() {
    let place = Place::new();
    let smaller = smaller(&place);
    let decode = |space: &str, output: &str| {
        let space = format!("space={space}");
        let settings = [
            "--policy",
            "fixed",
            "--set",
            &space,
            "--set",
            "tile=64",
            "--set",
            "overlap=0",
            "--set",
            "layout=channels-last",
        ];
        let record = place.decode(&smaller, &[&settings[..], &["--json", "-o", output]].concat()).json();
        (record["outcome"]["peak_bytes"].as_u64().unwrap(), record, place.sample(output).1)
    };
    let (whole_bytes, _, whole) = decode("whole", "whole.safetensors");
    let (exact_bytes, record, exact) = decode("exact", "exact.safetensors");
    assert_eq!(record["plan"]["space"], serde_json::json!({"kind": "exact", "height": 64, "width": 192, "overlap": 0}));
    assert_eq!(record["adjusted"], serde_json::json!(["tile width 64 → 192: exact tiles span the picture"]));
    assert!(exact_bytes <= whole_bytes, "{exact_bytes} against {whole_bytes}");
    let difference = whole.iter().zip(&exact).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-4, "{difference}");
}

#[test]
fn a_third_of_what_whole_needs_still_ends_in_a_picture() {
    let place = Place::new();
    let smaller = smaller(&place);
    let whole = place.decode(&smaller, &["--policy", "fixed", "--json", "-o", "whole.png"]).json();
    let limit = whole["outcome"]["peak_bytes"].as_u64().unwrap() / 3;
    for objective in ["fastest", "balanced", "leanest"] {
        let limited = limit.to_string();
        let options =
            ["--memory-limit", &limited, "--objective", objective, "--no-history", "--json", "-o", "small.png"];
        let record = place.decode(&smaller, &options).json();
        let held = record["outcome"]["peak_bytes"].as_u64().unwrap();
        assert!(held <= limit, "{objective}: {held} held of {limit}");
        let picture = image::open(place.path("small.png")).unwrap().to_rgb8();
        assert_eq!(picture.dimensions(), (192, 192));
    }
}

#[test]
fn blended_tiles_are_decided_where_they_are_allowed_or_nothing_exact_fits() {
    let place = Place::new();
    let decide = |options: &[&str]| {
        let record = place.decode(&bundled(), &[&["--dry-run", "--json", "--no-history"], options].concat()).json();
        let bytes = record["estimate"]["peak_bytes"].as_u64().unwrap();
        (record["plan"]["space"]["kind"].as_str().unwrap().to_owned(), bytes, record)
    };
    let held = |space: &str, layout: &str| {
        let settings = ["--policy", "fixed", "--set", "tile=64", "--set", space, "--set", layout];
        decide(&settings).1
    };
    let layouts = ["layout=channels-first", "layout=channels-last"];
    let whole = layouts.map(|layout| held("space=whole", layout)).into_iter().max().unwrap();
    let exact = layouts.map(|layout| held("space=whole", layout).min(held("space=exact", layout)));
    let least = exact.into_iter().min().unwrap();
    for objective in ["fastest", "balanced", "leanest"] {
        let within = |limit: u64, more: &[&str]| {
            let limit = limit.to_string();
            let options = ["--objective", objective, "--memory-limit", &limit, "--set", "precision=f32"];
            let (kind, held, record) = decide(&[&options[..], more].concat());
            assert!(held <= limit.parse().unwrap(), "{record}");
            (kind, record)
        };
        // As much room as 18 GiB are for a picture that takes 4.5 GiB.
        for limit in [4 * whole, whole, least + least / 50] {
            let (kind, record) = within(limit, &[]);
            assert_ne!(kind, "blended", "{objective} within {limit}: {record}");
            assert_eq!(record["request"]["allows_blended"], false);
        }
        let (kind, record) = within(least - least / 20, &[]);
        assert_eq!(kind, "blended", "{objective}, where nothing exact fits: {record}");
        assert!(record["plan"]["reason"].as_str().unwrap().contains("nothing exact fits"), "{record}");
    }
    let leanest = ["--objective", "leanest", "--set", "precision=f32"];
    let (kind, _, record) = decide(&[&leanest[..], &["--allow", "blended"]].concat());
    assert_eq!((kind.as_str(), &record["request"]["allows_blended"]), ("blended", &Value::Bool(true)), "{record}");
    // Policies that tile by their own rules are held to it.
    let tiling: [(&str, &[&str]); 2] =
        [("comfyui", &["--set", "tiled=true", "--set", "tile=128"]), ("diffusers", &["--set", "sample-size=256"])];
    for (policy, settings) in tiling {
        let options = [&["--policy", policy], settings].concat();
        let (kind, _, record) = decide(&options);
        assert_ne!(kind, "blended", "{policy}: {record}");
        let (kind, _, record) = decide(&[&options[..], &["--allow", "blended"]].concat());
        assert_eq!(kind, "blended", "{policy}: {record}");
    }
    // A setting that names it is enough.
    let (kind, _, record) = decide(&["--policy", "fixed", "--set", "space=blended", "--set", "tile=256"]);
    assert_eq!((kind.as_str(), record["adjusted"].as_array().unwrap().len()), ("blended", 0), "{record}");
    for wrong in ["tiles", "reuse=0.2", ""] {
        place.decode(&bundled(), &["--dry-run", "--allow", wrong]).failed(2, "expected blended");
    }
}

#[test]
fn sixteen_bit_overflow_is_decoded_again_in_a_wider_type() {
    // Latents far outside what the model was trained on: f16 overflows, f32 does not.
    let place = Place::new();
    let file = place.write("loud.safetensors", latent(&[1, 16, 8, 8], 3.0e7));
    let [_, vae, path] = bundled();
    let record = place
        .decode(&[file, vae, path], &["--policy", "fixed", "--set", "precision=f16", "--json", "-o", "x.png"])
        .json();
    assert_eq!(record["attempts"][0]["failure"]["kind"], "non-finite", "{record}");
    assert!(record["attempts"][0]["failure"]["values"].as_u64().unwrap() > 0);
    assert_eq!(record["outcome"]["attempts"], record["attempts"].as_array().unwrap().len() + 1);
}

#[test]
fn a_memory_limit_says_if_it_counts_the_weights() {
    let place = Place::new();
    let smaller = smaller(&place);
    let decode = |limit: &[&str]| {
        let whole = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32", "--no-history"];
        let options = [&whole[..], limit, &["--json", "-o", "x.png"]].concat();
        let record = place.decode(&smaller, &options).json();
        let bytes = |of: &str| record[of]["peak_bytes"].as_u64().unwrap();
        (bytes("estimate"), bytes("outcome"), record)
    };
    let (aside_estimate, aside, record) = decode(&[]);
    assert!(record["request"].get("limit_counts_weights").is_none(), "{record}");
    let (within_estimate, within, record) = decode(&["--count-weights"]);
    assert_eq!(record["request"]["limit_counts_weights"], true);
    let weights = within_estimate - aside_estimate;
    assert!(weights >= record["request"]["model"]["parameter_bytes"].as_u64().unwrap(), "{weights}");
    assert!(within.abs_diff(aside + weights) < aside / 50, "{within}, {aside} and {weights}");
    // A limit that the rest alone keeps within: with the weights, the whole picture does not fit in
    // f32.
    let limit = (aside + weights / 2).to_string();
    let (.., record) = decode(&["--memory-limit", &limit]);
    assert_eq!(record["attempts"], serde_json::json!([]));
    let options = ["--memory-limit", &limit, "--count-weights", "--no-history", "--json", "-o", "x.png"];
    let record = place.decode(&smaller, &options).json();
    let plan = &record["plan"];
    assert!(plan["space"]["kind"] != "whole" || plan["precision"] != "f32", "{record}");
    assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() <= limit.parse().unwrap(), "{record}");

    let table = |options: &[&str]| {
        let run = place.decode(&smaller, &[options, &["--dry-run", "-o", "y.png"]].concat());
        run.succeeded();
        run.stdout() + &run.stderr()
    };
    assert!(table(&[]).contains(", weights aside\n") && table(&["--count-weights"]).contains(", weights included\n"));
    let run = place.decode(&smaller, &["--memory-limit", "1MiB", "--count-weights", "-o", "y.png"]);
    run.failed(2, ", weights included (tiles of");
}
