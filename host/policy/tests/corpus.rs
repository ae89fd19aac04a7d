//! Policies that were built for released versions of the contract keep working: each file in
//! `corpus/VERSION` loads, describes itself, takes its settings and answers what it answered when
//! it was recorded, exactly. How the files were made stands in `corpus/VERSION/README.md`.
//!
//! `TILEWRIGHT_CORPUS=record` writes the answers again, which is right for a policy that was added
//! and for nothing else.

#[path = "corpus/read.rs"]
mod read;

use std::{
    env, fs,
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde_json::{Value, json};
use tilewright_plan::{
    Attempt, Backend, Candidate, Capabilities, Cost, CostModel, Decision, Device, Dtype, Failure, HostMemory, Model,
    Objective, Outcome, Plan, Planner, PoolStatistics, Precision, Question, Request, Stage, Time, Trial,
};
use tilewright_policy::{CacheDir, Limits, PolicyHost, key_value};

/// The versions that there are policies of.
const VERSIONS: [&str; 1] = ["0.1.0"];

/// The largest that a file of the corpus may be.
const MOST_BYTES: usize = 60_000;

/// 1000 bytes and 10 ns per pixel and frame at once in f32, in proportion for narrower types; 2 %
/// more time for every tile.
struct Prices {
    request: Request,
    trials: Vec<Trial>,
}

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let Request { height, width, frames, .. } = self.request;
        let tile = plan.space.tile();
        let (high, wide) = tile.map_or((height, width), |tile| (tile.height, tile.width));
        let tiles = height.div_ceil(high) * width.div_ceil(wide);
        let bits = u64::from(plan.precision.dtype().bits());
        let at_once = match plan.time {
            Time::Carried { frames } => frames,
            _ => frames,
        };
        let pixels = u64::from(high) * u64::from(wide);
        Ok(Cost {
            peak_bytes: pixels * 1000 * bits / 32 * u64::from(at_once) * u64::from(plan.batch),
            elapsed: Duration::from_nanos(
                pixels * u64::from(tiles) * u64::from(frames) * bits / 32 * u64::from(98 + 2 * tiles) / 10,
            ),
            tiles,
            shapes: 1 + u32::from(tiles > 1),
            rework: f64::from(tiles * high * wide) / f64::from(height * width),
            weights_bytes: 0,
        })
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}

/// A request, and what the host is asked of a device like that.
struct Case {
    name: &'static str,
    request: Request,
    device: Device,
    offer: Capabilities,
}

fn cases() -> Vec<Case> {
    let model = |family: &str, temporal_scale| Model {
        family: family.into(),
        stored: Dtype::Bf16,
        quantized: false,
        parameter_bytes: 1 << 27,
        spatial_scale: 8,
        temporal_scale,
    };
    let request = |width, height, memory_limit| Request {
        model: model("flux", 1),
        batch: 1,
        frames: 1,
        height,
        width,
        memory_limit,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    };
    let device = |backend, arch: &str, fast: &[Dtype]| Device {
        backend,
        name: "of the corpus".into(),
        arch: arch.into(),
        compute_units: 20,
        total_bytes: 1 << 37,
        free_bytes: 1 << 36,
        unified: backend == Backend::Rocm,
        fast_dtypes: fast.to_vec(),
        hints: Vec::new(),
    };
    let offer = |carried| Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: true,
        carried,
        offload: carried,
        prefetch_most: 2,
        options: Vec::new(),
    };
    let strix = || device(Backend::Rocm, "gfx1151", &[Dtype::Bf16, Dtype::F16]);
    let mut quantized = request(1664, 928, 8 << 30);
    quantized.model.quantized = true;
    let mut batch = request(768, 512, 4 << 30);
    batch.batch = 6;
    let clip = Request { model: model("wan-2.1", 4), frames: 81, ..request(832, 480, 6 << 30) };
    let cpu = || device(Backend::Cpu, "x86-64-v4", &[]);
    vec![
        Case { name: "a picture on a CPU", request: request(1024, 1024, 8 << 30), device: cpu(), offer: offer(false) },
        Case {
            name: "a large picture in little memory",
            request: request(4096, 2048, 1 << 30),
            device: cpu(),
            offer: offer(false),
        },
        Case { name: "a quantized model on a Strix Halo", request: quantized, device: strix(), offer: offer(false) },
        Case {
            name: "a batch on an H100",
            request: batch,
            device: device(Backend::Cuda, "sm_90", &[Dtype::Bf16]),
            offer: offer(false),
        },
        Case { name: "a clip on a Strix Halo", request: clip, device: strix(), offer: offer(true) },
        Case { name: "nothing fits", request: request(1024, 1024, 1 << 20), device: cpu(), offer: offer(false) },
    ]
}

/// The policies of a version, by name.
fn policies(version: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(read::folder(version)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.to_string_lossy().ends_with(read::ENDING)).collect();
    files.sort();
    files
}

/// The policy's part of a decision. The host's changes to it are no part of the contract.
fn decided(decision: &Decision) -> Value {
    let asked = |candidate: &Candidate| match &candidate.cost {
        Ok(cost) => json!([candidate.plan, cost.peak_bytes]),
        Err(why) => json!([candidate.plan, why]),
    };
    json!({
        "answer": decision.answer,
        "fallback": decision.fallback,
        "asked": decision.candidates.iter().map(asked).collect::<Vec<_>>(),
        "log": decision.log.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(),
    })
}

/// The plan that counts as failed if the policy answered none.
fn whole() -> Plan {
    Plan { precision: Precision::Uniform(Dtype::Bf16), ..Plan::plain() }
}

