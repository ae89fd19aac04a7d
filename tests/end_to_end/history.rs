//! The history: kept by every decode, listed, exported, cleared, and never in the way of a picture.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};
use tilewright_history::{Filter, History};
use tilewright_plan::Record;

use crate::{
    hostile::guest,
    program::{Place, Run, fixture},
};

fn inputs() -> [String; 3] {
    [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")]
}

/// One decode, as a record.
fn decoded(place: &Place, options: &[&str]) -> Value {
    place.decode(&inputs(), &[options, &["--json", "-o", "x.png"]].concat()).succeeded().record()
}

/// Decodes with another place for the history.
fn decode_with(place: &Place, variable: &str, value: impl AsRef<std::ffi::OsStr>) -> Run {
    let inputs = inputs();
    let arguments = ["decode", &inputs[0], &inputs[1], &inputs[2], "--device", "cpu", "-o", "out.png"];
    let mut command = place.command(&arguments);
    // Only where the variable says, whatever the place has set.
    command.env_remove("TILEWRIGHT_HISTORY").env(variable, value);
    Run(command.output().unwrap())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn warnings(run: &Run) -> Vec<String> {
    run.stderr().lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect()
}

#[test]
fn every_decode_is_kept_listed_filtered_exported_and_cleared() {
    let place = Place::new();
    let path = place.history().display().to_string();
    assert_eq!(place.run(&["history", "path"]).succeeded().stdout(), format!("{path}\n"));
    let run = place.run(&["history"]);
    assert!(run.succeeded().stdout().starts_with("Nothing yet"), "{}", run.stdout());
    assert_eq!(place.run(&["history", "--json"]).succeeded().stdout(), "");
    assert!(!place.history().exists(), "looking makes no file");

    let fixed = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32"];
    let first = decoded(&place, &fixed);
    decoded(&place, &["--dry-run"]);
    decoded(&place, &["--no-history"]);
    let second = decoded(&place, &[]);
    assert_eq!(fs::metadata(place.history()).unwrap().permissions().mode() & 0o777, 0o600);

    let list =
        |options: &[&str]| lines(&place.run(&[&["history", "list", "--json"], options].concat()).succeeded().stdout());
    let both = vec![second.clone(), first.clone()];
    assert_eq!(list(&[]), both);
    assert_eq!(list(&["--limit", "1"]), both[..1]);
    assert_eq!(list(&["--policy", "fixed"]), both[1..]);
    assert_eq!(
        list(&["--family", "flux", "--since", "1h", "--device", first["device"]["arch"].as_str().unwrap()]),
        both
    );
    for nothing in [&["--family", "sdxl"][..], &["--failed"], &["--device", "abacus"], &["--since", "2999-01-01"]] {
        assert_eq!(list(nothing), [] as [Value; 0], "{nothing:?}");
    }
    let table = place.run(&["history", "--policy", "fixed"]).succeeded().stdout();
    assert_eq!(table.lines().count(), 2, "{table}");
    for words in ["when (UTC)", "flux", "whole, f32, channels-last", "fixed", "ratio"] {
        assert!(table.contains(words), "{words}: {table}");
    }

    assert_eq!(lines(&place.run(&["history", "export", "-"]).succeeded().stdout()), [first.clone(), second.clone()]);
    place.run(&["history", "export", "out.jsonl", "--policy", "fixed"]).succeeded();
    assert_eq!(lines(&fs::read_to_string(place.path("out.jsonl")).unwrap()), [first]);
    assert_eq!(place.files(), ["out.jsonl", "x.png"]);

    place.run(&["history", "clear"]).failed(2, "--yes");
    assert_eq!(list(&[]).len(), 2);
    let cleared =
        |options: &[&str]| place.run(&[&["history", "clear", "--yes"], options].concat()).succeeded().stdout();
    assert_eq!(cleared(&["--policy", "fixed"]), "Removed 1 record.\n");
    assert_eq!(list(&[]), [second]);
    assert_eq!(cleared(&[]), "Removed 1 record.\n");
    assert_eq!(cleared(&[]), "Removed 0 records.\n");
}

#[test]
fn a_profiled_run_is_kept_with_a_summary_of_where_its_time_went() {
    let place = Place::new();
    decoded(&place, &[]);
    let table = place.run(&["history"]).succeeded().stdout();
    assert!(!table.contains("profile") && !table.contains("overhead"), "{table}");
    let profiled = decoded(&place, &["--profile", "trace.json"]);
    let kept = lines(&place.run(&["history", "--json"]).succeeded().stdout());
    assert_eq!((kept.len(), kept[1].get("profile")), (2, None));
    let (summary, profile) = (&kept[0]["profile"], &profiled["profile"][0]);
    for figure in ["stage_ms", "unprofiled_ms", "overhead"] {
        assert_eq!(summary[figure], profile[figure], "{figure}");
    }
    let rows = |of: &Value| of["categories"].as_array().unwrap().clone();
    let share = |row: &Value| (row["category"].clone(), row["total_ms"].clone(), row["share"].clone());
    let [shares, expected] = [summary, profile].map(|of| rows(of).iter().map(share).collect::<Vec<_>>());
    assert_eq!(shares, expected);
    assert_eq!(kept, lines(&place.run(&["history", "export", "-"]).stdout()).into_iter().rev().collect::<Vec<_>>());
    let table = place.run(&["history"]).succeeded().stdout();
    let row = table.lines().nth(1).unwrap();
    assert!(table.lines().next().unwrap().ends_with("profile") && row.contains("overhead"), "{table}");
    assert!(row.contains(expected[0].0.as_str().unwrap()), "{table}");
    // Policies are told of both, and the file is read back as records.
    place.run(&["history", "export", "out.jsonl"]).succeeded();
    let read = place.run(&["policy", "replay", "out.jsonl", "--policy", "adaptive"]);
    assert!(!read.stderr().contains("damaged"), "{}", read.stderr());
}

#[test]
fn histories_of_other_machines_are_merged() {
    let (here, there) = (Place::new(), Place::new());
    let (own, other) = (decoded(&here, &[]), decoded(&there, &["--policy", "fixed"]));
    let file = there.history().display().to_string();
    let said = here.run(&["history", "merge", &file, &file]).succeeded().stdout();
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [format!("{file}: 1 record added, 0 there already"), format!("{file}: 0 records added, 1 there already")]
    );
    let listed = lines(&here.run(&["history", "--json"]).succeeded().stdout());
    assert_eq!(listed, [other, own]);
    // A name that is wrong costs nothing of the others.
    let broken = here.write("broken.sqlite", "SQLite format 3\0 and no more");
    for (wrong, words) in [("nowhere.sqlite", "there is no such history"), (broken.as_str(), "history is damaged")] {
        here.run(&["history", "merge", &file, wrong]).failed(2, words);
    }
    assert_eq!(lines(&here.run(&["history", "--json"]).succeeded().stdout()).len(), 2);
    assert_eq!(lines(&there.run(&["history", "--json"]).succeeded().stdout()).len(), 1);
}

#[test]
fn wrong_arguments_end_with_two() {
    let place = Place::new();
    decoded(&place, &[]);
    place.run(&["history", "--since", "yesterday"]).failed(2, "90min");
    place.run(&["history", "--limit", "0"]).failed(2, "--limit");
    place.run(&["history", "export", "nowhere/out.jsonl"]).failed(2, "nowhere/out.jsonl");
    place.run(&["history", "export", "/dev/null"]).failed(2, "not a file");
    let database = place.history().display().to_string();
    place.run(&["history", "export", &database]).failed(2, "is the history, which is read");
    assert!(place.run(&["history"]).succeeded().stdout().contains("flux"));
}

#[test]
fn a_decode_that_fails_is_kept_as_failed() {
    let place = Place::new();
    let loud = place.write("loud.safetensors", crate::program::latent(&[1, 16, 8, 8], f32::MAX));
    let [_, vae, path] = inputs();
    let run = place.decode(&[loud, vae, path], &["--json", "-o", "x.png"]);
    assert_eq!(run.0.status.code(), Some(1), "{}", run.stderr());
    decoded(&place, &[]);
    let failed = lines(&place.run(&["history", "--failed", "--json"]).succeeded().stdout());
    assert_eq!(failed, [run.record()]);
    assert!(place.run(&["history", "--failed"]).stdout().contains("failed"));
}

#[test]
fn policies_are_told_what_was_measured() {
    // Answers where it is told of exactly this many trials, and else traps.
    let policy = |trials: u32| {
        let count = format!("(i32.ne (i32.load (i32.const 2052)) (i32.const {trials}))");
        guest("", &format!("(call $trials (i32.const 8) (i32.const 2048)) (if {count} (then (unreachable)))"))
    };
    let place = Place::new();
    let answers = |trials, options: &[&str]| {
        let policy = place.write("p.wasm", policy(trials));
        !decoded(&place, &[options, &["--dry-run", "--policy", &policy]].concat())["answer"].is_null()
    };
    assert!(answers(0, &[]) && !answers(1, &[]));
    for precision in ["precision=f32", "precision=f32", "precision=bf16"] {
        decoded(&place, &["--policy", "fixed", "--set", "space=whole", "--set", precision]);
    }
    assert!(answers(3, &[]) && !answers(2, &[]));
    assert!(answers(0, &["--no-history"]));
    // Another number of threads is another device.
    assert!(answers(0, &["--threads", "2"]));
}

#[test]
fn a_damaged_history_is_put_aside_and_the_picture_comes() {
    let place = Place::new();
    fs::write(place.history(), "this is no database").unwrap();
    place.run(&["history"]).failed(2, "damaged");
    let run = place.decode(&inputs(), &["-o", "out.png"]);
    assert_eq!(warnings(run.succeeded()).len(), 1, "{}", run.stderr());
    assert!(warnings(&run)[0].contains(".broken-"), "{}", run.stderr());
    assert_eq!(lines(&place.run(&["history", "--json"]).stdout()).len(), 1);
    let aside: Vec<_> = fs::read_dir(place.history().parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.display().to_string().contains("history.sqlite.broken-"))
        .collect();
    assert_eq!(aside.len(), 1);
    assert_eq!(fs::read_to_string(&aside[0]).unwrap(), "this is no database");
    // And by hand, without a decode.
    fs::write(place.history(), "this is no database").unwrap();
    let run = place.run(&["history", "clear", "--yes"]);
    assert!(run.succeeded().stderr().contains(".broken-"), "{}", run.stderr());
    assert!(place.run(&["history"]).succeeded().stdout().starts_with("Nothing yet"));
}

#[test]
fn a_file_that_the_variable_names_by_mistake_is_left_alone() {
    let place = Place::new();
    let weights = fs::read(&inputs()[2]).unwrap();
    place.write("ae.safetensors", &weights);
    let run = decode_with(&place, "TILEWRIGHT_HISTORY", "ae.safetensors");
    let found = warnings(run.succeeded());
    assert!(found.len() == 1 && found[0].contains("no history of tilewright's"), "{}", run.stderr());
    assert_eq!(place.files(), ["ae.safetensors", "out.png"]);
    assert_eq!(fs::read(place.path("ae.safetensors")).unwrap(), weights);
}

#[test]
fn a_history_that_cannot_be_kept_costs_one_line_and_no_picture() {
    let place = Place::new();
    let newer = place.path("newer.sqlite");
    drop(History::open(&newer).unwrap());
    // The format's number, in the file's header.
    let mut bytes = fs::read(&newer).unwrap();
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    fs::write(&newer, bytes).unwrap();
    place.write("file", "");
    let cases = [
        ("TILEWRIGHT_HISTORY", newer.clone(), "newer"),
        ("TILEWRIGHT_HISTORY", place.path("file/history.sqlite"), "can't be made"),
        ("TILEWRIGHT_HISTORY", place.path(""), "can't be used"),
        ("XDG_STATE_HOME", "/proc".into(), "can't be made"),
    ];
    for (variable, value, words) in cases {
        let run = decode_with(&place, variable, &value);
        let found = warnings(run.succeeded());
        assert!(found.len() == 1 && found[0].contains(words), "{words}: {}", run.stderr());
        fs::remove_file(place.path("out.png")).unwrap();
    }
    // Even root can't write where nobody can: only then is this no folder that can be written.
    let folder = place.path("read-only");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let writable = fs::write(folder.join("probe"), "").is_ok();
    let run = decode_with(&place, "XDG_STATE_HOME", &folder);
    assert_eq!(warnings(run.succeeded()).len(), usize::from(!writable), "{}", run.stderr());
    assert!(place.path("out.png").is_file());
}

#[test]
fn it_is_kept_where_the_environment_says() {
    let place = Place::new();
    let kept = |path: &Path| History::existing(path).unwrap().map(|history| history.count(&Filter::default()).unwrap());
    decode_with(&place, "TILEWRIGHT_HISTORY", "off").succeeded();
    assert_eq!(place.files(), ["out.png"]);
    assert!(!place.history().exists());
    let run = Run(place.command(&["history"]).env("TILEWRIGHT_HISTORY", "off").output().unwrap());
    run.failed(2, "TILEWRIGHT_HISTORY");
    // Empty is as if it were not set: the user's state folder.
    decode_with(&place, "TILEWRIGHT_HISTORY", "").succeeded();
    let home = place.history().parent().unwrap().join(".local/state/tilewright");
    assert_eq!(kept(&home.join("history.sqlite")), Some(1));
    assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o700);
    decode_with(&place, "XDG_STATE_HOME", place.path("state")).succeeded();
    assert_eq!(kept(&place.path("state/tilewright/history.sqlite")), Some(1));
    decode_with(&place, "TILEWRIGHT_HISTORY", "here.sqlite").succeeded();
    assert_eq!(kept(&place.path("here.sqlite")), Some(1));
}

