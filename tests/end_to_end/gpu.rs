//! The program on GPUs: the fake one of `tilewright-fake-gpu`, whose devices compute what a CPU
//! does, count memory as a card does, and fail by a script.

#[path = "gpu/check.rs"]
mod check;

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tilewright_fake_gpu::{LIBTORCH, ROCM_LIBTORCH, SCRIPT};
use tilewright_models::{AnyConfig, BlockChoice, Checkpoint, ComputeFormat, DenoiserFile, Inputs};
use tilewright_nn::{Costs, Glue, Meter, TokenScope};
use tilewright_plan::{Dtype, Layout, Precision};

use crate::{
    encode::tensor,
    manners::listens,
    program::{Place, Run, bundled, decibels, fixture, largest_difference, middle, root, smaller},
    service::{jobs::small, server::Server},
    video,
};

const MIB: u64 = 1 << 20;

/// The variable that names the folder in which the loader looks for libraries first.
const SEARCHED: &str = "LD_LIBRARY_PATH";

/// The program with the fake GPU, about to be run.
pub fn command<S: AsRef<str>>(place: &Place, script: &str, arguments: &[S]) -> Command {
    command_on(place, LIBTORCH, script, arguments)
}

/// The same with a libtorch. The loader takes it at once: by its option alone, the program loads
/// this machine's own before it and starts again.
fn command_on<S: AsRef<str>>(place: &Place, libtorch: &str, script: &str, arguments: &[S]) -> Command {
    let mut command = place.command(arguments);
    command.env("TILEWRIGHT_LIBTORCH", libtorch).env(SEARCHED, format!("{libtorch}/lib")).env(SCRIPT, script);
    command
}

fn run(place: &Place, script: &str, arguments: &[&str]) -> Run {
    Run(command(place, script, arguments).output().unwrap())
}

/// A decode of inputs with further options.
fn decode(place: &Place, script: &str, inputs: &[String], options: &[&str]) -> Run {
    let mut arguments: Vec<&str> = vec!["decode"];
    arguments.extend(inputs.iter().map(String::as_str));
    arguments.extend(options);
    run(place, script, &arguments)
}

/// The bundled clip and its model: 17 frames of 192×128.
fn shapes() -> [String; 3] {
    let at = |name: &str| root().join("examples").join(name).display().to_string();
    [at("latents/shapes.latent"), "--vae".into(), at("models/wan-tiny/Wan2.1_VAE.safetensors")]
}