/// Everything that a policy says and answers: with its defaults, with settings of its own, after
/// failures, and after it was given an outcome.
fn answers(bytes: &[u8]) -> Vec<Value> {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let loaded = host.load("of the corpus", bytes).unwrap();
    let inspection = loaded.inspection();
    let settings = loaded.description().settings.iter().map(|setting| match &setting.default {
        tilewright_plan::Value::Flag(flag) => format!("{}={}", setting.name, !flag),
        tilewright_plan::Value::Integer(integer) => format!("{}={}", setting.name, integer / 2),
        tilewright_plan::Value::Number(number) => format!("{}={}", setting.name, number / 2.0),
        tilewright_plan::Value::Text(text) => format!("{}={text}", setting.name),
    });
    let settings: Vec<(String, String)> = settings.map(|setting| key_value(&setting).unwrap()).collect();
    // Descriptions of 0.1 name no stages: its policies answer both that there were.
    let mut description = serde_json::to_value(loaded.description()).unwrap();
    assert_eq!(description.as_object_mut().unwrap().remove("stages"), Some(json!(["decode", "encode"])));
    let mut lines = vec![json!({
        "description": description,
        "contract": inspection.contract,
        "kind": inspection.kind,
        "digest": inspection.digest,
        "imports": inspection.imports,
        "exports": inspection.exports,
    })];
    for (configured, given) in [("defaults", &[][..]), ("halves", &settings[..])] {
        let mut policy = match loaded.configure(given) {
            Ok(policy) => policy,
            Err(error) => {
                let said = error.to_string();
                lines.push(json!({ "configured": configured, "refused": said }));
                continue;
            }
        };
        for Case { name, request, device, offer } in cases() {
            let facts = |trials| Arc::new(Prices { request: request.clone(), trials });
            let first = policy.decide(&Question::new(Stage::Decode, &request, &device, &offer), facts(vec![]));
            let plan = first.answer.clone().unwrap_or_else(whole);
            let attempts = [
                Attempt { plan: plan.clone(), failure: Failure::NonFinite { values: 7 } },
                Attempt { plan: plan.clone(), failure: Failure::OutOfMemory { bytes: 1 << 30 } },
            ];
            let wider = policy
                .decide(&Question::new(Stage::Decode, &request, &device, &offer).after(&attempts[..1]), facts(vec![]));
            let smaller =
                policy.decide(&Question::new(Stage::Decode, &request, &device, &offer).after(&attempts), facts(vec![]));
            let outcome = Outcome {
                elapsed: Duration::from_secs(3),
                load: Duration::ZERO,
                peak_bytes: 5 << 30,
                attempts: 2,
                pool: PoolStatistics::default(),
                cold: false,
                weights_bytes: 0,
            };
            policy.learn(&Question::new(Stage::Decode, &request, &device, &offer), &plan, &outcome);
            let trial = Trial {
                plan: smaller.answer.clone().unwrap_or(plan),
                outcome: Outcome { peak_bytes: 1 << 20, ..outcome },
            };
            let again = policy.decide(&Question::new(Stage::Decode, &request, &device, &offer), facts(vec![trial]));
            lines.push(json!({
                "configured": configured,
                "request": name,
                "decide": decided(&first),
                "after values overflowed": decided(&wider),
                "after memory ran out": decided(&smaller),
                "with a trial": decided(&again),
            }));
        }
    }
    lines
}

#[test]
fn policies_of_released_versions_answer_as_they_did() {
    let record = env::var_os("TILEWRIGHT_CORPUS").is_some_and(|what| what == "record");
    let mut differ = Vec::new();
    for version in VERSIONS {
        let policies = policies(version);
        assert!(policies.len() >= 8, "{policies:?}");
        for path in policies {
            let bytes = read::unpacked(&path);
            assert!(bytes.len() < MOST_BYTES, "{}", path.display());
            let said = answers(&bytes);
            assert_eq!(said[0]["contract"], version);
            let kept = PathBuf::from(path.to_str().unwrap().replace(read::ENDING, ".jsonl.gz"));
            if record {
                let lines: String = said.iter().map(|line| format!("{line}\n")).collect();
                let mut written = GzEncoder::new(fs::File::create(&kept).unwrap(), Compression::best());
                written.write_all(lines.as_bytes()).unwrap();
                written.finish().unwrap();
            }
            let expected = io::read_to_string(GzDecoder::new(fs::File::open(&kept).unwrap())).unwrap();
            let expected: Vec<Value> = expected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            differ.extend(
                difference(&Value::Array(expected), &Value::Array(said), "")
                    .map(|what| format!("{}: {what}", path.display())),
            );
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// The first place where two values differ.
fn difference(expected: &Value, found: &Value, at: &str) -> Option<String> {
    match (expected, found) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            one.iter().find_map(|(key, value)| difference(value, &other[key], &format!("{at}/{key}")))
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => (0..)
            .zip(one.iter().zip(other))
            .find_map(|(index, (one, other))| difference(one, other, &format!("{at}/{index}"))),
        _ if expected == found => None,
        _ => Some(format!("{at}: expected {expected}, found {found}")),
    }
}

#[test]
fn a_difference_is_found() {
    let kept = json!({ "a": [1, { "b": "x" }], "c": null });
    assert_eq!(difference(&kept, &kept.clone(), ""), None);
    assert_eq!(
        difference(&kept, &json!({ "a": [1, { "b": "y" }], "c": null }), "").unwrap(),
        r#"/a/1/b: expected "x", found "y""#
    );
    assert!(difference(&kept, &json!({ "a": [1], "c": null }), "").is_some());
    assert!(difference(&kept, &json!({ "a": [1, { "b": "x" }] }), "").is_some());
}
