use std::{collections::BTreeMap, io::Read as _, sync::Arc, time::Duration};

use tilewright_plan::{
    AnyPlan, Attempt, Backend, Capabilities, Cost, CostModel, Decision, Device, Dtype, Fallback, FallbackReason,
    HostMemory, LearnReport, Model, Objective, Outcome, Plan, Planner, PolicyIdentity, PoolStatistics, Question,
    Record, Recorder, Request, Space, Stage, Tile, Trial, UnderWay, exchange::Exchange,
};

use tilewright_policy::CacheDir;

use super::*;

/// Prices by the tile's side; those of odd plans are refused.
struct Prices;

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let side = plan.space.tile().map_or(1024, |tile| tile.height);
        if side % 2 == 1 {
            return Err("odd".into());
        }
        let elapsed = Duration::from_millis(u64::from(2048 - side));
        Ok(Cost { peak_bytes: u64::from(side) << 10, elapsed, tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 })
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        let outcome = Outcome {
            elapsed: Duration::from_millis(5),
            load: Duration::from_millis(1),
            peak_bytes: 7,
            attempts: 1,
            pool: PoolStatistics::default(),
            cold: false,
            weights_bytes: 0,
        };
        let trial = |side| Trial { plan: plan(side), outcome };
        [64, 128, 256].into_iter().take(most as usize).map(trial).collect()
    }
}

/// Takes the largest of its sides that has a price, one smaller for each outcome that it learned
/// from. Fails at given calls, and times out at one.
struct Stub {
    identity: PolicyIdentity,
    sides: Vec<u32>,
    most: u32,
    learnt: u32,
    fails: Option<FallbackReason>,
    asked: u32,
    late: Option<u32>,
}

fn stub(sides: &[u32]) -> Stub {
    let identity = PolicyIdentity {
        name: "stub".into(),
        version: "1".into(),
        digest: "sha256:00".into(),
        settings: BTreeMap::new(),
    };
    Stub { identity, sides: sides.to_vec(), most: 2, learnt: 0, fails: None, asked: 0, late: None }
}

fn plan(side: u32) -> Plan {
    Plan {
        space: Space::Blended(Tile { height: side, width: side, overlap: 0 }),
        reason: format!("for {side}"),
        ..Plan::plain()
    }
}

impl Planner for Stub {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        let fails = self.fails.or_else(|| (self.late == Some(self.asked)).then_some(FallbackReason::Timeout));
        self.asked += 1;
        let seen = costs.trials(self.most).len() as u64;
        let mut priced = self.sides.iter().map(|side| plan(*side)).filter(|plan| costs.estimate_one(plan).is_ok());
        let chosen = priced.nth(self.learnt as usize + question.attempts.len()).unwrap_or(plan(8));
        Decision {
            answer: fails.is_none().then(|| chosen.clone()),
            plan: chosen,
            adjusted: Vec::new(),
            fallback: fails.map(|reason| Fallback { reason, detail: "as told".into() }),
            elapsed: Duration::ZERO,
            fuel: 10 + seen,
            candidates: Vec::new(),
            log: Vec::new(),
        }
    }

    fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
        self.learnt += 1;
        LearnReport { fuel: u64::from(self.learnt), failure: None }
    }
}

fn request() -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames: 1,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 30,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

fn device() -> Device {
    Device {
        backend: Backend::Cpu,
        name: "a processor".into(),
        arch: "x86-64-v4".into(),
        compute_units: 2,
        total_bytes: 8 << 30,
        free_bytes: 4 << 30,
        unified: true,
        fast_dtypes: vec![Dtype::F32],
        hints: Vec::new(),
    }
}

fn offer() -> Capabilities {
    Capabilities {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 1,
        exact: true,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    }
}

fn outcome(milliseconds: u64) -> Outcome {
    let pool = PoolStatistics::default();
    Outcome {
        elapsed: Duration::from_millis(milliseconds),
        load: Duration::ZERO,
        peak_bytes: 9,
        attempts: 1,
        pool,
        cold: false,
        weights_bytes: 0,
    }
}

