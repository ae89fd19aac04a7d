//! Comparisons of the shipped policies.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use tilewright_plan::{Layout, Plan, Vae};
use tilewright_policy::{CacheDir, Limits, PolicyHost};

use super::*;

struct TestFolder(tempfile::TempDir);

impl TestFolder {
    fn with(lines: &[Value]) -> (Self, PathBuf) {
        let place = Self(tempfile::tempdir().unwrap());
        let path = place.0.path().join("records.jsonl");
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        (place, path)
    }
}

fn vae(plan: &AnyPlan) -> &Plan {
    match plan {
        AnyPlan::Vae(plan) => plan,
        AnyPlan::Denoise(_) | AnyPlan::Text(_) => panic!("not a decode's"),
    }
}

fn golden_of(a: (&str, &[(&str, &str)]), b: (&str, &[(&str, &str)])) -> Comparison {
    with(a, b, |a, b| on_golden(a, b).unwrap())
}

fn with<R>(
    a: (&str, &[(&str, &str)]),
    b: (&str, &[(&str, &str)]),
    compare: impl FnOnce(Contender<'_>, Contender<'_>) -> R,
) -> R {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let (first, second) = (host.load_shipped(a.0).unwrap(), host.load_shipped(b.0).unwrap());
    let (set_a, set_b) = (owned(a.1), owned(b.1));
    compare(Contender { policy: &first, settings: &set_a }, Contender { policy: &second, settings: &set_b })
}

#[test]
fn a_policy_is_like_itself() {
    let comparison = golden_of(("adaptive", &[]), ("adaptive", &[]));
    assert_eq!(comparison.differences, []);
    assert!(comparison.alike == comparison.compared && comparison.compared >= comparison.requests);
    assert_eq!(comparison.worth, DifferenceTotals::default());
}

#[test]
fn settings_show_in_the_fields_that_they_set() {
    let comparison = golden_of(("fixed", &[]), ("fixed", &[("layout", "channels-last"), ("release", "at-end")]));
    for difference in &comparison.differences {
        let names: Vec<&str> = difference.fields.iter().map(|field| field.name).collect();
        assert!(names == ["layout", "release"] || names == ["release"], "{difference:?}");
        let release = difference.fields.last().unwrap();
        assert_eq!((release.a.as_str(), release.b.as_str()), ("keep", "at-end"));
    }
    // Every first decision; the recoveries follow different plans and are not compared.
    assert!(
        comparison.differences.len() > 60
            && comparison.differences.iter().any(|difference| difference.fields.len() == 2)
    );
    let worth = comparison.worth;
    assert_eq!(worth.memory_ratio, Some(1.0));
    assert!(
        worth.typical_time_ratio.is_some_and(|ratio| ratio > 1.0 && ratio < 1.4),
        "channels-last is slower on gfx: {worth:?}"
    );
}

#[test]
fn half_the_bytes_are_half_the_memory() {
    let comparison = golden_of(("fixed", &[("space", "whole")]), ("fixed", &[("precision", "f16")]));
    // A sample's memory has the weights in it, which stay as they are stored.
    let of_decodes = comparison.differences.iter().filter(|difference| matches!(difference.a.plan, AnyPlan::Vae(_)));
    let ratios: Vec<f64> = of_decodes.filter_map(|difference| difference.memory_ratio).collect();
    assert!(ratios.iter().all(|ratio| (0.5..0.9).contains(ratio)), "{ratios:?}");
    let worth = comparison.worth;
    assert!(worth.typical_memory_ratio.is_some_and(|ratio| ratio < 0.7) && worth.only_a_over_limit > 0, "{worth:?}");
    assert_eq!(worth.only_b_over_limit, 0);
    assert_eq!(comparison.prices.formula, 2 * comparison.differences.len() as u32);
}

