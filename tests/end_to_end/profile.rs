//! Profiles: where the time goes, by category, operator, layer and part, as a table, as JSON, as a
//! trace and as a page.

use std::{
    collections::BTreeSet,
    fs,
    process::Stdio,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::{
    gpu,
    program::{Place, Run, fixture, smaller},
    video,
};

/// A decode whose tiles are sure to be several.
const TILED: [&str; 8] = ["--policy", "fixed", "--set", "space=blended", "--set", "tile=64", "--set", "overlap=16"];

/// The trace's complete events.
fn slices(place: &Place, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(place.path(name)).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["ph"] == "X").cloned().collect()
}

fn names(slices: &[Value]) -> BTreeSet<String> {
    slices.iter().map(|slice| slice["name"].as_str().unwrap().to_owned()).collect()
}

/// The categories of a profile take all of its stage's time.
fn adds_up(profile: &Value) {
    let stage = profile["stage_ms"].as_f64().unwrap();
    let categories = profile["categories"].as_array().unwrap();
    let all: f64 = categories.iter().map(|row| row["total_ms"].as_f64().unwrap()).sum();
    assert!(stage > 0.0 && (all / stage - 1.0).abs() < 1e-6, "{all} of {stage}: {profile}");
    assert!(profile["unprofiled_ms"].as_f64().unwrap() > 0.0, "{profile}");
    assert!(profile["overhead"].is_f64(), "{profile}");
}

fn parts<'a>(profile: &'a Value, kind: &str) -> Vec<&'a str> {
    let parts = profile["parts"].as_array().unwrap();
    parts.iter().filter(|part| part["part"] == kind).map(|part| part["name"].as_str().unwrap()).collect()
}

/// A prompt that no run has read before.
pub fn unread_prompt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("a red circle on a blue square, number {now} {}", std::process::id())
}

fn decode(place: &Place, inputs: &[String], options: &[&str]) -> Run {
    place.decode(inputs, options)
}