/// Decodes, one record each: a decision, a recovery and an outcome.
fn recorded(planner: Stub, decodes: usize) -> Vec<Record> {
    let identity = planner.identity.clone();
    let mut recorder = Recorder::new(Box::new(planner), true);
    let decode = |index| {
        let facts: Arc<dyn CostModel> = Arc::new(Prices);
        let first = recorder.decide(&Question::new(Stage::Decode, &request(), &device(), &offer()), facts.clone());
        let failure = tilewright_plan::Failure::OverLimit { bytes: 1 };
        let attempts = [Attempt { plan: first.plan, failure }];
        let decision =
            recorder.decide(&Question::new(Stage::Decode, &request(), &device(), &offer()).after(&attempts), facts);
        recorder.learn(
            &Question::new(Stage::Decode, &request(), &device(), &offer()),
            &decision.plan,
            &outcome(10 + index),
        );
        record(identity.clone(), decision, outcome(10 + index), recorder.take())
    };
    (0..decodes as u64).map(decode).collect()
}

fn record(policy: PolicyIdentity, decision: Decision, outcome: Outcome, exchange: Option<Exchange>) -> Record {
    Record {
        tilewright: "0.1.0".into(),
        time: "2026-11-21T00:00:00Z".into(),
        stage: None,
        capabilities: None,
        request: request(),
        device: device(),
        policy,
        answer: decision.answer,
        plan: decision.plan,
        adjusted: Vec::new(),
        fallback: None,
        decision: Duration::ZERO,
        fuel: 1,
        estimate: None,
        attempts: Vec::new(),
        outcome: Some(outcome),
        resumed_frames: 0,
        expected: None,
        exchange,
    }
}

fn sessions(records: &[Record]) -> Result<Recorded, ReplayError> {
    let recorded = gather(records.iter().cloned().enumerate().map(|(index, record)| Ok((index as u64 + 1, record))))?;
    check_full(recorded.records, recorded.ordinary)?;
    Ok(recorded)
}

fn replayed(records: &[Record], sides: &[u32]) -> SamePolicyReport {
    let mut make_planner = |_: &PolicyIdentity| Ok(Box::new(stub(sides)) as Box<dyn Planner>);
    replay_same_policy(&sessions(records).unwrap(), &mut make_planner).unwrap()
}

const SIDES: [u32; 6] = [513, 512, 256, 128, 96, 64];

#[test]
fn a_session_is_the_same_again_over_its_records_in_any_order() {
    let mut records = recorded(stub(&SIDES), 3);
    let report = replayed(&records, &SIDES);
    assert_eq!((report.totals.calls, report.totals.equal), (9, 9), "{report:?}");
    // The plans depend on earlier outcomes. The order of records in the file does not matter, nor
    // does a record that is there twice.
    assert_ne!(records[0].plan, records[2].plan);
    records.swap(0, 2);
    records.push(records[1].clone());
    assert_eq!(replayed(&records, &SIDES).totals.equal, 9);
    // An ordinary record can't be replayed.
    records.push(Record { exchange: None, ..records[0].clone() });
    let totals = replayed(&records, &SIDES).totals;
    assert_eq!((totals.records, totals.ordinary, totals.calls), (5, 1, 9));
    assert!(matches!(sessions(&records[4..]), Err(ReplayError::NothingFull { records: 1 })));
}

#[test]
fn a_policy_that_is_not_the_same_differs_and_the_reason_is_told() {
    let records = recorded(stub(&SIDES), 1);
    let report = replayed(&records, &[1024, 256, 128]);
    assert_eq!(report.totals.different, 2);
    let row = &report.calls[0];
    let differing: Vec<_> = row.differences.iter().map(|difference| difference.what).collect();
    assert_eq!((row.verdict, &differing[..]), (CallVerdict::Different, &["answer", "plan"][..]), "{row:?}");
    assert!(
        row.note.as_deref().unwrap().starts_with("asked for 3 prices that are not in the record: blended 1024×1024/0")
    );
}

