//! Samplers through the program: every one of them, parts of their steps, masks, and samples that
//! are killed or whose plans fail on the way.

use std::{fs, process::Stdio, thread, time::Duration};

use serde_json::{Value, json};

use crate::{
    encode::tensor,
    gpu,
    program::{Place, Run, fixture, largest_difference, one_tensor},
};

/// Kills of the test, if the environment asks for no other number (TILEWRIGHT_KILLS).
const KILLS: usize = 8;

/// The environment variable for the milliseconds that a sample waits after each step: on a fast
/// machine it would be done before it is killed.
const SLOW: &str = "TILEWRIGHT_SLOW_STEP_MS";

/// A tiny WAN, its conditioning, and a size.
fn wan() -> Vec<String> {
    let file = |name: &str| fixture(&format!("sample-wan-t2v-original/{name}.safetensors"));
    let words = ["sample", "--transformer", &file("wan-tiny"), "--conditioning", &file("conditioning")];
    [&words[..], &["--size", "64x96", "--frames", "5"]].concat().into_iter().map(str::to_owned).collect()
}

/// A tiny Flux, and its conditioning.
fn flux() -> Vec<String> {
    let file = |name: &str| fixture(&format!("sample-flux-original/{name}.safetensors"));
    let words = ["sample", "--transformer", &file("flux1-tiny"), "--conditioning", &file("conditioning")];
    words.into_iter().map(str::to_owned).collect()
}

fn with(base: &[String], more: &[&str]) -> Vec<String> {
    base.iter().cloned().chain(more.iter().map(|&word| word.to_owned())).collect()
}

/// The latent that a run writes.
fn latent(place: &Place, name: &str) -> Vec<f32> {
    tensor(&place.path(name), "latent").1
}

#[test]
fn every_sampler_ends_with_a_latent() {
    let place = Place::new();
    let run = place.run(&with(&wan(), &["--sampler", "none"]));
    run.failed(2, "unknown sampler 'none'");
    let text = run.stderr();
    let names: Vec<&str> = text.split("expected ").nth(1).unwrap().split(" (").next().unwrap().split(", ").collect();
    assert_eq!(names.len(), 45, "{names:?}");
    // The others are compared in `samples_are_comfyuis`.
    let cases = comfyuis();
    let options = cases["cases"].as_array().unwrap().iter().flat_map(|case| case["options"].as_array().unwrap());
    let compared: Vec<&str> = options.map(|word| word.as_str().unwrap()).collect();
    let rest: Vec<&str> = names.into_iter().filter(|name| !compared.contains(name)).collect();
    assert!(rest.len() >= 20, "{rest:?}");
    let negative = fixture("sample-wan-t2v-original/conditioning.safetensors");
    for name in rest {
        let options = ["--device", "cpu", "--steps", "3", "--sampler", name, "--negative", &negative, "--cfg", "2"];
        let record = place.run(&with(&with(&wan(), &options), &["--json", "-o", "out.safetensors"])).json();
        assert_eq!(record["request"]["sampler"], *name);
        let values = latent(&place, "out.safetensors");
        assert!(values.iter().all(|value| value.is_finite() && value.abs() < 100.0), "{name}");
    }
}

/// The samples of ComfyUI's, and the options that ask for them.
fn comfyuis() -> Value {
    serde_json::from_str(&fs::read_to_string(fixture("comfyui-samples/cases.json")).unwrap()).unwrap()
}

#[test]
fn samples_are_comfyuis() {
    let list = comfyuis();
    let place = Place::new();
    let cases = list["cases"].as_array().unwrap();
    assert!(cases.len() >= 60);
    // Files are named from the fixtures' folder on.
    let named = |word: &str| if word.ends_with(".safetensors") { fixture(word) } else { word.to_owned() };
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let path = |key: &str| fixture(case[key].as_str().unwrap());
        let mut arguments = vec!["sample".to_owned(), "--device".into(), "cpu".into()];
        arguments.extend(["--transformer".into(), path("transformer"), "--conditioning".into(), path("conditioning")]);
        arguments.extend(case["options"].as_array().unwrap().iter().map(|word| named(word.as_str().unwrap())));
        arguments.extend(["-o".into(), "out.safetensors".into()]);
        place.run(&arguments).succeeded();
        let results = fixture("comfyui-samples/results.safetensors");
        let (shape, expected) = tensor(results.as_ref(), name);
        let (found_shape, found) = tensor(&place.path("out.safetensors"), "latent");
        assert_eq!(found_shape, shape, "{name}");
        let largest = expected.iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
        let apart = largest_difference(&found, &expected) / largest;
        assert!(apart <= list["tolerance"].as_f64().unwrap() as f32, "{name}: {apart}");
    }
}