/// A picture of 16×24.
fn tiny() -> [String; 3] {
    [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")]
}

/// One device with a gigabyte: its probe takes no memory to speak of.
const ONE: &str = "devices=1;memory=1073741824";

#[test]
fn pictures_and_clips_are_those_of_the_cpu() {
    let place = Place::new();
    for (inputs, name) in [(smaller(&place), "picture"), (video::small(), "clip")] {
        let (there, here) = (format!("{name}-gpu.safetensors"), format!("{name}-cpu.safetensors"));
        let options = |device: &'static str, output: &'static str| {
            ["--device", device, "--policy", "fixed", "--set", "precision=f32", "--json", "-o", output]
        };
        let (there, here): (&'static str, &'static str) = (there.leak(), here.leak());
        place.run(&[&["decode".to_owned()], &inputs[..], &options("cpu", here).map(String::from)].concat()).succeeded();
        let record = decode(&place, ONE, &inputs, &options("cuda", there)).record();
        assert_eq!(record["device"]["name"], "Fake GPU 0");
        assert_eq!(record["outcome"]["cold"], true, "{record}");
        let ((shape, found), (expected_shape, expected)) = (place.sample(there), place.sample(here));
        assert_eq!(shape, expected_shape);
        let difference = largest_difference(&found, &expected);
        assert!(difference < 2e-4, "{name}: {difference}");
    }
}

#[test]
fn estimates_are_what_is_held_in_every_format() {
    let place = Place::new();
    for is_clip in [false, true] {
        // The tensors of clips that are smaller still are so small that their rounding counts.
        let inputs = if is_clip { video::smaller(&place) } else { smaller(&place) };
        for precision in ["f32", "bf16", "mixed-bf16"] {
            for layout in ["channels-first", "channels-last"] {
                let set = [format!("precision={precision}"), format!("layout={layout}")];
                let options = ["--device", "cuda", "--policy", "fixed", "--json", "-o", "out.safetensors", "--set"];
                let words: Vec<&str> = inputs.iter().map(String::as_str).chain(options).collect();
                let arguments = [&["decode"], &words[..], &[&set[0], "--set", &set[1]]].concat();
                // A processor is so slow a GPU that its convolutions would be divided, and hold
                // less.
                let mut command = command(&place, ONE, &arguments);
                let record = Run(command.env("TILEWRIGHT_WHOLE_OPERATIONS", "1").output().unwrap()).record();
                let bytes = |of: &str| record[of]["peak_bytes"].as_f64().unwrap();
                let ratio = bytes("outcome") / bytes("estimate");
                assert!((0.93..1.01).contains(&ratio), "{precision} {layout}: {ratio} of {}", record["estimate"]);
                let _ = fs::remove_file(place.path("out.safetensors"));
            }
        }
    }
}

#[test]
fn samples_are_those_of_the_cpu() {
    let place = Place::new();
    let at = |name: &str, file: &str| fixture(&format!("{name}/{file}"));
    let flux = ["--transformer".to_owned(), fixture("lora/flux-tiny.gguf"), "--conditioning".into()];
    let flux = [&flux[..], &[at("sample-flux-original", "conditioning.safetensors")]].concat();
    let wan = ["--transformer".to_owned(), at("sample-wan-t2v-original", "wan-tiny.safetensors")];
    let wan =
        [&wan[..], &["--conditioning".into(), at("sample-wan-t2v-original", "conditioning.safetensors")]].concat();
    let wan = [&wan[..], &["--frames".into(), "5".into()]].concat();
    for (name, inputs) in [("flux", flux), ("wan", wan)] {
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let size = ["--size", "64x96", "--steps", "2", "--json", "-o", "out.safetensors", "--device"];
        let inputs = [&["sample"], &inputs[..], &size[..]].concat();
        let latent = |run: Run| {
            let record = run.record();
            let (shape, values) = tensor(&place.path("out.safetensors"), "latent");
            fs::remove_file(place.path("out.safetensors")).unwrap();
            (record, shape, values)
        };
        let (_, shape, expected) = latent(run(&place, ONE, &[&inputs[..], &["cpu"]].concat()));
        let most = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        for set in ["weights=packed", "weights=expanded", "ahead=1"] {
            // Without a fused kernel attention goes in pieces.
            for attention in ["math", "flash"] {
                let script = format!("{ONE};attention={attention}");
                let (record, found_shape, found) = latent(run(
                    &place,
                    &script,
                    &[&inputs[..], &["cuda", "--set", "precision=f32", "--set", set]].concat(),
                ));
                assert_eq!(record["device"]["name"], "Fake GPU 0");
                assert_eq!(found_shape, shape);
                let difference = largest_difference(&found, &expected) / most;
                assert!(difference < 2e-4, "{name}, {set}, {attention}: {difference}");
                let bytes = |of: &str| record[of]["peak_bytes"].as_f64().unwrap();
                let ratio = bytes("outcome") / bytes("estimate");
                assert!(ratio < 1.02, "{name}, {set}, {attention}: {ratio} of {}", record["estimate"]);
            }
        }
    }
}

/// The prices of both forms are those of one step: products of packed weights expand them again in
/// each.
#[test]
fn weights_that_fit_expanded_are_expanded_once() {
    let place = Place::new();
    for transformer in ["sample-flux-gguf-k/flux1-tiny.gguf", "sample-flux-fp8-scaled/flux1-tiny.safetensors"] {
        let (transformer, conditioning) =
            (fixture(transformer), fixture("sample-flux-original/conditioning.safetensors"));
        let base = ["sample", "--transformer", &transformer, "--conditioning", &conditioning, "--size", "64x96"];
        let base = [&base[..], &["--steps", "1", "--json", "-o", "out.safetensors", "--device", "cuda"]].concat();
        let record = |arguments: &[&str]| run(&place, ONE, &[&base[..], arguments].concat()).record();
        let step = |form: &str| {
            let record = record(&["--set", "precision=f32", "--set", &format!("weights={form}")]);
            record["estimate"]["step_ms"].as_f64().unwrap()
        };
        assert!(step("packed") > 1.5 * step("expanded"), "{transformer}: {} {}", step("packed"), step("expanded"));
        for objective in ["balanced", "fastest"] {
            let found = record(&["--policy", "adaptive", "--objective", objective]);
            assert_eq!(found["plan"]["weights"], "expanded", "{transformer}, {objective}");
        }
    }
}

/// The launches and bytes of all that is no product, convolution or attention, in a run's counts.
fn counted(text: &str) -> [f64; 2] {
    let total = text.lines().find_map(|line| line.strip_prefix("glue total ")).unwrap();
    let numbers: Vec<f64> = total.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// The text's tokens of the example Flux transformer's conditioning here.
const TEXT: usize = 9;

/// Conditioning of no text in particular for the example Flux transformer.
fn flux_conditioning() -> Vec<u8> {
    let values = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|index| ((index % 7) as f32 / 3.0 - 1.0).to_le_bytes()).collect()
    };
    let (text, pooled) = (values(TEXT * 96), values(64));
    let view = |shape: &[usize], data| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap()
    };
    let tensors = [("prompt_embeds", view(&[1, TEXT, 96], &text)), ("pooled_prompt_embeds", view(&[1, 64], &pooled))];
    safetensors::serialize(tensors, None).unwrap()
}

