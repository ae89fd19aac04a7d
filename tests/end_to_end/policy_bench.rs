//! `tilewright policy bench`.

use serde_json::Value;

use crate::program::Place;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn a_policy_is_measured() {
    let place = Place::new();
    let report = place.run(&["policy", "bench", "fixed", "--iterations", "50", "--json"]).json();
    assert_eq!((&report["policy"], &report["kind"]), (&"fixed".into(), &"core-module".into()));
    assert!(report["digest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(report["settings"]["space"], "whole");
    assert_eq!(report["estimates"], Value::Null, "fixed asks for none");
    let calls = report["calls"].as_array().unwrap();
    let functions: Vec<&str> = calls.iter().map(|call| call["function"].as_str().unwrap()).collect();
    assert_eq!(functions, ["describe", "configure", "decide", "recover", "learn"]);
    for call in calls {
        assert_eq!((&call["runs"], &call["failed"]), (&50.into(), &0.into()), "{call}");
        let [min, median, p99] = ["min_ns", "median_ns", "p99_ns"].map(|name| number(&call[name]));
        assert!(0.0 < min && min <= median && median <= p99, "{call}");
        assert!(number(&call["fuel_mean"]) > 0.0 && number(&call["fuel_mean"]) <= number(&call["fuel_most"]), "{call}");
    }
    // It only does what it is set to, and says so.
    assert_eq!((&calls[2]["declined"], &calls[3]["declined"]), (&0.into(), &50.into()));
    for (what, name) in [("cold", "load_ns"), ("cold", "cached_ns"), ("cold", "decide_ns"), ("memory", "linear_bytes")]
    {
        assert!(number(&report[what][name]) > 0.0, "{what}.{name}: {report}");
    }
    assert!(number(&report["memory"]["code_bytes"]) > 1000.0);
    // Without a fresh instance for each question.
    let lasting = number(&report["lasting"]["typical_ns"]);
    assert!(lasting > 0.0, "{report}");
    assert_eq!(report["lasting"]["beside_ns"], report["lasting"]["typical_ns"], "it asks for no estimates");
}

#[test]
fn estimates_are_shown_apart() {
    let place = Place::new();
    let arguments = ["policy", "bench", "adaptive", "--set", "precision=f32", "--iterations", "24"];
    let text = place.run(&arguments).succeeded().stdout();
    for words in ["decisions", "estimates by the host", "describe", "learn", "per second", "In an instance that lasts"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let report = place.run(&[&arguments[..], &["--json"]].concat()).json();
    assert!(number(&report["estimates"]["count"]) >= 1.0);
    assert_eq!(report["settings"]["precision"], "f32");
}

#[test]
fn what_can_not_be_measured_is_said() {
    let place = Place::new();
    let file = place.write("no.wasm", "no policy");
    place.run(&["policy", "bench", "nobody"]).failed(2, "unknown policy");
    place.run(&["policy", "bench", &file]).failed(2, "text file");
    place.run(&["policy", "bench", "fixed", "--set", "tiel=1"]).failed(2, "tiel");
    place.run(&["policy", "bench", "fixed", "--iterations", "0"]).failed(2, "--iterations");
}
