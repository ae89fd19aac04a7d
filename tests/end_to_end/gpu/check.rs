//! `device check` on the fake GPU: sound devices pass, and each fault fails the part that looks for
//! it.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tilewright_fake_gpu::{LIBTORCH, ROCM_LIBTORCH};

use super::{ONE, SEARCHED, command_on, run};
use crate::program::{Place, Run, root};

/// The verdicts of a check by part, and its report.
fn check(place: &Place, script: &str, only: &str, further: &[&str]) -> (Vec<(String, String)>, Value, Run) {
    check_on(place, LIBTORCH, script, only, further)
}

/// The same with a libtorch.
fn check_on(
    place: &Place,
    libtorch: &str,
    script: &str,
    only: &str,
    further: &[&str],
) -> (Vec<(String, String)>, Value, Run) {
    let arguments = ["device", "check", "--device", "cuda", "--quick", "--only", only, "--report", "report.json"];
    // A busy machine is not taken for a hang.
    let patience = if further.is_empty() { &["--patience", "86400"][..] } else { further };
    checked(place, &mut command_on(place, libtorch, script, &[&arguments[..], patience].concat()))
}

/// The lines, the report and the end of a check that is about to be run.
fn checked(place: &Place, command: &mut Command) -> (Vec<(String, String)>, Value, Run) {
    let _ = fs::remove_file(place.path("report.json"));
    let run = Run(command.output().unwrap());
    let report: Value = serde_json::from_slice(&fs::read(place.path("report.json")).unwrap()).unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let verdicts = report["parts"].as_array().unwrap().iter().map(|row| (text(row, "part"), text(row, "verdict")));
    (verdicts.collect(), report, run)
}

#[test]
fn each_back_end_starts_with_its_settings() {
    let place = Place::new();
    let settings = |libtorch: &str| {
        let arguments = ["device", "check", "--device", "cuda", "--quick", "--only", "facts"];
        let arguments = [&arguments[..], &["--report", "report.json", "--patience", "86400"]].concat();
        // By the option alone, as users give it: the program starts itself anew.
        let mut command = command_on(&place, libtorch, ONE, &arguments);
        let (_, report, run) = checked(&place, command.env_remove(SEARCHED));
        run.succeeded();
        report["parts"][0]["data"]["settings"].clone()
    };
    let (cuda, rocm) = (settings(LIBTORCH), settings(ROCM_LIBTORCH));
    assert_eq!(cuda["PYTORCH_ALLOC_CONF"], "expandable_segments:True", "{cuda}");
    assert_eq!(rocm["MIOPEN_FIND_MODE"], "FAST", "{rocm}");
    assert_eq!(rocm["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"], "1", "{rocm}");
    assert_eq!(rocm["TORCH_BLAS_PREFER_HIPBLASLT"], "1", "{rocm}");
    assert!(rocm["PYTORCH_ALLOC_CONF"].is_null() && cuda["MIOPEN_FIND_MODE"].is_null(), "{rocm} {cuda}");
}

#[test]
fn a_sound_device_passes_its_check() {
    let place = Place::new();
    let parts = ["facts", "order", "operators", "limit", "out-of-memory", "offload", "speed-searched", "leaks"];
    let (verdicts, report, run) = check(&place, ONE, &parts.join(","), &[]);
    run.succeeded();
    let expected = parts.map(|part| {
        let verdict = if part == "speed-searched" { "SKIPPED" } else { "PASS" };
        (part.to_owned(), verdict.to_owned())
    });
    assert_eq!(verdicts, expected, "{report:#}");
    assert_eq!(report["passed"], true);
    let lines = run.stdout();
    assert_eq!(lines.lines().filter(|line| line.starts_with("PASS")).count(), 7, "{lines}");
    // It is pasted into bug reports.
    let text = report.to_string();
    for private in [place.path("").display().to_string(), root().display().to_string(), LIBTORCH.to_owned()] {
        assert!(!text.contains(private.trim_end_matches('/')), "{private} is in {text}");
    }
}

#[test]
fn transformers_with_weights_in_every_form_pass_their_check() {
    let place = Place::new();
    let parts = ["samples", "loras", "texts"];
    // So little memory that the transformers are narrow, on a chip with products in FP8.
    let (verdicts, report, run) = check(&place, "devices=1;arch=sm_89;memory=134217728", &parts.join(","), &[]);
    run.succeeded();
    assert_eq!(verdicts, parts.map(|part| (part.to_owned(), "PASS".to_owned())), "{report:#}");
    let rows = report["parts"][0]["data"].as_array().unwrap();
    let is_there = |stored: &str, weights: &str, dtype: &str| {
        rows.iter()
            .any(|row| row["stored"] == stored && row["weights"] == weights && row["precision"]["dtype"] == dtype)
    };
    for stored in ["bf16", "q8_0", "q4_k", "f8_e4m3"] {
        for weights in ["expanded", "as stored", "read ahead", "read ahead from the file", "attention in pieces"] {
            assert!(
                is_there(stored, weights, "f32") && is_there(stored, weights, "bf16"),
                "{stored}, {weights}: {report:#}"
            );
        }
    }
    assert!(is_there("f8_e4m3", "products in FP8", "bf16"), "{report:#}");
    let (_, report, _) = check(&place, "devices=1;memory=536870912", "recovery", &[]);
    let detail = report["parts"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("a limit and a full device"), "{detail}");
}