/// A forward of a Flux transformer on a meter, as a GPU runs it whose matrices lie in bf16.
fn metered_forward(transformer: &str, side: i64) -> Glue {
    let format = ComputeFormat::new(Precision::Uniform(Dtype::Bf16), Layout::ChannelsFirst).unwrap();
    let kernels = tilewright_torch::kernels(tch::Device::Cuda(0));
    let meter = Meter::new(format, Costs { expands_rows: false, kernels, ..Costs::default() });
    let file = DenoiserFile::open(Checkpoint::open(transformer.as_ref()).unwrap()).unwrap();
    let network = file.config.build(&TokenScope::new(file.file(), &meter)).unwrap();
    let given = |shape: &[i64]| meter.input(shape, Dtype::F32).unwrap();
    let (text, pooled) = (given(&[1, TEXT as i64, 96]), given(&[1, 64]));
    let inputs = Inputs { text: &text, pooled: Some(&pooled), image: None, guidance: None };
    let size = [1, side / 8, side / 8];
    let context = network.prepare(&meter, &inputs, size).unwrap();
    let (latents, before) = (given(&[1, 16, size[1], size[2]]), meter.glue());
    network.forward(&meter, &latents, &[0.5], &context, &mut |_, _| Ok(BlockChoice::Run)).unwrap();
    let now = meter.glue();
    Glue { launches: now.launches - before.launches, bytes: now.bytes - before.bytes }
}

#[test]
fn a_forward_on_a_gpu_has_as_few_launches_as_are_priced() {
    let place = Place::new();
    let folder = root().join("examples/models/flux-shapes/transformer").display().to_string();
    let file = format!("{folder}/diffusion_pytorch_model.safetensors");
    fs::write(place.path("conditioning.safetensors"), flux_conditioning()).unwrap();
    let script = format!("{ONE};attention=flash;count={}", place.path("counts").display());
    let sample = |steps: &str| {
        let inputs = ["sample", "--transformer", &file, "--conditioning", "conditioning.safetensors"];
        let shape = ["--size", "512x512", "--steps", steps, "-o", "out.safetensors", "--device", "cuda"];
        let plan = ["--policy", "fixed", "--set", "precision=bf16", "--set", "weights=expanded"];
        let mut command = command(&place, &script, &[&inputs[..], &shape, &plan].concat());
        Run(command.env("XDG_CACHE_HOME", place.path("cache")).output().unwrap()).succeeded();
        counted(&fs::read_to_string(place.path("counts")).unwrap())
    };
    // The first one probes the device, too. On a busy machine heads may be measured as faster when
    // they are copied first.
    sample("1");
    let kept = fs::read_dir(place.path("cache/tilewright")).unwrap().map(|entry| entry.unwrap().path());
    for path in kept.filter(|path| path.extension().is_some_and(|ending| ending == "json")) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"apart\":"), "{text}");
        fs::write(path, text.replace("\"apart\":true", "\"apart\":false")).unwrap();
    }
    let [one, two] = [sample("1"), sample("2")];
    let [launches, bytes] = [two[0] - one[0], two[1] - one[1]];
    let tokens = (32 * 32 + TEXT) as f64;
    let metered = metered_forward(&file, 512);
    for (name, found, priced) in [("launches", launches, metered.launches), ("bytes", bytes, metered.bytes)] {
        assert!((found / priced - 1.0).abs() < 0.05, "{name}: {found}, and {priced} are priced");
    }
    // Two blocks with image and text apart, and four with both together: 42.5 launches each in the
    // middle, and 103.8 kB a token in all.
    assert!(launches / 6.0 <= 44.6, "{launches}");
    assert!(bytes / tokens <= 109e3, "{bytes}");
}