#[test]
fn two_parts_of_the_steps_are_the_whole() {
    let place = Place::new();
    let base = with(&flux(), &["--device", "cpu", "--steps", "6", "--seed", "3"]);
    for sampler in ["euler", "heun", "dpm_2", "exp_heun_2_x0"] {
        let base = with(&base, &["--sampler", sampler]);
        place.run(&with(&base, &["--size", "64x64", "-o", "whole.safetensors"])).succeeded();
        let first = ["--size", "64x64", "--end-step", "4", "--leftover-noise", "-o", "first.latent"];
        place.run(&with(&base, &first)).succeeded();
        let second = ["--latent", "first.latent", "--start-step", "4", "--no-add-noise", "-o", "second.safetensors"];
        place.run(&with(&base, &second)).succeeded();
        assert_eq!(latent(&place, "second.safetensors"), latent(&place, "whole.safetensors"), "{sampler}");
    }
}

#[test]
fn each_seed_of_a_batch_makes_the_sample_that_it_makes_alone() {
    let place = Place::new();
    for sampler in ["euler", "euler_ancestral", "dpmpp_2m_sde"] {
        let base = with(&flux(), &["--device", "cpu", "--steps", "3", "--size", "48x64", "--sampler", sampler]);
        place.run(&with(&base, &["--seed", "9,4", "-o", "both.safetensors"])).succeeded();
        let both = latent(&place, "both.safetensors");
        for (half, seed) in both.chunks(both.len() / 2).zip(["9", "4"]) {
            place.run(&with(&base, &["--seed", seed, "--batch", "1", "-o", "one.safetensors"])).succeeded();
            assert!(largest_difference(half, &latent(&place, "one.safetensors")) < 1e-5, "{sampler} {seed}");
        }
    }
    place
        .run(&with(&flux(), &["--size", "48x64", "--seed", "1,2", "--batch", "3", "-o", "a.latent"]))
        .failed(2, "2 seeds for a batch of 3");
}

#[test]
fn steps_are_reused_if_the_user_allows_it() {
    let place = Place::new();
    let base = with(&flux(), &["--device", "cpu", "--size", "64x64", "--json", "-o", "out.safetensors", "--steps"]);
    let whole = place.run(&with(&base, &["20"])).json();
    assert_eq!(whole["outcome"]["reused"], 0);
    let expected = latent(&place, "out.safetensors");
    let mut last = (0, 0.0);
    for reuse in ["0.02", "0.1", "0.4"] {
        let record = place.run(&with(&base, &["20", "--reuse", reuse])).json();
        let reused = record["outcome"]["reused"].as_u64().unwrap();
        let deviation = record["outcome"]["reuse_deviation"].as_f64().unwrap();
        let apart = largest_difference(&latent(&place, "out.safetensors"), &expected);
        assert!(reused >= last.0 && deviation < reuse.parse().unwrap(), "{reuse}: {reused} {deviation}");
        assert!(reused == 0 || apart > 0.0, "{reuse}");
        last = (reused, deviation);
    }
    assert!((1..20).contains(&last.0), "{last:?}");
    // Both ways to allow it are one.
    let allowed = place.run(&with(&base, &["20", "--allow", "reuse=0.4"])).json();
    assert_eq!((allowed["outcome"]["reused"].as_u64(), &allowed["request"]["reuse"]), (Some(last.0), &json!(0.4)));
    place.run(&with(&base, &["20", "--allow", "blended"])).failed(2, "expected reuse=0.2");
    place.run(&with(&base, &["20", "--allow", "reuse=0.4", "--reuse", "0.4"])).failed(2, "cannot be used with");
    // Few steps are never reused.
    let few = place.run(&with(&base, &["8", "--reuse", "0.4"])).json();
    assert_eq!(few["outcome"]["reused"], 0);
    for part in ["0", "3.1"] {
        let line = format!("a reuse of {part}: a part above 0 and at most 3");
        place.run(&with(&base, &["20", "--reuse", part])).failed(2, &line);
    }
}

