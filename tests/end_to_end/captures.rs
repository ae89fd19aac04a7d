//! Captures: stages that are run again to the same bits, weights that were changed, folders that
//! are whole or not there, and reports without secrets.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::Value;
use tilewright_capture::{Captured, Manifest};
use tilewright_files::digest;

use crate::{
    profile::unread_prompt,
    program::{Place, Run, bundled, fixture, root, smaller},
    video,
};

fn decode(place: &Place, inputs: &[String], options: &[&str]) -> Run {
    place.decode(inputs, &[&["-o", "out.safetensors", "--capture", "captured"], options].concat())
}

/// The stages of a replay.
fn replay(place: &Place, options: &[&str]) -> Vec<Value> {
    let run = place.run(&[&["replay", "captured", "--device", "cpu", "--json"], options].concat());
    let report: Value = serde_json::from_str(&run.stdout()).unwrap_or_else(|error| panic!("{error}: {}", run.stderr()));
    report["stages"].as_array().unwrap().clone()
}

/// Every stage was replayed to the same bits.
fn is_same(place: &Place, stages: &[&str]) {
    let replayed = replay(place, &[]);
    let found: Vec<&str> = replayed.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert_eq!(found, stages);
    for stage in &replayed {
        assert_eq!(stage["is_same"], true, "{stage}");
        assert!(!stage["outputs"].as_array().unwrap().is_empty(), "{stage}");
    }
}

#[test]
fn the_stages_of_a_prompt_replay_to_the_same_bits() {
    let place = Place::new();
    let prompt = unread_prompt();
    let prompt = ["generate", &prompt, "--device", "cpu", "--steps", "2", "-o", "out.png"];
    place.run(&[&prompt[..], &["--capture", "captured", "--capture-prompts"]].concat()).succeeded();
    is_same(&place, &["text", "text", "denoise", "decode"]);
}

#[test]
fn pictures_and_clips_replay_to_the_same_bits_in_either_direction() {
    let photograph = root().join("examples/latents/astronaut.png").display().to_string();
    let [_, _, vae] = bundled();
    let place = Place::new();
    let encode = ["encode", &photograph, "--vae", &vae, "--device", "cpu", "-o", "out.latent", "--capture", "captured"];
    place.run(&encode).succeeded();
    is_same(&place, &["encode"]);
    let place = Place::new();
    let chunks = ["--policy", "fixed", "--set", "time=carried", "--set", "chunk=4"];
    decode(&place, &video::small(), &chunks).succeeded();
    is_same(&place, &["decode"]);
    // Another plan delivers other chunks of the same frames.
    let whole = replay(&place, &["--policy", "fixed", "--set", "time=whole"]);
    let output = &whole[0]["outputs"][0];
    assert_eq!(output["captured_shape"], output["shape"], "{output}");
    assert_ne!(whole[0]["plan"], whole[0]["captured_plan"]);
    let clip = fixture("encode-wan21-original-5/picture.safetensors");
    let place = Place::new();
    let model = fixture("wan21-original/Wan2.1_VAE.safetensors");
    if Path::new(&clip).exists() {
        place
            .run(&["encode", &clip, "--vae", &model, "--device", "cpu", "-o", "out.latent", "--capture", "captured"])
            .succeeded();
        is_same(&place, &["encode"]);
    }
}

/// A copy of a file of tensors, in which one tensor's first value is another.
fn changed(place: &Place, file: &str, tensor: &str) -> String {
    let mut bytes = fs::read(file).unwrap();
    let start = {
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        8 + header + metadata.info(tensor).unwrap_or_else(|| panic!("{tensor}")).data_offsets.0
    };
    let value = f32::from_le_bytes(bytes[start..start + 4].try_into().unwrap());
    bytes[start..start + 4].copy_from_slice(&(value + 0.5).to_le_bytes());
    place.write("changed.safetensors", bytes)
}

/// The first layer that differs when a changed file takes a captured one's place.
fn first_difference(place: &Place, option: &str, file: &str) -> (String, String) {
    let stages = replay(place, &[option, file]);
    assert_eq!(stages[0]["is_same"], false, "{}", stages[0]);
    let first = &stages[0]["layers"]["first"];
    (first["layer"].as_str().unwrap_or_else(|| panic!("{}", stages[0])).into(), first["end"].as_str().unwrap().into())
}