/// A record of whole in f32 of 1024² on a CPU, expected to take 9 s and 3 GB.
fn record() -> Value {
    let plan = Plan {
        time: tilewright_plan::Time::Whole,
        precision: tilewright_plan::Precision::Uniform(tilewright_plan::Dtype::F32),
        layout: Layout::ChannelsLast,
        reason: "as it was".into(),
        ..Plan::plain()
    };
    let set = Vae::golden();
    let golden = set.iter().find(|golden| golden.name == "x86_v4 flux-f32 1024×1024 plenty balanced").unwrap();
    json!({
        "tilewright": "0.1.0", "time": "2026-11-21T12:00:00Z", "request": golden.request, "device": golden.device,
        "policy": {"name": "fixed", "version": "0.1.0", "digest": "", "settings": {}},
        "answer": plan, "plan": plan, "adjusted": [], "fallback": null, "decision_ms": 0.1, "fuel": 100,
        "estimate": {"peak_bytes": 3_000_000_000u64, "elapsed_ms": 9000.0, "tiles": 1, "shapes": 1, "rework": 1.0},
        "attempts": [], "outcome": null,
    })
}

fn compared(path: &std::path::Path) -> Comparison {
    let requests = read(path).unwrap();
    let fixed: (&str, &[(&str, &str)]) = ("fixed", &[("space", "blended"), ("tile", "512")]);
    with(("fixed", &[]), fixed, |a, b| on_records(a, b, "records.jsonl", &requests).unwrap())
}

#[test]
fn a_record_s_own_price_stands_and_scales_the_others() {
    let (_place, path) = TestFolder::with(&[record()]);
    let comparison = compared(&path);
    let [difference] = comparison.differences.as_slice() else { panic!("{comparison:?}") };
    assert_eq!((difference.a.pricing, difference.b.pricing), (Pricing::Recorded, Pricing::Scaled));
    assert_eq!(figures(&difference.a.estimate.unwrap()).1, 3_000_000_000);
    assert_eq!(difference.request, "line 1: flux 1024×1024");
    let set = Vae::golden();
    let golden = set.iter().find(|golden| golden.name == "x86_v4 flux-f32 1024×1024 plenty balanced").unwrap();
    let formula = |plan: &Plan| golden.costs().estimate_one(plan).unwrap().elapsed.as_secs_f64();
    let expected = formula(vae(&difference.b.plan)) * 9.0 / formula(vae(&difference.a.plan));
    assert!((figures(&difference.b.estimate.unwrap()).0 / 1e3 / expected - 1.0).abs() < 1e-6);
}

#[test]
fn a_full_record_s_prices_are_taken() {
    let mut full = record();
    let plan = |tile: u64, precision: &str| {
        json!({"space": {"kind": "blended", "height": tile, "width": tile, "overlap": 64}, "time": {"kind": "whole"}, "batch": 1,
            "precision": {"kind": "uniform", "dtype": precision}, "layout": "channels-last", "release": "keep", "offload": false,
            "prefetch": 0, "reason": "priced"})
    };
    let offer = Vae::capabilities_of(&serde_json::from_value(full.clone()).unwrap());
    let reply = |plan: &Value| json!({"answer": plan, "plan": plan, "adjusted": [], "fallback": null, "fuel": 1});
    let measured = json!({"elapsed_ns": 1, "peak_bytes": 1, "attempts": 1});
    full["exchange"] = json!({"session": "s", "calls": [
        {"sequence": 0, "request": full["request"], "device": full["device"], "question": {"kind": "decide", "offer": offer},
            "heard": {"estimates": [
                {"plan": plan(512, "f32"), "cost": {"peak_bytes": 7, "elapsed_ns": 8_000_000_000u64, "tiles": 9, "shapes": 1, "rework": "1.25"}},
                {"plan": plan(64, "f16"), "error": "no f16 here"}]},
            "reply": reply(&full["plan"])},
        {"sequence": 1, "request": full["request"], "device": full["device"],
            "question": {"kind": "learn", "plan": full["plan"], "measured": measured}, "reply": reply(&Value::Null)}]});
    let (_place, path) = TestFolder::with(&[full]);
    let comparison = compared(&path);
    let [difference] = comparison.differences.as_slice() else { panic!("{comparison:?}") };
    assert_eq!((difference.a.pricing, difference.b.pricing), (Pricing::Scaled, Pricing::Recorded));
    let Some(AnyCost::Vae(cost)) = difference.b.estimate else { panic!("{difference:?}") };
    assert_eq!((cost.peak_bytes, cost.elapsed.as_secs(), cost.rework), (7, 8, 1.25));
    assert_eq!((comparison.prices.recorded, comparison.prices.scaled), (1, 1));
}

