//! The record's names, as the design and `record.schema.json` have them.

mod scripted;

use scripted::{Quiet, Scripted, alone, flux, latent, machine, plan, square};
use serde_json::Value;
use tilewright_engine::DecodeJob;
use tilewright_plan::{Dtype, Layout, Objective, Precision, Record, Space};

/// The keys of an object, in order.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn sorted(names: &str) -> Vec<&str> {
    let mut names: Vec<&str> = names.split_whitespace().collect();
    names.sort_unstable();
    names
}

const PLAN: &str = "space time batch precision layout release offload prefetch reason";

#[test]
fn a_record_has_the_names_of_the_design() {
    let _alone = alone();
    let vae = flux();
    let latents = latent([1, 16, 40, 40]);
    let generous = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
    let whole = plan(Space::Whole, 1, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let tiled = plan(square(96, 16), 2, Precision::Mixed(Dtype::Bf16), Layout::ChannelsLast);
    let limit = generous.estimate(&whole).unwrap().peak_bytes * 9 / 10;
    let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Fastest).unwrap();
    let finished = job.run(&mut Scripted::new([whole, tiled]), &mut Quiet).unwrap();
    assert_eq!(finished.candidates.len(), 1);
    let text = serde_json::to_string(&finished.record).unwrap();
    assert!(!text.contains('\n'));
    let record: Value = serde_json::from_str(&text).unwrap();

    assert_eq!(
        keys(&record),
        sorted(
            "tilewright time stage request capabilities device policy answer plan adjusted fallback decision_ms fuel estimate attempts outcome"
        )
    );
    assert_eq!(record["tilewright"], env!("CARGO_PKG_VERSION"));
    let time = record["time"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    assert_eq!(
        keys(&record["request"]),
        sorted(
            "model batch frames height width memory_limit host_total_bytes host_free_bytes transfer_rate objective allows_blended hints"
        )
    );
    assert_eq!(record["request"]["objective"], "fastest");
    assert_eq!(record["request"]["memory_limit"], limit);
    assert_eq!(
        keys(&record["request"]["model"]),
        sorted("family stored quantized parameter_bytes spatial_scale temporal_scale")
    );
    assert_eq!(record["request"]["model"]["stored"], "bf16");
    assert_eq!(
        keys(&record["device"]),
        sorted("backend name arch compute_units total_bytes free_bytes unified fast_dtypes")
    );
    assert_eq!(record["device"]["backend"], "cpu");
    assert_eq!(keys(&record["policy"]), sorted("name version digest settings"));
    assert_eq!(record["policy"]["settings"]["tile"], 64);
    for plan in [&record["answer"], &record["plan"], &record["attempts"][0]["plan"]] {
        assert_eq!(keys(plan), sorted(PLAN));
    }
    let expected = serde_json::json!({"kind": "blended", "height": 96, "width": 96, "overlap": 16});
    assert_eq!(record["plan"]["space"], expected);
    assert_eq!(record["plan"]["precision"], serde_json::json!({"kind": "mixed", "dtype": "bf16"}));
    assert_eq!(record["plan"]["layout"], "channels-last");
    assert_eq!(record["plan"]["release"], "at-end");
    assert_eq!(record["adjusted"][0], "overlap 300 → 192: at most a quarter of the tile");
    assert_eq!(record["fallback"], Value::Null);
    assert_eq!(record["decision_ms"], 0.004);
    assert_eq!(record["fuel"], 5532);
    assert_eq!(keys(&record["estimate"]), sorted("peak_bytes weights_bytes elapsed_ms tiles shapes rework"));

    assert_eq!(record["attempts"].as_array().unwrap().len(), 1);
    let attempt = &record["attempts"][0];
    assert_eq!(attempt["plan"]["space"], serde_json::json!({"kind": "whole"}));
    assert_eq!(keys(&attempt["failure"]), sorted("kind bytes"));
    assert_eq!(attempt["failure"]["kind"], "out-of-memory");

    let outcome = &record["outcome"];
    assert_eq!(keys(outcome), sorted("elapsed_ms load_ms peak_bytes weights_bytes attempts pool"));
    assert_eq!(keys(&outcome["pool"]), sorted("hits misses held_bytes fragmentation"));
    assert_eq!(outcome["attempts"], 2);
    for name in ["elapsed_ms", "load_ms", "peak_bytes"] {
        assert!(outcome[name].as_f64().unwrap() > 0.0, "{name}");
    }

    let back: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(&back).unwrap(), record);
}

#[test]
fn a_decision_without_a_decode_has_no_outcome() {
    let _alone = alone();
    let vae = flux();
    let latents = latent([1, 16, 8, 8]);
    let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 30, Objective::Balanced).unwrap();
    let whole = plan(Space::Whole, 1, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let (record, candidates) = job.decide(&mut Scripted::new([whole.clone()]));
    assert_eq!(record.plan, whole);
    assert_eq!(record.estimate, candidates[0].cost.clone().ok());
    let record = serde_json::to_value(&record).unwrap();
    assert_eq!(record["outcome"], Value::Null);
    assert_eq!(record["attempts"], serde_json::json!([]));
}