#[test]
fn a_changed_weight_is_found_at_its_layer() {
    let place = Place::new();
    let vae = fixture("flux-diffusers/diffusion_pytorch_model.safetensors");
    let latent = fixture("flux-diffusers/latent.safetensors");
    let inputs = [latent, "--vae".to_owned(), vae.clone()];
    decode(&place, &inputs, &["--capture-layers", "**"]).succeeded();
    is_same(&place, &["decode"]);
    fs::copy(Path::new(&vae).with_file_name("config.json"), place.path("config.json")).unwrap();
    for layer in [
        "decoder.conv_in",
        "decoder.up_blocks.0.resnets.0.conv1",
        "decoder.up_blocks.1.resnets.1.conv2",
        "decoder.mid_block.resnets.1.conv1",
    ] {
        let file = changed(&place, &vae, &format!("{layer}.weight"));
        assert_eq!(first_difference(&place, "--vae", &file), (layer.to_owned(), "out".to_owned()));
    }
    let place = Place::new();
    let at = |name: &str| fixture(&format!("sample-flux-diffusers/{name}"));
    let transformer = at("diffusion_pytorch_model.safetensors");
    let arguments = [
        "sample",
        "--device",
        "cpu",
        "--transformer",
        &transformer,
        "--conditioning",
        &at("conditioning.safetensors"),
        "--guidance",
        "3.5",
        "--size",
        "80x96",
        "--steps",
        "2",
        "-o",
        "out.safetensors",
        "--capture",
        "captured",
        "--capture-layers",
        "**",
    ];
    place.run(&arguments).succeeded();
    is_same(&place, &["denoise"]);
    fs::copy(at("config.json"), place.path("config.json")).unwrap();
    // diffusers' names of the second block's, and the layer that they are part of.
    let file = changed(&place, &transformer, "single_transformer_blocks.1.proj_out.weight");
    let (layer, end) = first_difference(&place, "--transformer", &file);
    assert_eq!((layer.as_str(), end.as_str()), ("single_blocks.1.linear2", "out"));
}

/// Everything in a folder, and what its owner alone may do with it.
fn contents(folder: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700, "{}", folder.display());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            contents(&path, found);
            continue;
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        found.push((path.display().to_string(), fs::read(&path).unwrap()));
    }
}