#[test]
fn what_a_clock_decided_or_is_missing_is_told_apart_from_what_differs() {
    let mut records = recorded(stub(&SIDES), 3);
    let gone = records.remove(1);
    let report = replayed(&records, &SIDES);
    assert_eq!((report.totals.equal, report.totals.different, report.totals.not_reproducible), (3, 0, 3), "{report:?}");
    assert!(report.calls[3].note.as_deref().unwrap().starts_with("calls 3 to 5 are not in the file"));
    records.insert(1, gone);
    // A question without an answer has no effect on later calls.
    let calls = &mut records[2].exchange.as_mut().unwrap().calls;
    let fallback = Fallback { reason: FallbackReason::Timeout, detail: "too long".into() };
    calls[0].reply.fallback = Some(fallback.clone());
    let report = replayed(&records, &SIDES);
    assert_eq!(report.calls[6].verdict, CallVerdict::NotReproducible);
    assert_eq!((report.totals.equal, report.totals.different), (8, 0), "{report:?}");
    // The same for a timeout in the replay.
    let records = recorded(stub(&SIDES), 1);
    let mut make_planner = |_: &PolicyIdentity| {
        Ok(Box::new(Stub { fails: Some(FallbackReason::Timeout), ..stub(&SIDES) }) as Box<dyn Planner>)
    };
    let report = replay_same_policy(&sessions(&records).unwrap(), &mut make_planner).unwrap();
    assert_eq!((report.totals.not_reproducible, report.totals.different), (2, 0), "{report:?}");
    // A policy that times out here has lost what it learned, and all later results are unknown.
    let records = recorded(stub(&SIDES), 3);
    let mut late = Some(2);
    let mut make_planner =
        |_: &PolicyIdentity| Ok(Box::new(Stub { late: late.take(), ..stub(&SIDES) }) as Box<dyn Planner>);
    let report = replay_same_policy(&sessions(&records).unwrap(), &mut make_planner).unwrap();
    assert_eq!((report.totals.equal, report.totals.different), (3, 0), "{report:?}");
    assert!(report.calls[4].note.as_deref().unwrap().contains("outcomes before it are lost"), "{report:?}");
    // A policy that timed out too often was no longer asked, which took no fuel.
    let mut records = recorded(stub(&SIDES), 1);
    let calls = &mut records[0].exchange.as_mut().unwrap().calls;
    for call in &mut calls[..2] {
        call.reply.fallback = Some(fallback.clone());
    }
    calls[2].reply.fuel = 0;
    let report = replayed(&records, &SIDES);
    assert_eq!((report.totals.not_reproducible, report.totals.different), (3, 0), "{report:?}");
}

#[test]
fn records_that_contradict_each_other_are_refused() {
    let records = recorded(stub(&SIDES), 1);
    let mut other = records[0].clone();
    other.exchange.as_mut().unwrap().calls[1].reply.fuel += 1;
    let refused = sessions(&[records[0].clone(), other]).unwrap_err().to_string();
    assert!(refused.starts_with("line 2: call 1 of session ") && refused.contains("line 1"), "{refused}");
    let mut other = records[0].clone();
    other.policy.version = "2".into();
    assert!(matches!(sessions(&[records[0].clone(), other]), Err(ReplayError::TwoPolicies { line: 2, before: 1, .. })));
    let mut fails = |_: &PolicyIdentity| Err("it is not here".to_owned());
    assert!(matches!(replay_same_policy(&sessions(&records).unwrap(), &mut fails), Err(ReplayError::Policy(_))));
}