#[test]
fn unipc_in_two_parts_is_nearly_the_whole() {
    let place = Place::new();
    let base = with(&flux(), &["--device", "cpu", "--steps", "12", "--sampler", "uni_pc"]);
    place.run(&with(&base, &["--size", "64x64", "-o", "whole.safetensors"])).succeeded();
    let first = ["--size", "64x64", "--end-step", "6", "--leftover-noise", "-o", "first.latent"];
    place.run(&with(&base, &first)).succeeded();
    let second = ["--latent", "first.latent", "--start-step", "6", "--no-add-noise", "-o", "second.safetensors"];
    place.run(&with(&base, &second)).succeeded();
    // It remembers steps, which the second part does not know.
    let apart = largest_difference(&latent(&place, "second.safetensors"), &latent(&place, "whole.safetensors"));
    assert!(apart < 0.3, "{apart}");
}

#[test]
fn samplers_end_wherever_they_begin() {
    let place = Place::new();
    // diffusers' UniPC with one step and with two, beside its DPM-Solver++.
    let base = with(&flux(), &["--device", "cpu", "--as", "diffusers", "--size", "64x64"]);
    for (steps, most) in [("1", 0.05), ("2", 1.5), ("3", 0.5)] {
        for (sampler, output) in [("uni_pc", "a.safetensors"), ("dpmpp_2m", "b.safetensors")] {
            place.run(&with(&base, &["--steps", steps, "--sampler", sampler, "-o", output])).succeeded();
        }
        let apart = largest_difference(&latent(&place, "a.safetensors"), &latent(&place, "b.safetensors"));
        assert!(apart < most, "{steps}: {apart}");
    }
    place.run(&with(&base, &["--steps", "2", "--shift", "1000", "-o", "c.latent"])).failed(2, "a shift of NaN");
    // Values beyond their type end a search for a length of steps, too.
    let negative = fixture("sample-flux-original/conditioning.safetensors");
    let other = fixture("sample-flux-diffusers/conditioning.safetensors");
    let hopeless = ["--size", "64x64", "--cfg", "1e38", "--negative", &other, "--sampler", "dpm_adaptive"];
    let hopeless = with(&hopeless.map(str::to_owned), &["--device", "cpu", "--steps", "3", "-o", "d.latent"]);
    place.run(&with(&flux(), &hopeless.iter().map(String::as_str).collect::<Vec<_>>())).failed(1, "NaN or infinite");
    place.write("scalar.safetensors", one_tensor("noise", "F32", &[], &[0; 4]));
    place
        .run(&with(&flux(), &["--size", "64x64", "--noise", "scalar.safetensors", "-o", "e.latent"]))
        .failed(2, "tensor noise has shape []");
    // A part of the way that no conditioning counts for, between the steps' sigmas.
    let (early, late) = (format!("{negative}@0-0.3"), format!("{negative}@0.4-1"));
    let gap =
        ["sample", "--transformer", &fixture("sample-flux-original/flux1-tiny.safetensors"), "--conditioning", &early];
    let gap =
        with(&gap.map(str::to_owned), &["--conditioning", &late, "--device", "cpu", "--size", "64x64", "--shift", "0"]);
    for sampler in ["dpm_fast", "dpmpp_sde"] {
        place
            .run(&with(&gap, &["--steps", "4", "--sampler", sampler, "-o", "f.latent"]))
            .failed(2, "no --conditioning counts at sigma");
    }
    // A sample that ends before its first step keeps nothing.
    let late = ["sample", "--transformer", &gap[2], "--conditioning", &late, "--device", "cpu", "--size", "64x64"];
    place
        .run(&with(&late.map(str::to_owned), &["--steps", "4", "--resume", "-o", "h.latent"]))
        .failed(2, "no --conditioning counts at sigma");
    assert!(!place.path("h.latent.partial").exists());
    let refused = ["--size", "64x64", "--resume", "--set", "products=fp9", "-o", "g.latent", "--device", "cpu"];
    place.run(&with(&flux(), &refused)).failed(2, "products=fp9");
    assert!(!place.path("g.latent.partial").exists());
}

