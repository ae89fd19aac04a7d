//! The published JSON Schema of records is what the code writes, and records of every kind fit it.

use std::{env, fs, time::Duration};

use serde_json::{Value as Json, json};
use tilewright_plan::{
    Attempt, Backend, Capabilities, Cost, Denoise, Device, Dtype, ExactCost, FailedAttempt, Failure, Fallback,
    FallbackReason, Hint, HostMemory, Layout, Measured, Model, Objective, Outcome, Plan, PolicyIdentity,
    PoolStatistics, Precision, Record, Release, Request, Space, Stage, Text, Tile, Time, Vae, Value,
    exchange::{Call, Estimate, ExactTrial, Exchange, HostAnswers, Offer, Price, RecordedQuestion, Reply, Trials},
    record_schema, records,
};

/// The published schemas, and what the code says.
fn published() -> [(&'static str, Json); 3] {
    [
        ("record.schema.json", record_schema::<Vae>()),
        ("denoise-record.schema.json", record_schema::<Denoise>()),
        ("text-record.schema.json", record_schema::<Text>()),
    ]
}

fn plan(space: Space, time: Time, precision: Precision) -> Plan {
    Plan {
        space,
        time,
        batch: 2,
        precision,
        layout: Layout::ChannelsLast,
        release: Release::EachStep,
        prefetch: 1,
        reason: "for a test".into(),
        ..Plan::plain()
    }
}

fn record() -> Record {
    let tile = Tile { height: 512, width: 768, overlap: 64 };
    let whole = plan(Space::Whole, Time::Whole, Precision::Uniform(Dtype::Bf16));
    let failure = |failure| FailedAttempt {
        plan: whole.clone(),
        failure,
        answer: None,
        adjusted: Vec::new(),
        fallback: Some(Fallback { reason: FallbackReason::OutOfFuel, detail: "all of it used up".into() }),
        fuel: 50_000_000,
        step: None,
    };
    Record {
        tilewright: "0.1.0".into(),
        time: "2026-11-21T09:00:00Z".into(),
        stage: None,
        capabilities: None,
        request: Request {
            model: Model {
                family: "flux".into(),
                stored: Dtype::F8E4m3,
                quantized: true,
                parameter_bytes: 1 << 27,
                spatial_scale: 8,
                temporal_scale: 1,
            },
            batch: 1,
            frames: 33,
            height: 1024,
            width: 1024,
            memory_limit: 1 << 33,
            limit_counts_weights: false,
            allows_blended: true,
            objective: Objective::Leanest,
            hints: vec![Hint { name: "sample-size".into(), value: "1024".into() }],
            host: HostMemory::default(),
        },
        device: Device {
            backend: Backend::Rocm,
            name: "AMD Radeon 8060S".into(),
            arch: "gfx1151".into(),
            compute_units: 40,
            total_bytes: 1 << 37,
            free_bytes: 1 << 36,
            unified: true,
            fast_dtypes: vec![Dtype::Bf16, Dtype::F16],
            hints: Vec::new(),
        },
        policy: PolicyIdentity {
            name: "adaptive".into(),
            version: "0.1.0".into(),
            digest: format!("sha256:{}", "0".repeat(64)),
            settings: [
                ("flag".to_owned(), Value::Flag(true)),
                ("integer".to_owned(), Value::Integer(-3)),
                ("number".to_owned(), Value::Number(0.5)),
                ("text".to_owned(), Value::Text("auto".into())),
            ]
            .into(),
        },
        answer: Some(plan(Space::Exact(tile), Time::Blended { frames: 16, overlap: 4 }, Precision::Mixed(Dtype::F16))),
        plan: plan(Space::Blended(tile), Time::Carried { frames: 16 }, Precision::Mixed(Dtype::F16)),
        adjusted: vec!["overlap 300 → 192: at most a quarter of the tile".into()],
        fallback: None,
        decision: Duration::from_micros(4),
        fuel: 5532,
        estimate: Some(Cost {
            peak_bytes: 1 << 30,
            elapsed: Duration::from_millis(9800),
            tiles: 4,
            shapes: 1,
            rework: 1.27,
            weights_bytes: 0,
        }),
        attempts: vec![
            failure(Failure::OutOfMemory { bytes: 1 << 30 }),
            failure(Failure::NonFinite { values: 3 }),
            failure(Failure::OverLimit { bytes: 1 << 34 }),
        ],
        outcome: Some(Outcome {
            elapsed: Duration::from_millis(8200),
            load: Duration::from_millis(300),
            peak_bytes: 1 << 30,
            attempts: 4,
            pool: PoolStatistics { hits: 90, misses: 10, held_bytes: 1 << 28, fragmentation: 0.25 },
            cold: false,
            weights_bytes: 0,
        }),
        resumed_frames: 0,
        expected: Some(Cost {
            peak_bytes: 1 << 31,
            elapsed: Duration::from_millis(900),
            tiles: 4,
            shapes: 1,
            rework: 1.1,
            weights_bytes: 0,
        }),
        exchange: None,
    }
}

/// With a call of each kind.
fn full() -> Record {
    let ordinary = record();
    let whole = plan(Space::Whole, Time::Whole, Precision::Uniform(Dtype::Bf16));
    let capabilities = Capabilities {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 4,
        exact: true,
        carried: true,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    };
    let offer = Offer { capabilities: capabilities.clone(), running: Some(whole.clone()), done: Some(13) };
    let measured =
        Measured { elapsed_ns: 1_234_567_891, peak_bytes: 1 << 20, attempts: 2, load_ns: 0, weights_bytes: 0 };
    let cost =
        ExactCost { peak_bytes: 5, elapsed_ns: u64::MAX, tiles: 1, shapes: 1, rework: 1.0 / 3.0, weights_bytes: 0 };
    let heard = HostAnswers {
        estimates: vec![
            Estimate { plan: whole.clone(), price: Price::Cost(cost) },
            Estimate { plan: whole.clone(), price: Price::Error("not on this device".into()) },
        ],
        trials: vec![Trials { most: 9, trials: vec![ExactTrial { plan: whole.clone(), measured }] }],
    };
    let reply = Reply { answer: None, plan: Some(whole.clone()), adjusted: Vec::new(), fallback: None, fuel: 7 };
    let attempts = vec![Attempt { plan: whole.clone(), failure: Failure::OverLimit { bytes: 3 } }];
    let asked = RecordedQuestion::Recover { offer: Offer { capabilities, running: None, done: None }, attempts };
    let calls = [
        (RecordedQuestion::Decide { offer }, heard, reply.clone()),
        (asked, HostAnswers::default(), reply.clone()),
        (
            RecordedQuestion::Learn { offer: None, plan: whole, measured },
            HostAnswers::default(),
            Reply { plan: None, ..reply },
        ),
    ];
    let call = |(sequence, (question, heard, reply))| Call {
        sequence: sequence as u64 + 3,
        stage: Some(Stage::Encode),
        request: ordinary.request.clone(),
        device: ordinary.device.clone(),
        question,
        heard,
        reply,
    };
    let calls = calls.into_iter().enumerate().map(call).collect();
    Record { exchange: Some(Exchange { session: "a-b-0".into(), calls }), ..ordinary }
}

#[test]
fn the_published_schemas_are_current() {
    for (name, schema) in published() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let current = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if env::var_os("TILEWRIGHT_UPDATE").is_some() {
            fs::write(&path, &current).unwrap();
        }
        let published = fs::read_to_string(path).unwrap_or_default();
        assert!(
            published == current,
            "{name} is not what the records' types say: run the test once with TILEWRIGHT_UPDATE=1"
        );
    }
}