#[test]
fn smaller_questions_about_trials_are_answered_from_larger_ones() {
    let records = recorded(Stub { most: 9, ..stub(&SIDES) }, 1);
    let heard = &records[0].exchange.as_ref().unwrap().calls[0].heard;
    let facts = facts::RecordedAnswers::new(heard, Arc::default());
    assert_eq!([0, 1, 2, 9, 10].map(|most| facts.trials(most).len()), [0, 1, 2, 3, 3], "all three are known");
    assert!(!facts.missing().trials);
    let records = recorded(stub(&SIDES), 1);
    let heard = &records[0].exchange.as_ref().unwrap().calls[0].heard;
    let facts = facts::RecordedAnswers::new(heard, Arc::default());
    assert_eq!(facts.trials(2).len(), 2);
    assert!(facts.trials(3).is_empty() && facts.missing().trials, "whether there is a third is not known");
}

#[test]
fn another_policys_plans_are_worth_what_the_records_say() {
    let records = recorded(stub(&SIDES), 2);
    let ask = |sides: &'static [u32]| {
        let mut make_planner = |_: &PolicyIdentity| Ok(Box::new(stub(sides)) as Box<dyn Planner>);
        replay_other_policy(&sessions(&records).unwrap(), &mut make_planner).unwrap()
    };
    let same = ask(&SIDES);
    assert_eq!((same.totals.decisions, same.totals.same, same.totals.nothing_said), (4, 4, 0.0));
    // It asks for 96 at the end, which no call did before.
    let found = ask(&[256, 128, 96, 64]);
    assert_eq!((found.totals.compared, found.totals.not_known), (3, 1), "{found:?}");
    let row = &found.decisions[0];
    let space = |plan: &AnyPlan| match plan {
        AnyPlan::Vae(plan) => plan.space,
        AnyPlan::Denoise(_) | AnyPlan::Text(_) => panic!("not a decode's"),
    };
    assert_eq!(
        (row.basis, space(&row.recorded), space(&row.other)),
        (Some(Basis::Estimated), plan(512).space, plan(256).space)
    );
    assert_eq!((row.recorded_worth.unwrap().elapsed_ms, row.other_worth.unwrap().elapsed_ms), (1536.0, 1792.0));
    // 256 was measured in the first decode, 128 in the second.
    let measured = found.decisions.iter().find(|row| row.basis == Some(Basis::Measured)).unwrap();
    assert_eq!((measured.recorded_worth.unwrap().elapsed_ms, measured.other_worth.unwrap().elapsed_ms), (10.0, 11.0));
    let sum: f64 = found.totals.estimated_difference_ms;
    assert!(sum > 0.0, "{found:?}");
    // A price that it needs is in no record: its decision is unknown.
    let found = ask(&[640, 512]);
    assert_eq!((found.totals.not_known, found.totals.nothing_said), (4, 1.0));
    assert!(found.decisions.iter().all(|row| row.other_worth.is_none() && row.missing_prices == 1));
}

/// Records with any numbers, replayed by the shipped policies: the reader refuses them, or the
/// replay ends.
#[test]
fn no_number_in_a_record_ends_the_program() {
    let host = tilewright_policy::PolicyHost::new(tilewright_policy::Limits::default(), &CacheDir::Off).unwrap();
    let extremes = [0, 1, 3, 7, 1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX];
    let mut state = 1_u64;
    let mut random = move |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    for name in tilewright_policy::shipped_names() {
        let policy = host.load_shipped(name).unwrap();
        let honest = recorded_of(Box::new(policy.configure(&[]).unwrap()));
        let honest = serde_json::to_value(honest).unwrap();
        let mut replayed = 0;
        for _ in 0..400 {
            let mut record = honest.clone();
            for _ in 0..=random(3) {
                let mut numbers = Vec::new();
                numbers_of(&mut record["exchange"], &mut numbers);
                let count = numbers.len();
                *numbers[random(count)] = extremes[random(extremes.len())].into();
            }
            let Ok(record) = tilewright_plan::records::parse(1, record.to_string().as_bytes()) else { continue };
            let mut make_planner = |_: &PolicyIdentity| {
                policy.configure(&[]).map(|policy| Box::new(policy) as Box<dyn Planner>).map_err(|e| e.to_string())
            };
            let report = replay_same_policy(&sessions(&[record]).unwrap(), &mut make_planner).unwrap();
            replayed += usize::from(report.totals.calls == 3);
        }
        assert!(replayed > 50, "{name}: {replayed}");
    }
}