fn has(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

#[test]
fn prompts_stay_out_of_captures_and_names_out_of_reports() {
    let place = Place::new();
    let prompt = format!("a purple elephant, {}", unread_prompt());
    let options = ["--device", "cpu", "--steps", "1", "-o", "my-secret-picture.png", "--capture", "captured"];
    place.run(&[&["generate", &prompt], &options[..]].concat()).succeeded();
    let mut files = Vec::new();
    contents(&place.path("captured"), &mut files);
    assert!(files.len() > 8, "{}", files.len());
    for (path, bytes) in &files {
        assert!(!has(bytes, "elephant"), "{path}");
    }
    // Texts are left out of a replay, and said to be.
    let run = place.run(&["replay", "captured", "--device", "cpu"]);
    assert!(run.succeeded().stderr().contains("--capture-prompts"), "{}", run.stderr());
    let packed = place.run(&["report", "captured", "--device", "cpu", "--json", "-o", "report.tar"]).json();
    let listed = packed["entries"].as_array().unwrap();
    assert!(listed.iter().any(|entry| entry["path"] == "report/device.json"), "{packed}");
    let mut report = Vec::new();
    File::open(place.path("report.tar")).unwrap().read_to_end(&mut report).unwrap();
    let home = root().display().to_string();
    for word in ["elephant", "my-secret-picture", "flux-shapes", &home] {
        assert!(!has(&report, word), "{word}");
    }
    // The contents are a capture again.
    assert!(has(&report, "capture.json"));
}

#[test]
fn a_capture_has_its_limit_and_never_fails_the_work() {
    let place = Place::new();
    let inputs = smaller(&place);
    let layers = ["--capture-layers", "decoder.up_blocks.**", "--capture-limit", "8MiB"];
    decode(&place, &inputs, &layers).succeeded();
    let captured = Captured::open(&place.path("captured")).unwrap();
    assert!(captured.manifest().left_out > 0 && captured.manifest().bytes <= 8 << 20);
    let stage = &captured.stages()[0];
    assert!(captured.layers(stage).all(|layer| layer.unwrap().layer.starts_with("decoder.up_blocks.")));
    let place = Place::new();
    let run = decode(&place, &smaller(&place), &["--capture-limit", "1KiB"]);
    let stderr = run.succeeded().stderr();
    assert!(stderr.contains("warning: nothing is captured") && stderr.contains("--capture-limit"), "{stderr}");
    assert!(!place.path("captured").exists() && place.path("out.safetensors").exists());
    assert_eq!(place.files(), ["middle.safetensors", "out.safetensors"], "nothing hidden stays");
}

#[test]
fn a_capture_of_nothing_is_none_and_missing_layers_are_said() {
    let place = Place::new();
    let inputs = smaller(&place);
    let missing = [inputs[0].clone(), "--vae".to_owned(), "missing".to_owned()];
    decode(&place, &missing, &[]).failed(2, "missing");
    assert_eq!(place.files(), ["middle.safetensors"], "the next capture finds its folder free");
    let run = decode(&place, &inputs, &["--capture-layers", "decoder.up.2.**"]);
    assert!(run.succeeded().stderr().contains("is named 'decoder.up.2.**'"), "{}", run.stderr());
    // A file that no stage takes would be compared with nothing.
    place.run(&["replay", "captured", "--transformer", &inputs[2]]).failed(2, "--transformer");
}

#[test]
fn the_variable_captures_each_command_in_a_folder_of_its_own() {
    let place = Place::new();
    let inputs = smaller(&place);
    let run = |options: &[&str]| {
        let arguments: Vec<&str> = ["decode"].into_iter().chain(inputs.iter().map(String::as_str)).collect();
        let arguments = [&arguments[..], &["--device", "cpu", "-o", "out.safetensors"], options].concat();
        assert!(place.command(&arguments).env("TILEWRIGHT_CAPTURE", "captured").status().unwrap().success());
    };
    run(&[]);
    run(&[]);
    run(&["--dry-run"]);
    run(&["--profile", "trace.json"]);
    assert_eq!(place.files(), ["captured", "captured-2", "middle.safetensors", "out.safetensors", "trace.json"]);
    Captured::open(&place.path("captured-2")).unwrap();
}

/// Changes a file of a capture, and seals the capture again as anybody can.
fn reseal(place: &Place, path: &str, bytes: &[u8]) {
    let manifest = place.path("captured/capture.json");
    fs::write(place.path("captured").join(path), bytes).unwrap();
    let mut contents: Manifest = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let sealed = |contents: &Manifest| {
        let mut text = serde_json::to_vec_pretty(contents).unwrap();
        text.push(b'\n');
        text
    };
    for file in contents.files.iter_mut().filter(|file| file.path == path) {
        (file.bytes, file.sha256) = (bytes.len() as u64, digest::sha256(bytes));
    }
    contents.bytes = contents.files.iter().map(|file| file.bytes).sum();
    contents.sha256 = String::new();
    contents.sha256 = digest::sha256(&sealed(&contents));
    fs::write(&manifest, sealed(&contents)).unwrap();
}

#[test]
fn inputs_that_no_vae_takes_are_refused() {
    let place = Place::new();
    decode(&place, &smaller(&place), &[]).succeeded();
    for shape in [vec![0, 16, 8, 8], vec![1, 16, 8, 0], vec![1, 16, 0, 16, 24], vec![16, 8, 8], vec![]] {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        let view = TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
        reseal(&place, "1-decode/inputs.safetensors", &safetensors::serialize([("input", view)], None).unwrap());
        place.run(&["replay", "captured", "--device", "cpu"]).failed(1, "1 of 1 stages");
        let replayed = replay(&place, &[]);
        assert!(replayed[0]["error"].as_str().unwrap().contains("none of 4 axes"), "{replayed:?}");
    }
}

#[test]
fn what_is_no_capture_of_this_version_is_refused() {
    let place = Place::new();
    let inputs = smaller(&place);
    place.run(&["replay", "nowhere"]).failed(2, "nowhere");
    decode(&place, &inputs, &[]).succeeded();
    let again = decode(&place, &inputs, &[]);
    again.failed(2, "not empty");
    for (options, words) in [
        (&["--dry-run"][..], "--capture and --dry-run"),
        (&["--profile", "trace.json"], "--capture and --profile"),
        (&["--capture-layers", ""], "--capture-layers"),
    ] {
        let options = [&["-o", "other.png", "--capture", "another"], options].concat();
        place.decode(&inputs, &options).failed(2, words);
    }
    place.run(&["replay", "captured", "--stage", "7"]).failed(2, "1 (decode)");
    let manifest = place.path("captured/capture.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let version = format!(r#""tilewright": "{}""#, env!("CARGO_PKG_VERSION"));
    fs::write(&manifest, text.replace(&version, r#""tilewright": "0.0.9""#)).unwrap();
    let refused = place.run(&["replay", "captured"]);
    refused.failed(2, "captured");
    fs::write(&manifest, &text).unwrap();
    let outputs = place.path("captured/1-decode/outputs.safetensors");
    let mut bytes = fs::read(&outputs).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&outputs, bytes).unwrap();
    place.run(&["replay", "captured"]).failed(2, "outputs.safetensors");
}

#[test]
fn no_partial_folder_is_taken_for_a_whole_one() {
    let place = Place::new();
    let inputs = smaller(&place);
    let start = |folder: &str| -> Command {
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let options = ["--device", "cpu", "-o", "out.png", "--capture", folder, "--capture-layers", "**"];
        let mut command = place.command(&[&["decode"], &inputs[..], &options].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let begun = std::time::Instant::now();
    assert!(start("whole").status().unwrap().success());
    let whole = begun.elapsed();
    let mut finished = 0;
    for kill in 0..20 {
        let folder = format!("killed-{kill}");
        let mut child = start(&folder).spawn().unwrap();
        thread::sleep(whole.mul_f64(0.3 + 0.04 * f64::from(kill)).min(Duration::from_secs(60)));
        let _ = child.kill();
        let _ = child.wait();
        if place.path(&folder).exists() {
            Captured::open(&place.path(&folder)).unwrap();
            finished += 1;
        }
    }
    assert!(finished < 20, "some were killed before their end");
    // The next capture removes what they left.
    assert!(start("last").status().unwrap().success());
    let hidden: Vec<String> =
        place.files().into_iter().filter(|name| name.starts_with(".tilewright-capture")).collect();
    assert_eq!(hidden, [""; 0]);
}