#[test]
fn records_fit_the_schema() {
    let schema = jsonschema::validator_for(&record_schema::<Vae>()).unwrap();
    let bare = Record { answer: None, estimate: None, attempts: Vec::new(), outcome: None, ..record() };
    for record in [record(), bare, full()] {
        let written = serde_json::to_value(&record).unwrap();
        let errors: Vec<_> =
            schema.iter_errors(&written).map(|error| format!("{}: {error}", error.instance_path)).collect();
        assert_eq!(errors, [""; 0]);
        assert_eq!(serde_json::from_value::<Record>(written).unwrap(), record, "what is written reads back");
    }
}

#[test]
fn the_schema_is_not_indifferent() {
    let schema = jsonschema::validator_for(&record_schema::<Vae>()).unwrap();
    let written = serde_json::to_value(record()).unwrap();
    type Break = (&'static str, fn(&mut Json));
    let breaks: [Break; 4] = [
        ("an unknown kind of space", |record| record["plan"]["space"]["kind"] = json!("sliced")),
        ("a negative size", |record| record["outcome"]["peak_bytes"] = json!(-1)),
        ("a number for a name", |record| record["policy"]["name"] = json!(7)),
        ("a plan gone", |record| drop(record.as_object_mut().and_then(|record| record.remove("plan")))),
    ];
    for (what, change) in breaks {
        let mut broken = written.clone();
        change(&mut broken);
        assert!(!schema.is_valid(&broken), "{what}");
    }
}

#[test]
fn files_of_records_read_back() {
    let (ordinary, full) = (record(), full());
    let line = |record: &Record| serde_json::to_string(record).unwrap();
    assert!(!line(&ordinary).contains("exchange"), "ordinary records are as they were");
    let text = format!("{}\n\n{}", line(&ordinary), line(&full));
    let read: Vec<_> = records::read(text.as_bytes()).collect::<Result<_, _>>().unwrap();
    assert_eq!(read, [(1, ordinary), (3, full)]);
}

#[test]
fn records_that_make_no_sense_are_refused() {
    type Break = (&'static str, fn(&mut Record));
    let breaks: [Break; 6] = [
        ("line 1: 0 samples", |record| record.request.batch = 0),
        ("line 1: 4294967295 columns of pixels", |record| call(record, 0).request.width = u32::MAX),
        ("line 1: call 4 after a later one", |record| call(record, 0).sequence = 4),
        ("line 1: a learn and its plan", |record| {
            let plan = record.plan.clone();
            call(record, 2).reply.plan = Some(plan);
        }),
        ("line 1: a recovery from nothing", |record| match &mut call(record, 1).question {
            RecordedQuestion::Recover { attempts, .. } => attempts.clear(),
            _ => unreachable!("it is one"),
        }),
        ("line 1: tile_unit 0", |record| match &mut call(record, 0).question {
            RecordedQuestion::Decide { offer } => offer.capabilities.tile_unit = 0,
            _ => unreachable!("it is one"),
        }),
    ];
    for (what, change) in breaks {
        let mut record = full();
        change(&mut record);
        let damage = records::parse(1, &serde_json::to_vec(&record).unwrap()).unwrap_err().to_string();
        assert!(damage.starts_with(what), "{damage}");
    }
}

fn call(record: &mut Record, index: usize) -> &mut Call {
    &mut record.exchange.as_mut().unwrap().calls[index]
}