#[test]
fn blocks_are_copied_to_a_gpu_for_their_turns() {
    let place = Place::new();
    let at = |name: &str| fixture(&format!("sample-wan-gguf-k/{name}"));
    let transformers = [
        (fixture("sample-wan-t2v-original/wan-tiny.safetensors"), "sample-wan-t2v-original"),
        (fixture("sample-flux-fp8-scaled/flux1-tiny.safetensors"), "sample-flux-original"),
        (at("wan-tiny.gguf"), "sample-wan-t2v-original"),
    ];
    for (transformer, of) in &transformers {
        let conditioning = fixture(&format!("{of}/conditioning.safetensors"));
        let cases: Value =
            serde_json::from_str(&fs::read_to_string(fixture("quantized_sample_cases.json")).unwrap()).unwrap();
        let own = cases["cases"]
            .as_array()
            .unwrap()
            .iter()
            .find(|case| case["transformer"].as_str().is_some_and(|path| transformer.ends_with(path)));
        let conditioning = own.map_or(conditioning, |case| fixture(case["conditioning"].as_str().unwrap()));
        let base = ["sample", "--transformer", transformer, "--conditioning", &conditioning, "--size", "64x96"];
        let base = [&base[..], &["--steps", "3", "--json", "-o", "out.safetensors"]].concat();
        let base = if transformer.contains("wan") { [&base[..], &["--frames", "5"]].concat() } else { base };
        let of = |script: &str, arguments: &[&str]| {
            let record = run(&place, script, &[&base[..], arguments].concat()).record();
            (record, tensor(&place.path("out.safetensors"), "latent").1)
        };
        let latent = |arguments: &[&str]| of(ONE, arguments);
        let (_, expected) = latent(&["--device", "cpu"]);
        let most = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        let packed = ["--device", "cuda", "--set", "precision=f32", "--set", "weights=packed"];
        for (ahead, moved) in [("all", false), ("1", true), ("2", true)] {
            let ahead = format!("ahead={ahead}");
            let (record, found) = latent(&[&packed[..], &["--set", &ahead]].concat());
            let difference = largest_difference(&found, &expected) / most;
            assert!(difference < 2e-4, "{transformer}, {ahead}: {difference}");
            assert_eq!(record["outcome"]["moved_bytes"].as_u64().unwrap() > 0, moved, "{transformer}, {ahead}");
            let bytes = |of: &str| record[of]["peak_bytes"].as_f64().unwrap();
            let ratio = bytes("outcome") / bytes("estimate");
            assert!(ratio < 1.02, "{transformer}, {ahead}: {ratio} of {}", record["estimate"]);
            // Weights are read from their file if memory can't be pinned, or only a little of it.
            for pinned in [0, 100_000].into_iter().filter(|_| moved) {
                let (read, other) = of(&format!("{ONE};pinned={pinned}"), &[&packed[..], &["--set", &ahead]].concat());
                assert!(other == found, "{transformer}, {ahead}, {pinned} bytes pinned");
                assert_eq!(read["outcome"]["moved_bytes"], record["outcome"]["moved_bytes"]);
            }
        }
    }
}