#[test]
fn a_decode_in_tiles_has_a_range_for_each_and_its_output_is_the_same() {
    let place = Place::new();
    let inputs = smaller(&place);
    decode(&place, &inputs, &[&TILED[..], &["-o", "plain.safetensors"]].concat()).succeeded();
    let options = ["-o", "profiled.safetensors", "--profile", "trace.json", "--json"];
    let printed = decode(&place, &inputs, &[&TILED[..], &options].concat()).json();
    assert_eq!(place.sample("plain.safetensors"), place.sample("profiled.safetensors"));
    let profile = &printed["profile"][0];
    adds_up(profile);
    let tiles = printed["estimate"]["tiles"].as_u64().unwrap();
    assert!(tiles > 4, "{tiles}");
    let expected: Vec<String> = (0..tiles).map(|tile| format!("tile {tile}")).collect();
    assert_eq!(parts(profile, "tile"), expected);
    let slices = slices(&place, "trace.json");
    let names = names(&slices);
    for name in expected.iter().map(String::as_str).chain(["decode", "decoder.up_blocks.0.resnets.0"]) {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    let blocks = slices.iter().filter(|slice| slice["name"] == "decoder.mid_block.resnets.0").count() as u64;
    assert_eq!(blocks, tiles, "a block runs once in each tile");
    // The outcome is that of the run without the profiler.
    let (elapsed, unprofiled) = (&printed["outcome"]["elapsed_ms"], &profile["unprofiled_ms"]);
    let apart = elapsed.as_f64().unwrap() - unprofiled.as_f64().unwrap();
    assert!(apart.abs() < 50.0, "{elapsed} {unprofiled}");
}

#[test]
fn operations_have_the_amounts_of_their_shapes() {
    let place = Place::new();
    let set = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32", "--set", "layout=channels-first"];
    let direct = ["--set", "options=convolution=direct", "-o", "out.png", "--profile", "trace.json", "--json"];
    let printed = decode(&place, &smaller(&place), &[&set[..], &direct].concat()).json();
    let row = |name: &str| {
        let rows = printed["profile"][0]["categories"].as_array().unwrap();
        rows.iter().find(|row| row["category"] == name).cloned().unwrap_or_else(|| panic!("{name}: {printed}"))
    };
    // Convolutions of 192×192 pixels by the channels of the bundled model: a count of its weights.
    let convolutions = row("convolution")["operations"].as_f64().unwrap();
    assert!((1e9..1e11).contains(&convolutions), "{convolutions}");
    // One head over 24×24 pixels of 64 channels.
    let tokens = 24.0 * 24.0;
    let channels = row("attention")["operations"].as_f64().unwrap() / (4.0 * tokens * tokens);
    assert_eq!(channels.fract(), 0.0, "{channels} channels");
    assert!(row("convolution")["of_roof"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_sample_has_a_range_for_each_step_and_block() {
    let place = Place::new();
    let at = |name: &str| fixture(&format!("sample-flux-diffusers/{name}"));
    let (transformer, conditioning) = (at("diffusion_pytorch_model.safetensors"), at("conditioning.safetensors"));
    let arguments = [
        "sample",
        "--device",
        "cpu",
        "--transformer",
        &transformer,
        "--conditioning",
        &conditioning,
        "--guidance",
        "3.5",
        "--size",
        "80x96",
        "--steps",
        "3",
        "--seed",
        "20",
        "-o",
        "out.safetensors",
    ];
    place.run(&[&arguments[..], &["-o", "plain.safetensors"]].concat()).failed(2, "-o");
    place.run(&arguments).succeeded();
    fs::rename(place.path("out.safetensors"), place.path("plain.safetensors")).unwrap();
    let printed = place.run(&[&arguments[..], &["--profile", "trace.json", "--json"]].concat()).json();
    let latent = |name: &str| crate::encode::tensor(&place.path(name), "latent");
    assert_eq!(latent("plain.safetensors"), latent("out.safetensors"));
    let profile = &printed["profile"][0];
    adds_up(profile);
    assert_eq!(parts(profile, "step"), ["step 1", "step 2", "step 3"]);
    let blocks: BTreeSet<&str> = parts(profile, "block").into_iter().collect();
    let expected = ["double_blocks.0", "double_blocks.1", "single_blocks.0", "single_blocks.1"];
    assert_eq!(blocks, BTreeSet::from(expected));
    let slices = slices(&place, "trace.json");
    let count = |name: &str| slices.iter().filter(|slice| slice["name"] == name).count();
    assert_eq!(expected.map(count), [3; 4], "a block in each step: a rehearsal leaves no range");
    assert!(count("double_blocks.0.img_attn.qkv") == 3);
    // Layers have the estimates that the price is made of.
    let layers = profile["layers"].as_array().unwrap();
    let priced = layers.iter().filter(|layer| layer["estimated_ms"].as_f64().is_some_and(|ms| ms > 0.0)).count();
    assert!(2 * priced > layers.len(), "{priced} of {}", layers.len());
}

#[test]
fn a_clip_has_a_range_for_each_chunk_and_texts_one_each() {
    let place = Place::new();
    let options = ["--policy", "fixed", "--set", "time=carried", "--set", "chunk=4", "-o", "clip.safetensors"];
    let printed =
        decode(&place, &video::small(), &[&options[..], &["--profile", "page.html", "--json"]].concat()).json();
    let profile = &printed["profile"][0];
    adds_up(profile);
    let chunks = parts(profile, "chunk");
    assert_eq!(chunks.len(), 5, "{chunks:?}");
    let page = fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=\"http") && !page.contains("href=\"http"), "{page}");
    // Conditionings of a prompt that was read before are kept.
    let prompt = unread_prompt();
    let arguments = ["generate", &prompt, "--device", "cpu", "--steps", "1", "-o", "out.png"];
    let printed = place.run(&[&arguments[..], &["--profile", "trace.json", "--json"]].concat()).json();
    let stages: Vec<&str> =
        printed["profile"].as_array().unwrap().iter().map(|of| of["facts"]["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["text", "text", "denoise", "decode"]);
    printed["profile"].as_array().unwrap().iter().for_each(adds_up);
    assert!(names(&slices(&place, "trace.json")).contains("text 0"));
}

#[test]
fn a_contest_shows_where_policies_differ() {
    let place = Place::new();
    let inputs = smaller(&place);
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let options = [
        "--device",
        "cpu",
        "--warmup",
        "0",
        "--iterations",
        "1",
        "--against",
        "none",
        "--policy",
        "fixed:space=whole",
        "--policy",
        "fixed:space=blended,tile=64,overlap=16",
        "--profile",
        "trace.json",
    ];
    let run = place.run(&[&["bench"], &inputs[..], &options].concat());
    let stdout = run.succeeded().stdout();
    assert!(stdout.contains("fixed:space=blended,tile=64,overlap=16 against fixed:space=whole:"), "{stdout}");
    assert!(names(&slices(&place, "trace.json")).contains("tile 0"));
    let printed = place.run(&[&["bench"], &inputs[..], &options, &["--json"]].concat()).json();
    for row in printed["runs"].as_array().unwrap() {
        adds_up(&row["profile"]);
    }
}

#[test]
fn estimates_are_compared_layer_by_layer() {
    let place = Place::new();
    let at = |name: &str| fixture(&format!("sample-flux-diffusers/{name}"));
    let transformer = at("diffusion_pytorch_model.safetensors");
    let [latent, _, vae] = smaller(&place);
    let printed = place
        .run(&[
            "bench",
            "estimates",
            &latent,
            "--vae",
            &vae,
            "--transformer",
            &transformer,
            "--size",
            "80x96",
            "--device",
            "cpu",
            "--json",
        ])
        .json();
    let stages = printed.as_array().unwrap();
    assert_eq!(stages.len(), 2, "{printed}");
    for stage in stages {
        let rows = stage["rows"].as_array().unwrap();
        assert!(stage["ratio"].as_f64().unwrap() > 0.0 && rows.len() > 10, "{stage}");
        let off = |row: &Value| (row["estimated_ms"].as_f64().unwrap() - row["measured_ms"].as_f64().unwrap()).abs();
        assert!(rows.windows(2).all(|pair| off(&pair[0]) >= off(&pair[1])), "the greatest difference is first");
    }
    place.run(&["bench", "estimates"]).failed(2, "give LATENT and --vae");
}

#[test]
fn a_gpu_has_its_kernels_on_their_streams() {
    let place = Place::new();
    let inputs = smaller(&place);
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let options = ["--device", "cuda", "-o", "out.safetensors", "--profile", "trace.json", "--json"];
    let arguments = [&["decode"], &inputs[..], &TILED, &options].concat();
    let run = Run(gpu::command(&place, "devices=1;memory=1073741824", &arguments).output().unwrap());
    let printed = run.json();
    let profile = &printed["profile"][0];
    adds_up(profile);
    assert!(!profile["kernels"].as_array().unwrap().is_empty(), "{profile}");
    let tiles = printed["estimate"]["tiles"].as_u64().unwrap() as usize;
    assert_eq!(parts(profile, "tile").len(), tiles);
    let text = fs::read_to_string(place.path("trace.json")).unwrap();
    assert!(text.contains("GPU 0 stream"), "streams have names");
    let flows = text.matches(r#""ph":"f""#).count();
    assert!(flows > 100, "{flows} kernels are tied to their operators");
}

#[test]
fn what_can_t_be_profiled_is_refused() {
    let place = Place::new();
    let inputs = smaller(&place);
    let refused = |options: &[&str], words: &str| decode(&place, &inputs, options).failed(2, words);
    refused(&["-o", "out.png", "--profile", "trace.json", "--dry-run"], "--profile and --dry-run");
    refused(&["-o", "out.png", "--profile", "out.png"], "--profile");
    refused(&["-o", "out.png", "--profile", "-"], "--profile -");
    refused(&["-o", "out.png", "--profile", "nowhere/trace.json"], "nowhere");
    assert_eq!(place.files(), ["middle.safetensors"]);
    // Nobody reads the tables, and the file is there.
    let mut unread = place.command(&[
        "decode",
        &inputs[0],
        &inputs[1],
        &inputs[2],
        "--device",
        "cpu",
        "-o",
        "out.png",
        "--profile",
        "unread.json",
    ]);
    let mut unread = unread.stdout(Stdio::piped()).spawn().unwrap();
    drop(unread.stdout.take());
    unread.wait().unwrap();
    assert!(fs::metadata(place.path("unread.json")).unwrap().len() > 0);
    // A failure leaves no trace.
    decode(
        &place,
        &[inputs[0].clone(), "--vae".into(), "missing".into()],
        &["-o", "out.png", "--profile", "trace.json"],
    )
    .failed(2, "missing");
    assert!(!place.path("trace.json").exists());
}