#[test]
fn a_picture_is_a_mask() {
    let place = Place::new();
    let base = with(&flux(), &["--device", "cpu", "--steps", "2"]);
    place.run(&with(&base, &["--size", "64x64", "-o", "kept.safetensors"])).succeeded();
    // The left half is black, and kept.
    let picture = image::GrayImage::from_fn(64, 64, |x, _| image::Luma([if x < 32 { 0 } else { 255 }]));
    picture.save(place.path("mask.png")).unwrap();
    let masked = ["--latent", "kept.safetensors", "--seed", "5", "-o", "out.safetensors", "--mask"];
    place.run(&with(&with(&base, &masked), &["mask.png"])).succeeded();
    let (shape, found) = tensor(&place.path("out.safetensors"), "latent");
    let kept = latent(&place, "kept.safetensors");
    let width = shape[3];
    let apart = |half: usize| {
        let of = |place: &usize| place % width / (width / 2) == half;
        let apart = (0..found.len()).filter(of).map(|place| (found[place] - kept[place]).abs());
        apart.fold(0.0, f32::max)
    };
    assert!(apart(0) < 1e-5 && apart(1) > 0.1, "{} {}", apart(0), apart(1));
    place.write("mask.jpg", b"no picture");
    place
        .run(&with(&with(&base, &masked), &["mask.jpg"]))
        .failed(2, "mask.jpg: a text: a PNG, JPEG, WebP or GIF is expected");
}