#[test]
fn failed_attempts_are_asked_about() {
    let mut failed = record();
    failed["attempts"] = json!([{"plan": failed["plan"], "failure": {"kind": "out-of-memory", "bytes": 1}, "answer": null,
        "adjusted": [], "fallback": null, "fuel": 1}]);
    let (_place, path) = TestFolder::with(&[record(), failed]);
    let requests = read(&path).unwrap();
    let names: Vec<&str> = requests.vae.iter().map(|request| request.name.as_str()).collect();
    assert_eq!(names, ["line 1: flux 1024×1024", "line 2: flux 1024×1024", "line 2: flux 1024×1024, recovery"]);
    let comparison = with(("adaptive", &[]), ("fixed", &[]), |a, b| on_records(a, b, "r", &requests).unwrap());
    assert_eq!(comparison.compared, 3);
    let recovery = comparison.differences.iter().find(|difference| difference.call == Call::Recover).unwrap();
    assert!(recovery.a.fallback.is_none() && recovery.b.fallback.is_some(), "fixed does not recover: {recovery:?}");
}

#[test]
fn odd_files_are_refused_by_line() {
    let refused = |text: &str| {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("r.jsonl");
        fs::write(&path, text).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    assert!(refused("").contains("there are none"));
    assert!(refused("\n\n").contains("there are none"));
    assert!(refused(&format!("{}\n{{\"a\": 1}}\n", record())).contains("line 2: not a decision record: missing field"));
    let mut greedy = record();
    greedy["request"]["hints"] =
        json!([{"name": "offer.tile-unit", "value": "8"}, {"name": "offer.tile-least", "value": "4294967295"}]);
    assert!(refused(&greedy.to_string()).contains("line 1: "), "no host offers that");
    assert!(refused("not json").contains("line 1: not a decision record"));
    assert!(read(std::path::Path::new("/no/such.jsonl")).unwrap_err().to_string().contains("can't be read"));
}

#[test]
fn typical_is_the_geometric_mean() {
    assert_eq!(typical([].into_iter()), None);
    assert!((typical([0.5, 2.0].into_iter()).unwrap() - 1.0).abs() < 1e-12);
    assert!((typical([4.0, 1.0].into_iter()).unwrap() - 2.0).abs() < 1e-12);
}

#[test]
fn decisions_about_samples_are_compared_too() {
    let comparison = golden_of(("adaptive", &[]), ("diffusers", &[]));
    let of_samples: Vec<&Difference> =
        comparison.differences.iter().filter(|difference| matches!(difference.a.plan, AnyPlan::Denoise(_))).collect();
    assert!(of_samples.len() >= 10, "{}", of_samples.len());
    assert!(of_samples.iter().all(|difference| difference.time_ratio.is_some()));
    let own = golden_of(("fixed", &[]), ("fixed", &[("feed-forward", "4")]));
    let fields = |difference: &Difference| difference.fields.iter().map(|field| field.name).collect::<Vec<_>>();
    let of_samples = own.differences.iter().filter(|difference| matches!(difference.a.plan, AnyPlan::Denoise(_)));
    let of_samples: Vec<_> = of_samples.map(fields).collect();
    assert!(of_samples.len() >= 10 && of_samples.iter().all(|names| names.contains(&"feed-forward")), "{of_samples:?}");
}
