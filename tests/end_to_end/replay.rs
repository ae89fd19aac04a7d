//! Full records, and decisions made again from them: pictures, clips and batches, failures on the
//! way, other policies, damage. And devices that are only a table.

use std::fs;

use serde_json::{Value, json};

use crate::{
    hostile::guest,
    program::{Place, Run, bundled, fixture, latent, root, smaller, texts},
    video::model,
};

const FULL: [&str; 4] = ["--record", "r.jsonl", "--record", "full"];

fn small() -> [String; 3] {
    [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")]
}

fn shapes() -> [String; 3] {
    [root().join("examples/latents/shapes.latent").display().to_string(), "--vae".into(), model()]
}

fn record(place: &Place, inputs: &[String], options: &[&str]) {
    place.decode(inputs, &[&FULL[..], options].concat()).succeeded();
}

fn lines(place: &Place) -> Vec<Value> {
    let text = fs::read_to_string(place.path("r.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn replay(place: &Place, options: &[&str]) -> Run {
    place.run(&[&["policy", "replay", "r.jsonl"], options].concat())
}

/// All calls are equal; gives how many there are.
fn equal(place: &Place, options: &[&str]) -> u64 {
    let report = replay(place, &[options, &["--json"]].concat()).json();
    let totals = &report["totals"];
    assert_eq!((&totals["different"], &totals["not_reproducible"]), (&json!(0), &json!(0)), "{report}");
    assert_eq!(totals["equal"], totals["calls"], "{report}");
    totals["calls"].as_u64().unwrap()
}

fn calls(record: &Value) -> Vec<&str> {
    let calls = record["exchange"]["calls"].as_array().unwrap();
    calls.iter().map(|call| call["question"]["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_picture_is_decided_again_from_its_record_alone() {
    let place = Place::new();
    let printed =
        place.decode(&smaller(&place), &[&FULL[..], &["--json", "-o", "x.png"]].concat()).succeeded().record();
    let [record] = &lines(&place)[..] else { panic!("one record") };
    assert_eq!(calls(record), ["decide", "learn"]);
    let heard = &record["exchange"]["calls"][0]["heard"];
    assert!(heard["estimates"].as_array().unwrap().len() > 3 && heard["trials"].is_array(), "{heard}");
    // Everywhere else it is the ordinary record.
    let mut ordinary = record.clone();
    ordinary.as_object_mut().unwrap().remove("exchange");
    assert_eq!(printed, ordinary);
    assert_eq!(serde_json::from_str::<Value>(&texts(&place.path("x.png"))["tilewright"]).unwrap(), ordinary);
    let kept = place.run(&["history", "--json"]).succeeded().stdout();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), ordinary);
    let schema = fs::read_to_string(root().join("host/plan/record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    assert!(schema.is_valid(record));

    assert_eq!(equal(&place, &[]), 2);
    assert_eq!(equal(&place, &["--policy", "adaptive"]), 2, "the policy by its name is the one that decided");
    let told = replay(&place, &["--all"]).succeeded().stdout();
    assert!(
        told.contains("line 1: decide 0 of ")
            && told.ends_with("2 calls in 1 session: 2 equal, 0 different, 0 not reproducible\n"),
        "{told}"
    );
}

#[test]
fn trials_failures_and_batches_are_decided_again() {
    let place = Place::new();
    // The second and third are told of those before.
    for _ in 0..3 {
        record(&place, &small(), &["-o", "x.png"]);
    }
    let told = &lines(&place)[2]["exchange"]["calls"][0]["heard"]["trials"][0]["trials"];
    assert_eq!(told.as_array().unwrap().len(), 2, "{told}");
    // Too little memory for what is asked for by hand: the attempt fails, and the policy is asked
    // again.
    let inputs = smaller(&place);
    let whole = place.decode(&inputs, &["--policy", "fixed", "--json", "-o", "x.png"]).json();
    let limit = (whole["outcome"]["peak_bytes"].as_u64().unwrap() / 2).to_string();
    record(&place, &inputs, &["--policy", "fixed", "--set", "space=whole", "--memory-limit", &limit, "-o", "x.png"]);
    let failed = lines(&place)[3].clone();
    assert_eq!(calls(&failed)[..2], ["decide", "recover"], "{failed}");
    // Several pictures at once, an encode, and a decision without a decode.
    let pair = place.write("pair.safetensors", latent(&[2, 16, 8, 8], 0.3));
    let [_, vae, path] = bundled();
    record(&place, &[pair, vae, path.clone()], &["-o", "pair.png"]);
    record(&place, &small(), &["--dry-run", "--policy", "gfx1151"]);
    assert_eq!(calls(&lines(&place)[5]), ["decide"]);
    assert!(equal(&place, &[]) >= 11);
}

#[test]
fn clips_are_decided_again_call_by_call() {
    let place = Place::new();
    record(&place, &shapes(), &["-o", "frames/"]);
    let whole =
        place.decode(&shapes(), &["--policy", "fixed", "--set", "space=whole", "--json", "-o", "x.safetensors"]);
    let limit = (whole.json()["outcome"]["peak_bytes"].as_u64().unwrap() * 3 / 4).to_string();
    let options = ["--policy", "fixed", "--set", "space=whole", "--set", "time=whole", "--memory-limit", &limit];
    record(&place, &shapes(), &[&options[..], &["-o", "x.safetensors"]].concat());
    // One that goes on where it was interrupted is not decided anew, and one that is not is.
    record(&place, &shapes(), &["--resume", "-o", "y.safetensors"]);
    let records = lines(&place);
    assert!(records.iter().all(|record| calls(record).contains(&"decide")));
    assert!(equal(&place, &[]) >= 6);
}

#[test]
fn what_was_tampered_with_is_found() {
    let place = Place::new();
    record(&place, &small(), &["-o", "x.png"]);
    let honest = lines(&place)[0].clone();
    let write = |change: &dyn Fn(&mut Value)| {
        let mut record = honest.clone();
        change(&mut record);
        place.write("r.jsonl", format!("\n{record}\n"));
    };
    type Change = (&'static str, fn(&mut Value));
    let changes: [Change; 4] = [
        ("answer", |record| record["exchange"]["calls"][0]["reply"]["answer"]["batch"] = json!(2)),
        ("plan", |record| record["exchange"]["calls"][0]["reply"]["plan"]["prefetch"] = json!(3)),
        ("fuel", |record| record["exchange"]["calls"][1]["reply"]["fuel"] = json!(7)),
        ("plan", |record| {
            for estimate in record["exchange"]["calls"][0]["heard"]["estimates"].as_array_mut().unwrap() {
                if estimate["plan"]["space"]["kind"] == "whole" {
                    estimate["cost"]["peak_bytes"] = json!(1_u64 << 50);
                }
            }
        }),
    ];
    for (what, change) in changes {
        write(&change);
        let run = replay(&place, &["--json"]);
        let report: Value = serde_json::from_str(&run.stdout()).unwrap();
        run.failed(1, "of 2 calls differ from the record");
        let found = report["calls"].as_array().unwrap().iter().flat_map(|call| call["differences"].as_array().unwrap());
        assert!(found.into_iter().any(|difference| difference["what"] == what), "{what}: {report}");
        assert!(replay(&place, &[]).stdout().contains("line 2: "), "{what}");
    }
    // The request is what the policy saw: another one is another decision.
    write(&|record| record["exchange"]["calls"][0]["request"]["memory_limit"] = json!(1));
    replay(&place, &[]).failed(1, "differ");
    let refused: [Change; 4] = [
        ("line 2: not a decision record", |record| record["plan"] = json!(3)),
        ("line 2: 0 samples", |record| record["exchange"]["calls"][0]["request"]["batch"] = json!(0)),
        ("settings are not what the policy says", |record| record["policy"]["version"] = json!("9")),
        ("has no setting 'no'", |record| record["policy"]["settings"]["no"] = json!(true)),
    ];
    for (words, change) in refused {
        write(&change);
        replay(&place, &[]).failed(2, words);
    }
}

#[test]
fn what_is_no_full_record_ends_with_two() {
    let place = Place::new();
    let replay = |name: &str| place.run(&["policy", "replay", name]);
    replay("nowhere.jsonl").failed(2, "nowhere.jsonl: can't be read");
    place.write("text.jsonl", "{}\n");
    replay("text.jsonl").failed(2, "text.jsonl: line 1: not a decision record: missing field");
    place.write("empty.jsonl", "");
    replay("empty.jsonl").failed(2, "none of 0 records");
    place.decode(&small(), &["--record", "plain.jsonl", "-o", "x.png"]).succeeded();
    assert!(!fs::read_to_string(place.path("plain.jsonl")).unwrap().contains("exchange"));
    replay("plain.jsonl").failed(2, "none of 1 records was made with --record full");
    place.decode(&small(), &["--record", "full", "-o", "x.png"]).failed(2, "--record FILE --record full");
    place.decode(&small(), &["--record", "a", "--record", "b", "-o", "x.png"]).failed(2, "one file");
    assert_eq!(place.files(), ["empty.jsonl", "plain.jsonl", "text.jsonl", "x.png"]);
    place.decode(&small(), &["--record", "./full", "-o", "x.png"]).succeeded();
    assert!(place.files().contains(&"full".to_owned()));
}

#[test]
fn policies_that_do_not_ship_are_known_by_their_digest() {
    let place = Place::new();
    let file = place.write("p.wasm", guest("", "(unreachable)"));
    record(&place, &small(), &["--policy", &file, "-o", "x.png"]);
    assert_eq!(lines(&place)[0]["exchange"]["calls"][0]["reply"]["fallback"]["reason"], "trap");
    replay(&place, &[]).failed(2, "does not ship with this program: give its file with --policy-file");
    let other = place.write("other.wasm", guest("", ""));
    replay(&place, &["--policy-file", &other]).failed(2, "none of the files given is that one");
    // The trap, and the host's default in its place.
    assert_eq!(equal(&place, &["--policy-file", &file]), 2);
    assert_eq!(equal(&place, &["--policy", &file]), 2);
}

#[test]
fn another_policy_is_compared_as_far_as_the_records_tell() {
    let place = Place::new();
    let fixed = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32", "-o", "x.png"];
    for _ in 0..2 {
        record(&place, &small(), &fixed);
    }
    record(&place, &small(), &["--no-history", "-o", "x.png"]);
    let report = |options: &[&str]| {
        let run = replay(&place, &[options, &["--json"]].concat());
        serde_json::from_str::<Value>(&run.stdout()).unwrap_or_else(|error| panic!("{error}: {}", run.stderr()))
    };
    // It asks for nothing, and so what it would have decided is known of all; what that is worth of
    // those that were priced.
    let found = report(&[
        "--policy",
        "fixed",
        "--set",
        "space=whole",
        "--set",
        "precision=f32",
        "--set",
        "layout=channels-first",
    ]);
    let totals = &found["totals"];
    assert_eq!((&totals["decisions"], &totals["not_known"]), (&json!(3), &json!(0)), "{found}");
    for row in found["decisions"].as_array().unwrap() {
        let (verdict, both) = (&row["verdict"], row["other_worth"].is_object() && row["recorded_worth"].is_object());
        assert!(verdict == "not-priced" || both, "{row}");
    }
    // The questions of adaptive are in its own record alone, which is of the same request.
    let found = report(&["--policy", "adaptive"]);
    let known: Vec<_> =
        found["decisions"].as_array().unwrap().iter().map(|row| row["verdict"] != "not-known").collect();
    assert!(known.len() == 3 && known[2], "{found}");
    let share = found["totals"]["nothing_said"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&share), "{found}");
    let run = replay(&place, &["--policy", "comfyui"]);
    assert!(run.stdout().contains("nothing can be said of"), "{}", run.stdout());
    replay(&place, &["--policy", "nobody"]).failed(2, "unknown policy 'nobody'");
    replay(&place, &["--policy", "fixed", "--set", "tiel=1"]).failed(2, "no setting 'tiel'");
}

#[test]
fn a_device_is_exported_and_policies_run_on_it() {
    let place = Place::new();
    for policy in
        [&["--policy", "adaptive"][..], &["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32"]]
    {
        record(&place, &small(), &[policy, &["-o", "x.png"]].concat());
    }
    let run = place.run(&["policy", "table", "r.jsonl", "-o", "t.json", "--name", "a test", "--priced"]);
    run.succeeded();
    assert!(run.stderr().contains("in 1 case"), "{}", run.stderr());
    let table: Value = serde_json::from_slice(&fs::read(place.path("t.json")).unwrap()).unwrap();
    assert_eq!(table["name"], "a test");
    assert!(table["cases"][0]["plans"].as_array().unwrap().len() > 1);
    let simulate = |options: &[&str]| place.run(&[&["policy", "simulate", "--device", "t.json"], options].concat());
    let report = simulate(&["--policy", "adaptive", "--json", "--plot", "p.html"]).json();
    let row = &report["policies"][0];
    assert_eq!(report["requests"], row["requests"].as_array().unwrap().len());
    assert!(row["done"].as_u64().unwrap() > 0 && row["prices_asked"].as_u64().unwrap() > 0, "{row}");
    assert!(fs::read_to_string(place.path("p.html")).unwrap().contains("Cumulative regret"));
    // The requests of records, asked again.
    let again =
        simulate(&["--workload", "r.jsonl", "--json", "--policy", "fixed:space=whole,precision=f32", "--exact-only"])
            .json();
    assert_eq!((&again["requests"], &again["policies"][0]["done"]), (&json!(2), &json!(2)), "{again}");

    place.write("w.json", r#"{"requests": [{"width": 64, "height": 65}]}"#);
    simulate(&["--workload", "w.json"]).failed(2, "w.json: request 1: the table has nothing of 1 × 64×65");
    place.write("bad.json", "{}");
    place.run(&["policy", "simulate", "--device", "bad.json"]).failed(2, "bad.json: not a device's table");
    simulate(&["--plot", "x.pdf"]).failed(2, "expected .svg or .html");
    place.run(&["policy", "table", "bad.json", "-o", "t2.json"]).failed(2, "bad.json: neither records nor");
}

#[test]
fn the_bundled_device_tells_policies_apart() {
    let place = Place::new();
    let table = bundled_device("two-core-cpu.json");
    let options = ["policy", "simulate", "--device", &table, "--json", "--plot", "p.svg"];
    let report = place.run(&options).json();
    let (adaptive, diffusers) = (row_of(&report, "adaptive"), row_of(&report, "diffusers"));
    let share = |row: &Value, what: &str| row[what].as_f64().unwrap() / report["requests"].as_f64().unwrap();
    assert!(share(&adaptive, "judged") > 0.9 && share(&adaptive, "failed") < 0.1, "{adaptive}");
    assert!(adaptive["mean_regret"].as_f64() < diffusers["mean_regret"].as_f64(), "{adaptive} {diffusers}");
    assert_eq!(place.run(&options).json(), report, "the same every time");
    assert!(fs::read_to_string(place.path("p.svg")).unwrap().contains("</svg>"));
}

#[test]
fn gfx1151_decodes_whole_where_its_rocm_is_recent() {
    let place = Place::new();
    let table: Value = serde_json::from_slice(&fs::read(bundled_device("gfx1151.json")).unwrap()).unwrap();
    let requests = json!({ "requests": table["cases"].as_array().unwrap().iter().map(|case| {
        let request = &case["request"];
        json!({ "family": request["model"]["family"], "width": request["width"], "height": request["height"] })
    }).collect::<Vec<_>>() });
    place.write("w.json", requests.to_string());
    let simulate = |table: &Value| {
        place.write("device.json", table.to_string());
        let options = ["policy", "simulate", "--device", "device.json", "--workload", "w.json", "--allow", "blended"];
        let report = place.run(&[&options[..], &["--json", "--policy", "gfx1151"]].concat()).json();
        row_of(&report, "gfx1151")
    };
    // Every decode that was measured is whole, and this policy chooses it.
    let recent = simulate(&table);
    assert_eq!((&recent["done"], &recent["failed"], &recent["mean_regret"]), (&json!(4), &json!(0), &json!(0.0)));
    // With an older release it takes the published tiles, which nobody measured there.
    let mut older = table;
    older["device"]["hints"] = json!([{ "name": "hip", "value": "7.2.0" }, { "name": "rocm", "value": "7.2.0" }]);
    let older = simulate(&older);
    assert_eq!((&older["not_in_table"], &older["failed"]), (&json!(4), &json!(0)), "{older}");
}

fn bundled_device(name: &str) -> String {
    root().join("examples/devices").join(name).display().to_string()
}

/// A policy's row of a simulation's report.
fn row_of(report: &Value, label: &str) -> Value {
    let policies = report["policies"].as_array().unwrap();
    policies.iter().find(|row| row["label"] == label).unwrap().clone()
}