#[test]
fn a_killed_sample_goes_on_from_its_last_step_to_the_same_bits() {
    let kills: usize = std::env::var("TILEWRIGHT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let place = Place::new();
    let (mut killed, mut resumed, mut round) = (0, 0, 0);
    while killed < kills {
        let sampler = ["dpmpp_3m_sde", "sa_solver", "uni_pc", "er_sde"][round % 4];
        let base = with(&wan(), &["--device", "cpu", "--steps", "20", "--threads", "1", "--sampler", sampler]);
        place.run(&with(&base, &["-o", "whole.safetensors"])).succeeded();
        let arguments = with(&base, &["--resume", "-o", "out.safetensors"]);
        let step = place.path("out.safetensors.partial").join("step.safetensors");
        let mut last = Vec::new();
        for _ in 0..3 {
            let mut command = place.command(&arguments);
            command.env(SLOW, "30").stderr(Stdio::null()).stdout(Stdio::null());
            let mut child = command.spawn().unwrap();
            // Until another step is kept than the last time.
            while child.try_wait().unwrap().is_none() && fs::read(&step).unwrap_or_default() == last {
                thread::sleep(Duration::from_millis(2));
            }
            if child.try_wait().unwrap().is_none() {
                killed += 1;
            }
            let _ = child.kill();
            child.wait().unwrap();
            last = fs::read(&step).unwrap_or_default();
        }
        let end = place.run(&arguments);
        resumed += usize::from(end.succeeded().stderr().contains("steps are kept from an earlier run"));
        assert_eq!(latent(&place, "out.safetensors"), latent(&place, "whole.safetensors"), "{sampler}");
        assert!(!place.path("out.safetensors.partial").exists());
        fs::remove_file(place.path("out.safetensors")).unwrap();
        round += 1;
    }
    assert!(resumed > 0);
}

#[test]
fn a_kept_step_is_gone_on_from_by_its_own_run_alone() {
    let place = Place::new();
    let base = with(&wan(), &["--device", "cpu", "--steps", "200", "--resume", "-o", "out.safetensors"]);
    let step = place.path("out.safetensors.partial").join("step.safetensors");
    let mut command = place.command(&base);
    let mut child = command.env(SLOW, "3000").stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !step.is_file() {
        thread::sleep(Duration::from_millis(2));
    }
    // While it runs, the place is its own.
    place.run(&base).failed(2, "another process is sampling into it");
    child.kill().unwrap();
    child.wait().unwrap();
    for (option, value) in [("--seed", "1"), ("--sampler", "heun"), ("--set", "precision=bf16"), ("--shift", "2")] {
        place.run(&with(&base, &[option, value])).failed(2, "was begun with other weights, inputs or options");
    }
    let whole = fs::read(&step).unwrap();
    fs::write(&step, &whole[..whole.len() / 2]).unwrap();
    place.run(&base).failed(2, "delete its folder to start over");
    fs::write(&step, one_tensor("latents", "F32", &[1], &[0; 4])).unwrap();
    place.run(&base).failed(2, "no kept step");
    place.run(&with(&wan(), &["--resume", "-o", "-"])).failed(2, "-o - and --resume");
}

/// A run on a fake GPU.
fn on_gpu(place: &Place, script: &str, arguments: &[String]) -> Run {
    Run(gpu::command(place, &format!("devices=1;memory=1073741824;{script}"), arguments).output().unwrap())
}

#[test]
fn fp8_weights_are_multiplied_in_fp8_where_the_device_can() {
    let place = Place::new();
    let file = |name: &str| fixture(&format!("sample-flux-fp8-scaled/{name}"));
    let conditioning = fixture("sample-flux-original/conditioning.safetensors");
    let base = ["sample", "--transformer", &file("flux1-tiny.safetensors"), "--conditioning", &conditioning];
    let base: Vec<String> = base.into_iter().map(str::to_owned).collect();
    let base = with(&base, &["--size", "128x128", "--steps", "2", "--json", "-o", "out.safetensors"]);
    place.run(&with(&base, &["--device", "cpu"])).succeeded();
    let exact = latent(&place, "out.safetensors");
    let bf16 = with(&base, &["--device", "cuda", "--set", "precision=bf16", "--set", "weights=packed"]);
    let apart = |more: &[&str]| {
        let run = on_gpu(&place, "arch=sm_89", &with(&bf16, more));
        let record = run.json();
        (largest_difference(&latent(&place, "out.safetensors"), &exact), record["plan"]["products"].clone())
    };
    let (of_bf16, products) = apart(&[]);
    assert_eq!(products, "precision");
    let (of_fp8, products) = apart(&["--set", "products=fp8"]);
    assert_eq!(products, "fp8");
    // Three bits of mantissa in activations, in place of seven.
    assert!(of_fp8 > of_bf16 && of_fp8 < 16.0 * of_bf16, "{of_fp8} {of_bf16}");
    let fp8 = with(&bf16, &["--set", "products=fp8"]);
    let refused = |script: &str, arguments: &[String], why: &str| {
        let run = on_gpu(&place, script, arguments);
        run.succeeded();
        let note = format!("products fp8 → precision: {why}");
        assert!(run.stderr().contains(&note), "{}", run.stderr());
    };
    refused("arch=sm_86", &fp8, "FP8 needs a device that has it, and weights in f8_e4m3");
    refused("arch=sm_89", &with(&fp8, &["--set", "weights=expanded"]), "FP8 gives 16 bits, of weights as stored");
    let other = [&flux()[..], &["--size", "64x64", "--device", "cuda", "-o", "a.latent"].map(str::to_owned)].concat();
    let other = with(&other, &["--set", "precision=bf16", "--set", "weights=packed", "--set", "products=fp8"]);
    refused("arch=sm_89", &other, "FP8 needs a device that has it, and weights in f8_e4m3");
}

#[test]
fn a_step_that_fails_is_tried_again_by_another_plan() {
    let place = Place::new();
    let base = |size: &str| {
        let base = with(&flux(), &["--size", size, "--steps", "8", "--device", "cuda", "--json"]);
        with(&base, &["-o", "out.safetensors"])
    };
    // In bf16 some results are sound, and none from then on.
    let bf16 = with(&base("128x128"), &["--set", "precision=bf16"]);
    let not_finite = |after: u32| {
        let record = on_gpu(&place, &format!("nan=bf16;nan-after={after}"), &bf16).json();
        assert_eq!(record["plan"]["precision"]["dtype"], "f32", "{record}");
        assert!(record["attempts"][0]["failure"].to_string().contains("non-finite"), "{record}");
        assert!(latent(&place, "out.safetensors").iter().all(|value| value.is_finite()));
        failed_step(&record)
    };
    assert_eq!(not_finite(0), Some(0));
    fails_at_step(2, 20, not_finite);
    // Memory runs out once, in the middle.
    let expanded =
        with(&base("512x512"), &["--set", "precision=f32", "--set", "weights=expanded", "--set", "guidance=together"]);
    place
        .run(&with(&flux(), &["--size", "512x512", "--steps", "8", "--device", "cpu", "-o", "cpu.safetensors"]))
        .succeeded();
    let expected = latent(&place, "cpu.safetensors");
    fails_at_step(3, 20, |number| {
        let record = on_gpu(&place, &format!("oom={number}"), &expanded).json();
        assert!(largest_difference(&latent(&place, "out.safetensors"), &expected) < 2e-4, "{number}");
        failed_step(&record)
    });
}

/// The step, from 0, at which the first attempt of a record failed.
fn failed_step(record: &Value) -> Option<u64> {
    record["attempts"][0]["step"].as_u64()
}

/// Finds the number that makes a sample fail at a step: the step grows with the number, and
/// without a failure the number is too high.
fn fails_at_step(step: u64, first: u32, failed: impl Fn(u32) -> Option<u64>) {
    let (mut low, mut high) = (0, first);
    let is_before = |number: u32| failed(number).is_some_and(|found| found < step);
    while is_before(high) {
        (low, high) = (high, 2 * high);
        assert!(high < 10_000, "never fails so late");
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if is_before(middle) { low = middle } else { high = middle }
    }
    assert_eq!(failed(high), Some(step), "{high}");
}