#[test]
fn processes_at_once_share_it() {
    const PROCESSES: usize = 3;
    let place = Place::new();
    let inputs = inputs();
    let started: Vec<_> = (0..PROCESSES)
        .map(|process| {
            let output = format!("{process}.png");
            let arguments = ["decode", &inputs[0], &inputs[1], &inputs[2], "--device", "cpu", "-o", &output];
            place.command(&arguments).stdout(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut process in started {
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(lines(&place.run(&["history", "--json"]).stdout()).len(), PROCESSES);
}

#[test]
fn hostile_records_do_no_harm() {
    let place = Place::new();
    let mut record = decoded(&place, &["--no-history"]);
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\n\u{9b}31m\u{202e}\u{0}";
    record["policy"]["name"] = json!(hostile);
    record["request"]["model"]["family"] = json!(hostile.repeat(1000));
    record["device"]["name"] = json!("%s'; DROP TABLE trial; --".to_owned() + hostile);
    record["time"] = json!(hostile);
    record["plan"]["reason"] = json!("x".repeat(500_000));
    record["request"]["width"] = json!(u32::MAX);
    record["request"]["batch"] = json!(u32::MAX);
    record["estimate"]["elapsed_ms"] = json!(0);
    record["outcome"]["elapsed_ms"] = json!(1e18);
    record["outcome"]["peak_bytes"] = json!(u64::MAX);
    let hostile_record: Record = serde_json::from_value(record).unwrap();
    History::open(&place.history()).unwrap().append(hostile, &hostile_record).unwrap();

    for arguments in [
        &["history"][..],
        &["history", "--json"],
        &["history", "export", "-"],
        &["history", "--policy", hostile.trim_end_matches('\0')],
    ] {
        let run = place.run(arguments);
        let shown = run.succeeded().stdout() + &run.stderr();
        let unsafe_on_terminals =
            |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
        assert!(!shown.contains(unsafe_on_terminals), "{arguments:?}: {shown:?}");
    }
    let table = place.run(&["history"]).stdout();
    assert!(table.lines().count() == 2 && table.len() < 2000, "{table}");
    let back: Record = serde_json::from_str(&place.run(&["history", "--json"]).stdout()).unwrap();
    assert_eq!(back, hostile_record);
    // A decode is told of what it is told of, and goes on.
    decoded(&place, &[]);
    assert_eq!(lines(&place.run(&["history", "--json"]).stdout()).len(), 2);
}
