//! Policies through the gate, and beside each other.

use std::fs;

use crate::{
    hostile::guest,
    program::{Place, fixture},
};

const TRAP: &str = "(unreachable)";

#[test]
fn what_ships_passes_the_gate() {
    let place = Place::new();
    let text = place.run(&["policy", "check", "adaptive"]).succeeded().stdout();
    assert!(text.contains("golden"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("adaptive 0.") && text.contains(" passes: "), "{text}");
    for name in ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"] {
        let verdict = place.run(&["policy", "check", name, "--json"]).json();
        assert_eq!(verdict["passes"], true);
        assert!(verdict["golden"]["requests"].as_u64().unwrap() >= 60, "{verdict}");
        assert_eq!(verdict["counts"]["errors"], 0);
        // A golden set for each stage that it answers.
        let stages = verdict["stages"].as_array().unwrap();
        let names: Vec<&str> = stages.iter().map(|set| set["stage"].as_str().unwrap()).collect();
        let answered: &[&str] = match name {
            "gfx1151" => &["decode", "denoise"],
            "adaptive" | "fixed" => &["decode", "encode", "denoise", "text"],
            _ => &["decode", "encode", "denoise"],
        };
        assert_eq!(names, answered);
        let sum = stages.iter().map(|set| set["requests"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(verdict["golden"]["requests"], sum, "{verdict}");
        assert!(stages.iter().all(|set| set["tried"] == set["requests"] && set["requests"].as_u64() > Some(10)));
    }
    let text =
        place.run(&["policy", "check", "fixed", "--set", "tile=1024", "--set", "space=blended"]).succeeded().stdout();
    assert!(text.contains("tile=1024"), "{text}");
}

#[test]
fn exit_statuses_tell_scripts_apart_what_failed() {
    let place = Place::new();
    let traps = place.write("traps.wasm", guest("", TRAP));
    let run = place.run(&["policy", "check", &traps]);
    run.failed(1, "policy traps.wasm fails ");
    assert!(run.stdout().contains("unreachable"), "{}", run.stdout());
    let run = place.run(&["policy", "check", &traps, "--json"]);
    run.failed(1, "golden requests (trap");
    let verdict: serde_json::Value = serde_json::from_str(&run.stdout()).unwrap();
    assert_eq!((&verdict["passes"], &verdict["steps"][6]["state"]), (&false.into(), &"failed".into()));
    assert!(verdict["findings"].as_array().unwrap().iter().any(|finding| finding["problem"] == "trap"));
    let describe = place.write("describe.wasm", guest(TRAP, ""));
    let run = place.run(&["policy", "check", &describe]);
    run.failed(1, "fails at describe");
    assert!(run.stdout().contains("not reached"), "{}", run.stdout());
    place.run(&["policy", "check", "nowhere.wasm"]).failed(2, "nowhere.wasm");
    place.run(&["policy", "check", "adaptve"]).failed(2, "unknown policy");
    let text = place.write("text.wasm", "# not wasm");
    place.run(&["policy", "check", &text]).failed(2, "it is a text file");
    let mut torn = guest("", "");
    torn.truncate(torn.len() / 2);
    let torn = place.write("torn.wasm", torn);
    place.run(&["policy", "check", &torn]).failed(2, "torn.wasm");
    place.run(&["policy", "check", "fixed", "--set", "tiel=9"]).failed(2, "no setting 'tiel'");
    place.run(&["policy", "check", "fixed", "--set", "tile=nine"]).failed(2, "tile=nine");
}

#[test]
fn a_policy_that_fails_the_gate_is_warned_of_and_the_picture_comes() {
    let place = Place::new();
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
    let policy = place.write("p.wasm", guest("", TRAP));
    for _ in 0..2 {
        let run = place.decode(&inputs, &["--policy", &policy, "--json", "-o", "out.png"]);
        assert_eq!(run.json()["fallback"]["reason"], "trap");
        let stderr = run.stderr();
        let warnings: Vec<&str> = stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        let [warning] = warnings.as_slice() else { panic!("one line: {stderr}") };
        assert!(
            warning.starts_with("warning: p.wasm fails ") && warning.ends_with("see 'tilewright policy check p.wasm'"),
            "{warning}"
        );
        assert!(!stderr.contains("failed to learn"), "the gate tells once: {stderr}");
    }
    let shipped = place.decode(&inputs, &["--policy", "fixed", "-o", "other.png"]);
    assert_eq!(shipped.succeeded().stderr(), "");
    let bench = place.run(&[
        "bench",
        &inputs[0],
        "--vae",
        &inputs[2],
        "--device",
        "cpu",
        "--warmup",
        "0",
        "--iterations",
        "3",
        "--policy",
        &policy,
    ]);
    assert_eq!(bench.succeeded().stderr().matches("warning: p.wasm fails").count(), 1, "{}", bench.stderr());
}

#[test]
fn policies_are_compared_on_the_golden_set_and_on_records() {
    let place = Place::new();
    let comparison = place.run(&["policy", "diff", "adaptive", "fixed", "--json"]).json();
    assert!(comparison["requests"].as_u64().unwrap() >= 60);
    assert!(!comparison["differences"].as_array().unwrap().is_empty());
    assert!(comparison["worth"]["time_ratio"].as_f64().unwrap() > 0.0);
    let text = place.run(&["policy", "diff", "adaptive", "comfyui"]).succeeded().stdout();
    for words in ["A ", "B ", "alike", "time", "memory", "by formula", "gfx1151"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let same = place.run(&["policy", "diff", "fixed", "fixed"]).succeeded().stdout();
    assert!(!same.contains("request  "), "{same}");
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
    place.decode(&inputs, &["--policy", "fixed", "--record", "r.jsonl", "-o", "out.png"]).succeeded();
    let arguments = ["policy", "diff", "fixed", "fixed", "--set-b", "precision=bf16", "--records", "r.jsonl"];
    let comparison = place.run(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!((&comparison["requests"], &comparison["requests_from"]), (&1.into(), &"r.jsonl".into()));
    let text = place.run(&arguments).succeeded().stdout();
    assert!(text.contains("with precision=bf16") && text.contains("line 1: flux"), "{text}");
    place.run(&["policy", "diff", "fixed", "fixd"]).failed(2, "unknown policy 'fixd'");
    place.run(&["policy", "diff", "fixed", "fixed", "--records", "none.jsonl"]).failed(2, "none.jsonl");
    fs::write(place.path("bad.jsonl"), "{}\n").unwrap();
    place
        .run(&["policy", "diff", "fixed", "fixed", "--records", "bad.jsonl"])
        .failed(2, "line 1: not a decision record");
}