#[test]
fn a_fault_fails_the_part_that_looks_for_it() {
    let place = Place::new();
    let faults = [
        ("facts", "arch=none", "does not tell the architecture"),
        ("operators", "error=0.003", "differs from the CPU's"),
        ("attention", "attention=flash;error=0.005", "differs from the CPU's by"),
        ("limit", "cap=ignored", "were held under a limit of"),
        ("out-of-memory", "cap=ignored", "the limit has no effect"),
        ("offload", "copies=broken", "came back changed"),
        ("order", "error=0.005", "the picture differs from the CPU's by"),
        // By hand also error=0.008, peak=2 and slower=5, which take minutes.
        ("networks", "lost=2000", "the device is lost"),
        ("estimates", "lost=2000", "the device is lost"),
        ("speed", "lost=2000", "the device is lost"),
        ("large-tensors", "cliff=33554433", "times as long per value"),
        // Long beside what the processor does meanwhile, however busy it is.
        ("cancellation", "events=early;delay=200", "after it was cancelled"),
        ("leaks", "leak=4096", "are in use after"),
        ("samples", "memory=134217728;product-error=0.003", "differs from the CPU's by"),
        ("loras", "memory=134217728;product-error=0.003", "differs from the CPU's by"),
        ("texts", "memory=134217728;product-error=0.003", "differs from the CPU's by"),
        ("samples", "memory=134217728;lost=2000", "f32: the device is lost"),
        ("recovery", "memory=536870912;cap=ignored", "did not run out of memory"),
        ("offload", "crash=20", "crashed by signal 6"),
        ("offload", "lost=20", "the device is lost"),
    ];
    for (part, fault, words) in faults {
        let (verdicts, report, run) = check(&place, &format!("{ONE};{fault}"), part, &[]);
        run.failed(1, "1 of 1 parts failed");
        assert_eq!(verdicts, [(part.to_owned(), "FAIL".to_owned())], "{fault}");
        let detail = report["parts"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{fault}: {detail}");
        assert_eq!(report["device"], "cuda:0");
        assert!(!report.to_string().contains(place.path("").to_str().unwrap()), "{fault}: {report}");
    }
    // A GPU that does not work is not replaced by the processor.
    let arguments = ["device", "check", "--quick", "--only", "order,offload", "--report", "report.json"];
    let mut automatic = command_on(&place, LIBTORCH, &format!("{ONE};lost=1"), &arguments);
    let (verdicts, report, ended) = checked(&place, automatic.args(["--patience", "86400"]));
    ended.failed(1, "2 of 2 parts failed");
    assert!(verdicts.iter().all(|(_, verdict)| verdict == "FAIL"), "{report}");
    // Each part loses a device of its own: it is a process.
    for (parts, fault) in [(&["speed-searched", "speed-without"][..], "lost=300"), (&["leaks-expandable"], "leak=4096")]
    {
        let (verdicts, report, _) = check_on(&place, ROCM_LIBTORCH, &format!("{ONE};{fault}"), &parts.join(","), &[]);
        let expected: Vec<_> = parts.iter().map(|part| ((*part).to_owned(), "FAIL".to_owned())).collect();
        assert_eq!(verdicts, expected, "{report}");
    }
    let (verdicts, report, _) = check(&place, &format!("{ONE};hang=5"), "offload,out-of-memory", &["--patience", "3"]);
    assert_eq!(verdicts.iter().filter(|(_, verdict)| verdict == "FAIL").count(), 2, "{report}");
    assert!(report["parts"][0]["detail"].as_str().unwrap().contains("it hangs"), "{report}");
    run(&place, ONE, &["device", "check", "--only", "nothing"]).failed(2, "the parts are facts, order, operators");
}

#[test]
fn an_interrupted_check_leaves_no_process_and_no_file_but_its_report() {
    let place = Place::new();
    fs::create_dir(place.path("files")).unwrap();
    let arguments = ["device", "check", "--device", "cuda", "--only", "facts,samples,order", "--report", "report.json"];
    for (signal, status) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let mut command = command_on(&place, LIBTORCH, "devices=1;memory=134217728", &arguments);
        command.env("TMPDIR", place.path("files")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // The part that is running writes its transformer there.
        while !has_file(&place.path("files"), "transformer") {
            thread::sleep(Duration::from_millis(5));
        }
        Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap();
        let run = Run(child.wait_with_output().unwrap());
        assert_eq!(run.0.status.code(), status, "{}", run.stderr());
        // A process whose parent was killed ends by itself.
        let start = Instant::now();
        while fs::read_dir(place.path("files")).unwrap().count() > 0 && start.elapsed() < Duration::from_secs(600) {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(fs::read_dir(place.path("files")).unwrap().count(), 0, "{signal}");
        let report: Value = serde_json::from_slice(&fs::read(place.path("report.json")).unwrap()).unwrap();
        assert_eq!((&report["passed"], &report["parts"][0]["part"]), (&false.into(), &"facts".into()), "{report}");
        fs::remove_file(place.path("report.json")).unwrap();
        // Every process of the check has this folder in its environment.
        let folder = place.path("files").display().to_string();
        let is_its = |environment: Vec<u8>| String::from_utf8_lossy(&environment).contains(&folder);
        let is_left = || {
            let mut processes = fs::read_dir("/proc").unwrap().flatten();
            processes.any(|process| fs::read(process.path().join("environ")).is_ok_and(is_its))
        };
        while is_left() && start.elapsed() < Duration::from_secs(600) {
            thread::sleep(Duration::from_millis(20));
        }
        assert!(!is_left(), "{signal}");
    }
}

/// True if a file of a name lies somewhere in a folder.
fn has_file(folder: &Path, name: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.file_name().is_some_and(|of| of == name) || has_file(&path, name))
}
