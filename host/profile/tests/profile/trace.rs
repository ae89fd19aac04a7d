//! Traces in Chrome's format.

use std::collections::HashMap;

use serde_json::Value;
use tilewright_profile::{Category::Gemm, Error, Part, Profile, Recording, write_trace};

use crate::made::{GPU, Made};

/// The entries of a trace of these stages.
pub fn events(stages: &[(Profile, Recording)]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    write_trace(&path, stages).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let mut trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(trace["displayTimeUnit"], "ms");
    serde_json::from_value(trace["traceEvents"].take()).unwrap()
}

/// Asserts the fields of each kind of entry, and that slices of a line lie within each other or
/// apart.
#[track_caller]
pub fn assert_nested(events: &[Value]) {
    let mut open: HashMap<(u64, u64), Vec<u64>> = HashMap::new();
    let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1e3).round() as u64;
    for event in events {
        let line = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        assert!(event["name"].is_string());
        match event["ph"].as_str().unwrap() {
            "M" => assert!(event["args"]["name"].is_string()),
            "s" => assert!(event["id"].is_u64() && event["ts"].is_number()),
            "f" => assert!(event["id"].is_u64() && event["bp"] == "e"),
            "X" => {
                let start = nanoseconds(&event["ts"]);
                let end = start + nanoseconds(&event["dur"]);
                let ends = open.entry(line).or_default();
                ends.retain(|open| *open > start);
                assert!(ends.iter().all(|open| end <= *open), "{event} reaches beyond {ends:?}");
                ends.push(end);
            }
            other => panic!("{other}"),
        }
    }
}

fn stage(name: &str) -> (Profile, Recording) {
    let made = Made::stage(10.0)
        .part(Part::Layer, "a\"</script>\n", 1.0, 6.0)
        .operation(Gemm, [1e9, 1e6], 1.0, 5.0)
        .operator("aten::mm", 3, 2.0, 4.5)
        .kernel("gemm", 3, 3.0, 8.0)
        .kernel("late", 0, 7.999_999, 12.0);
    let mut profile = made.profile(true);
    profile.facts.stage = name.into();
    (profile, made.0)
}

#[test]
fn stages_follow_each_other_and_kernels_have_an_arrow_from_their_operator() {
    let events = events(&[stage("encode"), stage("decode")]);
    assert_nested(&events);
    let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
    let names: Vec<&str> = of("M").iter().map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["host", "thread 1", "GPU 0", "GPU 0 stream 7"]);
    let product = of("X").into_iter().filter(|event| event["name"] == "gemm" && event["pid"] == 1).collect::<Vec<_>>();
    let times: Vec<f64> = product.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert_eq!(times, [1000.0, 11_000.0], "the second stage begins at 10 ms");
    assert_eq!((&product[0]["cat"], &product[0]["args"]["stage"]), (&Value::from("gemm"), &Value::from("encode")));
    assert_eq!((product[0]["args"]["operations"].as_f64(), product[0]["dur"].as_f64()), (Some(1e9), Some(4000.0)));
    let arrows: Vec<(f64, u64)> =
        of("s").iter().map(|event| (event["ts"].as_f64().unwrap(), event["pid"].as_u64().unwrap())).collect();
    assert_eq!(arrows, [(2000.0, 1), (12_000.0, 1)]);
    assert_eq!(of("f")[0]["ts"], 3000.0);
    assert_ne!(of("f")[0]["id"], of("f")[1]["id"]);
    assert!(events.iter().any(|event| event["name"] == "a\"</script>\n" && event["args"]["part"] == "layer"));
}

#[test]
fn no_stages_are_an_empty_trace_and_a_bad_one_leaves_nothing() {
    assert!(events(&[]).is_empty());
    let folder = tempfile::tempdir().unwrap();
    let (profile, mut recording) = stage("decode");
    recording.events.retain(|event| event.track == GPU);
    let error = write_trace(&folder.path().join("a.json"), &[(profile, recording)]).unwrap_err();
    assert!(matches!(error, Error::Stages { found: 0, .. }));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let error = write_trace(&folder.path().join("nowhere/a.json"), &[]).unwrap_err().to_string();
    assert!(error.contains("nowhere/a.json: can't be written") && error.lines().count() == 1, "{error}");
}