#[test]
fn a_gpu_that_fails_unasked_gives_way_to_the_cpu_and_fails_its_check() {
    let place = Place::new();
    let script = format!("{ONE};refuses=0");
    let record = decode(&place, &script, &tiny(), &["--policy", "fixed", "--json", "-o", "out.png"]).record();
    assert_eq!(record["device"]["backend"], "cpu", "{record}");
    let arguments = ["device", "check", "--quick", "--only", "facts", "--report", "report.json"];
    run(&place, &script, &arguments).failed(1, "1 of 1 parts failed");
    let report = fs::read_to_string(place.path("report.json")).unwrap();
    assert!(report.contains("no kernel image") && !report.contains(LIBTORCH), "{report}");
    // A machine without a GPU misses none.
    run(&place, "devices=0", &arguments).succeeded();
}

/// The lines of a run's standard error that have these words.
fn lines_with(run: &Run, words: &str) -> usize {
    run.stderr().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn a_gpu_that_crashes_unasked_costs_a_line() {
    // In a cache of its own: a trial that was survived there is not made again.
    let (place, cache) = (Place::new(), Place::new());
    let decode = |script: &str, options: &[&str]| {
        let inputs = tiny();
        let arguments: Vec<&str> = std::iter::once("decode").chain(inputs.iter().map(String::as_str)).collect();
        let mut command = command(&place, script, &[&arguments[..], options].concat());
        Run(command.env("XDG_CACHE_HOME", cache.path("")).output().unwrap())
    };
    let script = format!("{ONE};crash=3");
    let unasked = decode(&script, &["--policy", "fixed", "--json", "-o", "out.png"]);
    assert_eq!(unasked.record()["device"]["backend"], "cpu");
    let told = unasked.stderr();
    assert_eq!(lines_with(&unasked, "warning:"), 1, "{told}");
    for words in ["going on with the CPU", "trying the GPU in a process of its own: it crashed by signal 6", "cpu"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // One that is asked for is a failure, in one line.
    let asked = decode(&script, &["--device", "cuda", "-o", "never.png"]);
    asked.failed(2, "trying cuda:0 in a process of its own: it crashed by signal 6");
    assert_eq!(place.files(), ["out.png"]);
    // One that crashes later, while it is measured, ends the first process alone.
    let later = format!("{ONE};crash=30");
    let options = ["--device", "cuda", "--policy", "fixed", "-o", "never.png"];
    assert_eq!(decode(&later, &options).0.status.code(), None);
    decode(&later, &options).failed(2, "trying cuda:0 in a process of its own: it crashed by signal 6");
    assert_eq!(place.files(), ["out.png"]);
    decode(ONE, &options).succeeded();
    fs::remove_file(place.path("never.png")).unwrap();
    // After it was mended it is used.
    let mended = decode(ONE, &["--policy", "fixed", "--json", "-o", "mended.png"]);
    assert_eq!(mended.record()["device"]["name"], "Fake GPU 0");
}

#[test]
fn a_miopen_that_fails_costs_a_line() {
    let place = Place::new();
    let smaller = smaller(&place);
    // Measurements of its own: what other tests, or this one before, have kept may be without it.
    let run_on = |script: &str, arguments: &[&str]| {
        let mut command = command_on(&place, ROCM_LIBTORCH, script, arguments);
        Run(command.env("XDG_CACHE_HOME", place.path("cache")).output().unwrap())
    };
    let decoded = |script: &str, output: &str| {
        let options = ["--device", "cuda", "--policy", "fixed", "--set", "precision=f32", "--json", "-o", output];
        let inputs = smaller.iter().map(String::as_str);
        let arguments: Vec<&str> = ["decode"].into_iter().chain(inputs).chain(options).collect();
        let run = run_on(script, &arguments);
        (run.record(), place.sample(output).1, run)
    };
    let facts = |record: &Value| record["device"]["hints"].to_string();
    // The measurements of this process are with it.
    let (record, expected, run) = decoded(&format!("{ONE};miopen=fast"), "sound.safetensors");
    assert_eq!(record["device"]["name"], "Fake Radeon 0");
    assert!(facts(&record).contains(r#""name":"miopen","value":"3.5.1""#), "{record}");
    assert!(!facts(&record).contains("miopen-used"), "{record}");
    assert_eq!(lines_with(&run, "without MIOpen"), 0);
    // It fails in the work; the next process is measured without it; and where it fails already in
    // the device's first convolution, each process says so.
    let cases =
        [(1000, "work.safetensors", 1, false), (1000, "next.safetensors", 0, true), (0, "first.safetensors", 1, true)];
    for (from, output, warnings, is_fact) in cases {
        let (record, found, run) = decoded(&format!("{ONE};miopen=fails;miopen-from={from}"), output);
        assert!(largest_difference(&found, &expected) < 1e-5, "{output}");
        assert_eq!(lines_with(&run, "convolutions go on without MIOpen"), warnings, "{output}: {}", run.stderr());
        assert_eq!(facts(&record).contains("miopen-used"), is_fact, "{output}: {record}");
    }
    // A measurement is then without it.
    let failing = format!("{ONE};miopen=fails");
    let report = run_on(&failing, &["device", "--device", "cuda", "--json"]).json();
    assert_eq!(report["miopen"], false, "{report}");
    assert!(facts(&report).contains("miopen-used"), "{report}");
}

#[test]
fn tf32_is_a_precision_of_its_own() {
    let place = Place::new();
    let smaller = smaller(&place);
    let sample = |script: &str, precision: &str| {
        let set = format!("precision={precision}");
        let options = ["--device", "cuda", "--policy", "fixed", "--json", "-o", "out.safetensors", "--set", &set];
        let record = decode(&place, script, &smaller, &options).record();
        let values = place.sample("out.safetensors").1;
        fs::remove_file(place.path("out.safetensors")).unwrap();
        (record, values)
    };
    let new = "devices=1;memory=1073741824;arch=sm_80";
    let (f32_record, exact) = sample(new, "f32");
    let (record, rounded) = sample(new, "tf32");
    assert_eq!(record["plan"]["precision"], json!({ "kind": "mixed", "dtype": "tf32" }));
    assert_eq!(record["estimate"]["peak_bytes"], f32_record["estimate"]["peak_bytes"]);
    let difference = largest_difference(&rounded, &exact);
    assert!((1e-5..3e-2).contains(&difference), "{difference}");

    let (record, values) = sample(ONE, "tf32");
    assert_eq!(record["adjusted"], json!(["precision tf32 → f32: not offered on this device"]));
    assert!(largest_difference(&values, &exact) < 1e-5);
}

#[test]
fn the_first_gpu_that_works_is_taken_and_the_others_are_named() {
    let place = Place::new();
    let options = ["--device", "auto", "--json", "-o", "out.png"];
    let skipped = decode(&place, "devices=2;memory=1073741824;refuses=0", &tiny(), &options);
    assert_eq!(skipped.record()["device"]["name"], "Fake GPU 1");
    assert!(skipped.stderr().contains("cuda:0 does not work and is skipped"), "{}", skipped.stderr());

    let none = decode(&place, "devices=0", &tiny(), &["--device", "auto", "--json", "-o", "none.png"]);
    assert_eq!(none.record()["device"]["backend"], "cpu");
    let refused = decode(&place, "devices=0", &tiny(), &["--device", "cuda", "-o", "refused.png"]);
    refused.failed(2, "no CUDA-capable device is detected");
    let refused = decode(&place, "devices=1;refuses=0", &tiny(), &["--device", "cuda:0", "-o", "refused.png"]);
    refused.failed(1, "no kernel for this device");
    let refused = decode(&place, ONE, &tiny(), &["--device", "cuda:1", "-o", "refused.png"]);
    refused.failed(2, "there is 1 GPU, cuda:0");
    assert_eq!(place.files(), ["none.png", "out.png"]);
}

#[test]
fn memory_that_runs_out_leads_to_a_smaller_plan() {
    let place = Place::new();
    // The device has 30 MB in all, of which whole pictures in f32 take more.
    let smaller = smaller(&place);
    let options = ["--device", "cuda", "--policy", "fixed", "--set", "precision=f32", "--json", "-o", "out.png"];
    let small = decode(&place, "devices=1;memory=30000000", &smaller, &options).record();
    assert_eq!(small["attempts"][0]["failure"]["kind"], "out-of-memory", "{small}");
    assert_eq!(small["plan"]["space"]["kind"], "blended", "{small}");
    assert!(small["outcome"]["peak_bytes"].as_u64().unwrap() < 30_000_000);

    // In the words of a library below libtorch.
    for words in ["cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "HIP error: hipErrorOutOfMemory"] {
        let script = format!("{ONE};oom=20;oom-text={words}");
        let options = ["--device", "cuda", "--json", "-o", "again.png"];
        let record = decode(&place, &script, &smaller, &options).record();
        assert_eq!(record["attempts"][0]["failure"]["kind"], "out-of-memory", "{record}");
        fs::remove_file(place.path("again.png")).unwrap();
    }
}

#[test]
fn a_memory_limit_is_a_cap() {
    let place = Place::new();
    let whole = ["--device", "cuda", "--policy", "fixed", "--set", "precision=f32", "--set", "space=whole", "--json"];
    // The whole takes 64 MiB at 256×256 pixels.
    let inputs = middle(&place, 32);
    let limited = |script: &str, output: &str| {
        let further = ["--memory-limit", "24MiB", "-o", output];
        decode(&place, script, &inputs, &[&whole[..], &further].concat()).record()
    };
    let record = limited(ONE, "out.png");
    assert_eq!(record["attempts"][0]["failure"]["kind"], "out-of-memory", "{record}");
    // Rounding comes on top.
    assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() < (24 + 32) * MIB, "{record}");
}

#[test]
fn values_that_are_not_finite_lead_to_f32() {
    let place = Place::new();
    let options = ["--device", "cuda", "--policy", "fixed", "--set", "precision=f16", "--json", "-o", "out.png"];
    let record = decode(&place, &format!("{ONE};nan=f16"), &tiny(), &options).record();
    assert_eq!(record["attempts"][0]["failure"]["kind"], "non-finite", "{record}");
    assert_eq!(record["plan"]["precision"]["dtype"], "f32");
}

#[test]
fn a_lost_device_ends_the_program_with_one_line() {
    let place = Place::new();
    // The first run measures the device, so that the second one loses it during the decode.
    decode(&place, ONE, &tiny(), &["--device", "cuda", "-o", "out.png"]).succeeded();
    let lost = decode(&place, &format!("{ONE};lost=300"), &bundled(), &["--device", "cuda", "-o", "lost.png"]);
    lost.failed(1, "the device is lost");
    assert_eq!(place.files(), ["out.png"]);
}

#[test]
fn an_interrupt_ends_a_slow_device_before_its_queue() {
    let place = Place::new();
    decode(&place, ONE, &tiny(), &["--device", "cuda", "-o", "out.png"]).succeeded();
    let [latent, vae, model] = bundled();
    // Each convolution takes 3 s by the device's own clock, which no load moves: the 30 of a decode
    // take a minute and a half, and the two that may be queued a few seconds.
    let arguments = ["decode", &latent, &vae, &model, "--device", "cuda", "-o", "slow.png"];
    let mut child = command(&place, &format!("{ONE};delay=3000"), &arguments);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !listens(&child) {
        assert!(child.try_wait().unwrap().is_none(), "it has ended already");
        thread::sleep(Duration::from_millis(5));
    }
    // Long enough for the first of them on most machines; where it is not yet at work, the end is
    // as soon.
    thread::sleep(Duration::from_secs(4));
    assert!(child.try_wait().unwrap().is_none(), "it has ended already");
    Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    let start = Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(45), "{:?}", start.elapsed());
    assert_eq!(place.files(), ["out.png"]);
}

#[test]
fn encodes_are_those_of_the_cpu() {
    let place = Place::new();
    let [_, vae, model] = bundled();
    let picture = root().join("examples/latents/astronaut.png").display().to_string();
    for (device, name) in [("cpu", "cpu.safetensors"), ("cuda", "gpu.safetensors")] {
        let set = ["--policy", "fixed", "--set", "precision=f32"];
        let arguments = [&["encode", &picture, &vae, &model, "--device", device, "-o", name][..], &set].concat();
        run(&place, ONE, &arguments).succeeded();
    }
    let values = |name: &str| {
        let bytes = fs::read(place.path(name)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = file.tensor(file.names()[0]).unwrap();
        let floats = tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        floats.collect::<Vec<f32>>()
    };
    let found = decibels(&values("cpu.safetensors"), &values("gpu.safetensors"));
    assert!(found > 90.0, "{found} dB");
}

/// A server with a processor and a GPU, in an order of their names.
fn config(cpu: &str, gpu: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[[routes]]\npolicy = \"fixed\"\n\
         [models.a]\nvae = {:?}\nfamily = \"flux\"\n\
         [devices.{cpu}]\ndevice = \"cpu\"\nthreads = 1\nmemory-limit = \"1GiB\"\n\
         [devices.{gpu}]\ndevice = \"cuda\"\nmemory-limit = \"512MiB\"\n",
        fixture("flux-bfl/ae.safetensors")
    )
}

fn server(place: &Place, config: &str, script: &str) -> Server {
    let libraries = format!("{LIBTORCH}/lib");
    Server::started(place, config, &[("TILEWRIGHT_LIBTORCH", LIBTORCH), (SEARCHED, &libraries), (SCRIPT, script)])
}

#[test]
fn a_processor_and_a_gpu_serve_side_by_side_in_either_order() {
    for (cpu, gpu) in [("a", "b"), ("b", "a")] {
        let place = Place::new();
        let server = server(&place, &config(cpu, gpu), ONE);
        for (device, backend) in [(cpu, "cpu"), (gpu, "cuda")] {
            let id = server.accepted(&json!({ "model": "a", "device": device }), &small(6, 6));
            let job = server.ended(&id);
            assert_eq!(job["state"], "done", "{job}");
            let decision: Value = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
            assert_eq!(decision["device"]["backend"], backend, "{decision}");
        }
        assert_eq!(server.end(), 0);
    }
}

#[test]
fn a_lost_device_ends_the_server_and_its_job_begins_anew() {
    let place = Place::new();
    let config = config("other", "main");
    // A first server measures the devices.
    assert_eq!(server(&place, &config, ONE).end(), 0);
    let losing = server(&place, &config, &format!("{ONE};lost=200"));
    let id = losing.accepted(&json!({ "model": "a", "device": "main" }), &small(6, 6));
    assert_eq!(losing.wait_for_end(), 1);
    let log = fs::read_to_string(place.path("server.log")).unwrap();
    assert!(log.contains("the device is lost"), "{log}");

    let anew = server(&place, &config, ONE);
    let job = anew.ended(&id);
    assert_eq!(job["state"], "done", "{job}");
    assert_eq!(anew.end(), 0);
}

#[test]
fn two_cards_of_one_kind_keep_their_own_measurements() {
    let place = Place::new();
    let decode_on = |device: &str| {
        let options = ["--device", device, "--policy", "fixed", "-o", "out.png"];
        let run = decode(&place, "devices=2;memory=1073741824", &tiny(), &options);
        run.succeeded();
        run.stderr()
    };
    for device in ["cuda:0", "cuda:1"] {
        decode_on(device);
    }
    for device in ["cuda:0", "cuda:1", "cuda:0"] {
        let told = decode_on(device);
        assert!(!told.contains("measuring"), "{device}: {told}");
    }
}

#[test]
fn nothing_waits_in_host_memory_that_is_the_devices() {
    let place = Place::new();
    let offload = |script: &str| {
        let options = ["--device", "cuda", "--policy", "fixed", "--set", "offload=true", "--dry-run", "--json"];
        let options = [&options[..], &["-o", "never.safetensors"]].concat();
        let record = decode(&place, script, &shapes(), &options).json();
        record["plan"]["offload"].as_bool().unwrap()
    };
    assert!(!offload(&format!("{ONE};integrated=1")));
    assert!(offload(ONE));
}