/// A record as programs wrote it before it had fields for stage, capabilities and delivered frames:
/// all of them were hints of the request, and outcomes had no offer.
fn as_written_before(record: &Record) -> Record {
    let mut record = serde_json::to_value(record).unwrap();
    for call in record["exchange"]["calls"].as_array_mut().unwrap() {
        call.as_object_mut().unwrap().remove("stage");
        let question = call["question"].as_object_mut().unwrap();
        let done = question.get_mut("offer").and_then(|offer| offer.as_object_mut()?.remove("done"));
        if question["kind"] == "learn" {
            question.remove("offer");
        }
        let offered = [
            ("offer.dtypes", "f32"),
            ("offer.tile-unit", "8"),
            ("offer.tile-least", "64"),
            ("offer.batch-most", "1"),
            ("offer.exact", "true"),
            ("offer.carried", "false"),
            ("offer.offload", "false"),
            ("offer.prefetch-most", "0"),
            ("stage", "decode"),
        ];
        let hint = |name: &str, value: &str| serde_json::json!({"name": name, "value": value});
        let mut hints: Vec<_> = offered.map(|(name, value)| hint(name, value)).to_vec();
        hints.extend(done.map(|done| hint("clip.done", &done.to_string())));
        call["request"]["hints"] = hints.into();
    }
    serde_json::from_value(record).unwrap()
}

#[test]
fn guests_of_contract_0_1_are_told_the_same_from_old_and_new_records() {
    let host = tilewright_policy::PolicyHost::new(tilewright_policy::Limits::default(), &CacheDir::Off).unwrap();
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/tests/corpus/0.1.0/");
    for name in ["rust-gfx1151.wasm", "rust-comfyui.wasm"] {
        let (file, mut bytes) = (std::fs::File::open(format!("{corpus}{name}.gz")).unwrap(), Vec::new());
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        let policy = host.load(name, &bytes).unwrap();
        let new = recorded_of(Box::new(policy.configure(&[]).unwrap()));
        let old = as_written_before(&new);
        for record in [new, old] {
            let mut make_planner = |_: &PolicyIdentity| {
                policy.configure(&[]).map(|policy| Box::new(policy) as Box<dyn Planner>).map_err(|e| e.to_string())
            };
            let report = replay_same_policy(&sessions(&[record]).unwrap(), &mut make_planner).unwrap();
            assert_eq!((report.totals.calls, report.totals.equal), (3, 3), "{name}: {:?}", report.calls);
        }
    }
}

fn recorded_of(planner: Box<dyn Planner + Send>) -> Record {
    let identity = planner.identity().clone();
    let mut recorder = Recorder::new(planner, true);
    let facts: Arc<dyn CostModel> = Arc::new(Prices);
    let first = recorder.decide(&Question::new(Stage::Decode, &request(), &device(), &offer()), facts.clone());
    let attempts = [Attempt { plan: first.plan, failure: tilewright_plan::Failure::OutOfMemory { bytes: 1 } }];
    let under_way = UnderWay { done: 13, plan: plan(256) };
    let clip = Request { frames: 17, ..request() };
    let (device, capabilities) = (device(), offer());
    let question = Question::new(Stage::Decode, &clip, &device, &capabilities).going_on(Some(&under_way));
    let decision = recorder.decide(&question.after(&attempts), facts);
    recorder.learn(&Question::new(Stage::Decode, &request(), &device, &capabilities), &decision.plan, &outcome(10));
    let exchange = recorder.take();
    record(identity, decision, outcome(10), exchange)
}

fn numbers_of<'a>(value: &'a mut serde_json::Value, found: &mut Vec<&'a mut serde_json::Value>) {
    match value {
        serde_json::Value::Number(_) => found.push(value),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|value| numbers_of(value, found)),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(|value| numbers_of(value, found)),
        _ => {}
    }
}
