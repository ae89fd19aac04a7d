//! The history in a folder of its own: kept, shared, bounded, damaged.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;
use tilewright_plan::{
    Backend, Denoise, DenoiseRecord, Device, Dtype, Hint, HostMemory, Model, Objective, Outcome, Plan, PolicyIdentity,
    PoolStatistics, Record, Request, Space, Stage, Tile, Vae,
    records::{self, AnyRecord},
};

use super::*;

mod clock;
mod damage;
mod merges;
mod profiles;
mod tables;

const DEVICE: &str = "a processor, 2 cores, libtorch 2.11";

fn as_vae(record: &AnyRecord) -> Option<&Record> {
    if let AnyRecord::Vae(record) = record { Some(record) } else { None }
}

fn record(second: u32, size: [u32; 4], tile: u32) -> Record {
    let [batch, frames, height, width] = size;
    let space = match tile {
        0 => Space::Whole,
        side => Space::Blended(Tile { height: side, width: side, overlap: side / 4 }),
    };
    Record {
        tilewright: "0.1.0".into(),
        time: humantime::format_rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(second.into())).to_string(),
        stage: None,
        capabilities: None,
        request: Request {
            model: Model {
                family: "flux".into(),
                stored: Dtype::Bf16,
                quantized: false,
                parameter_bytes: 99,
                spatial_scale: 8,
                temporal_scale: 1,
            },
            batch,
            frames,
            height,
            width,
            memory_limit: 1 << 30,
            limit_counts_weights: false,
            allows_blended: true,
            objective: Objective::Balanced,
            hints: Vec::new(),
            host: HostMemory::default(),
        },
        device: Device {
            backend: Backend::Cpu,
            name: "Some Processor".into(),
            arch: "x86-64-v4".into(),
            compute_units: 2,
            total_bytes: 8 << 30,
            free_bytes: 4 << 30,
            unified: true,
            fast_dtypes: vec![Dtype::F32],
            hints: Vec::new(),
        },
        policy: PolicyIdentity {
            name: "adaptive".into(),
            version: "0.1.0".into(),
            digest: "sha256:00".into(),
            settings: BTreeMap::new(),
        },
        answer: None,
        plan: Plan { space, reason: format!("at {second}"), ..Plan::plain() },
        adjusted: Vec::new(),
        fallback: None,
        decision: Duration::from_micros(4),
        fuel: 5,
        estimate: None,
        attempts: Vec::new(),
        outcome: Some(Outcome {
            elapsed: Duration::from_millis(second.into()),
            load: Duration::ZERO,
            peak_bytes: 1 << 20,
            attempts: 1,
            pool: PoolStatistics::default(),
            cold: false,
            weights_bytes: 0,
        }),
        resumed_frames: 0,
        expected: None,
        exchange: None,
    }
}

fn picture(second: u32, tile: u32) -> Record {
    record(second, [1, 1, 512, 512], tile)
}

struct TestFolder(TempDir);

impl TestFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("state/tilewright/history.sqlite")
    }

    fn open(&self) -> History {
        History::open(&self.path()).unwrap()
    }

    fn broken(&self) -> Vec<PathBuf> {
        let names = fs::read_dir(self.path().parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_str().unwrap().contains(".broken-")).collect()
    }
}

/// The seconds of the trials that a policy gets, which tell the records apart.
fn trial_seconds(history: &mut History, record: &Record, most: u32) -> Vec<u128> {
    let query = Query { device: DEVICE, stage: record.stage(), request: &record.request };
    let trials = history.trials::<Vae>(&query, most).unwrap();
    trials.iter().map(|trial| trial.outcome.unwrap().elapsed.as_millis()).collect()
}

#[test]
fn what_is_kept_comes_back_newest_first_and_only_the_user_can_read_it() {
    let place = TestFolder::new();
    let mut history = place.open();
    let records = [picture(10, 0), picture(30, 256), picture(20, 256)];
    for record in &records {
        history.append(DEVICE, record).unwrap();
    }
    drop(history);
    let history = place.open();
    let listing = history.newest(&Filter::default(), 2).unwrap();
    let found: Vec<&Record> = listing.entries.iter().filter_map(|entry| as_vae(&entry.record)).collect();
    assert_eq!(found, [&records[1], &records[2]]);
    assert_eq!(history.count(&Filter::default()).unwrap(), 3);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path()), 0o600);
    assert_eq!(mode(place.path().parent().unwrap()), 0o700);
}

#[test]
fn policies_are_told_of_this_device_and_model_at_about_this_size() {
    let place = TestFolder::new();
    let mut history = place.open();
    let asked = picture(0, 0);
    let mut other_model = picture(1, 0);
    other_model.request.model.parameter_bytes += 1;
    let mut failed = picture(2, 0);
    failed.outcome = None;
    history.append("another driver", &picture(3, 0)).unwrap();
    for record in [other_model, failed] {
        history.append(DEVICE, &record).unwrap();
    }
    assert_eq!(trial_seconds(&mut history, &asked, 9), []);
    // A quarter and four times the output are still about this size, whatever its axes; one more
    // row of pixels is not.
    let sizes = [[1, 1, 256, 256], [4, 1, 512, 512], [1, 4, 512, 512], [1, 1, 255, 256], [4, 1, 513, 512]];
    for (second, size) in sizes.into_iter().enumerate() {
        history.append(DEVICE, &record(second as u32 + 10, size, 64 * second as u32)).unwrap();
    }
    assert_eq!(trial_seconds(&mut history, &asked, 9), [12, 11, 10]);
    assert_eq!(trial_seconds(&mut history, &asked, 2), [12, 11]);
    assert_eq!(trial_seconds(&mut history, &asked, 0), []);
}

#[test]
fn a_plan_is_told_of_by_its_newest_runs_and_few_of_long_ago() {
    let place = TestFolder::new();
    let mut history = place.open();
    for second in 1..=40 {
        history.append(DEVICE, &picture(second, 256)).unwrap();
    }
    for (second, tile) in [(50, 0), (50, 512)] {
        history.append(DEVICE, &picture(second, tile)).unwrap();
    }
    // At one time the later-added comes first; reasons don't make plans differ.
    let query = Query { device: DEVICE, stage: Stage::Decode, request: &picture(0, 0).request };
    let trials = history.trials::<Vae>(&query, 100).unwrap();
    let found: Vec<_> =
        trials.iter().map(|trial| (trial.outcome.unwrap().elapsed.as_millis(), trial.plan.space.tile())).collect();
    let tile = |side| Some(Tile { height: side, width: side, overlap: side / 4 });
    // The newest eight, then the 16th and the 32nd.
    let quarter = [40, 39, 38, 37, 36, 35, 34, 33, 25, 9].map(|ms| (ms, tile(256)));
    assert_eq!(found, [vec![(50, tile(512)), (50, None)], quarter.to_vec()].concat());
}

#[test]
fn a_policy_s_question_is_answered_from_the_index_alone() {
    let place = TestFolder::new();
    let history = place.open();
    let plan = |query: &str, values: &[&dyn rusqlite::ToSql]| -> Vec<String> {
        let mut statement = history.connection.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
        statement.query_map(values, |row| row.get(3)).unwrap().map(|line| line.unwrap()).collect()
    };
    let steps = plan(trials::NEWEST, &[&"decode", &DEVICE, &"model", &1]);
    // One step: no scan, no sorting, no row.
    assert_eq!(
        steps,
        ["SEARCH trial USING COVERING INDEX trial_of_policies (stage=? AND device=? AND model=? AND failed=?)"]
    );
}

#[test]
fn encodes_and_decodes_are_not_told_of_each_other() {
    let place = TestFolder::new();
    let mut history = place.open();
    let staged = |second, stage: Option<&str>| {
        let mut record = picture(second, 0);
        record.request.hints.extend(stage.map(|stage| Hint { name: "stage".into(), value: stage.into() }));
        record
    };
    // Records without a stage, and of either.
    let records = [staged(1, None), staged(2, Some("decode")), staged(3, Some("encode"))];
    for record in &records {
        history.append(DEVICE, record).unwrap();
    }
    let [old, decode, encode] = &records;
    assert_eq!(trial_seconds(&mut history, encode, 9), [3]);
    assert_eq!(trial_seconds(&mut history, decode, 9), [2, 1]);
    assert_eq!(trial_seconds(&mut history, old, 9), [2, 1]);
}

#[test]
fn processes_at_once_lose_nothing_and_readers_never_fail() {
    const WRITERS: u32 = 4;
    const EACH: u32 = 200;
    let place = &TestFolder::new();
    // Counts strong references: one for each writer that is still at work, whether it ends well or
    // not.
    let working = Arc::new(());
    // Each opens for itself, the first ones at the same moment, when there is no file yet.
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let working = working.clone();
            scope.spawn(move || {
                let mut history = place.open();
                for second in 0..EACH {
                    history.append(DEVICE, &picture(writer * EACH + second, 0)).unwrap();
                }
                drop(working);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while Arc::strong_count(&working) > 1 {
                    let mut history = place.open();
                    let count = history.count(&Filter::default()).unwrap();
                    assert!(count >= seen);
                    seen = count;
                    trial_seconds(&mut history, &picture(0, 0), 8);
                    history.newest(&Filter::default(), 20).unwrap();
                }
            });
        }
    });
    let listing = place.open().newest(&Filter::default(), u32::MAX).unwrap();
    let seconds: Vec<u128> = listing
        .entries
        .iter()
        .map(|entry| as_vae(&entry.record).unwrap().outcome.unwrap().elapsed.as_millis())
        .collect();
    assert_eq!(seconds, (0..u128::from(WRITERS * EACH)).rev().collect::<Vec<_>>());
    assert_eq!(place.broken(), [] as [PathBuf; 0]);
}

#[test]
fn samples_are_kept_beside_decodes_and_found_by_their_model() {
    let place = TestFolder::new();
    let mut history = place.open();
    let sample = |second: u32, steps: u32, side: u32, passes: u32| -> DenoiseRecord {
        let text = include_str!("../tests/sample.json");
        let mut record: DenoiseRecord = serde_json::from_str(text).unwrap();
        record.time = picture(second, 0).time;
        (record.request.steps, record.request.height, record.request.passes) = (steps, side, passes);
        record
    };
    history.append(DEVICE, &picture(1, 0)).unwrap();
    for (second, side, passes) in [(2, 32, 1), (3, 4096, 1), (4, 32, 2), (5, 40, 1)] {
        history.append(DEVICE, &sample(second, second, side, passes)).unwrap();
    }
    let asked = sample(9, 8, 32, 1);
    let query = Query { device: DEVICE, stage: Stage::Denoise, request: &asked.request };
    let found: Vec<u32> =
        history.trials::<Denoise>(&query, 9).unwrap().iter().map(|record| record.request.steps).collect();
    assert_eq!(found, [5, 2], "of about this size, with as many passes");
    let listing = history.newest(&Filter::default(), 2).unwrap();
    assert!(listing.entries.iter().all(|entry| matches!(entry.record, AnyRecord::Denoise(_))));
    let mut text = Vec::new();
    assert_eq!(history.export(&Filter::default(), &mut text).unwrap().records, 5);
    assert_eq!(records::read_any(&text[..]).flatten().count(), 5);
    assert_eq!(trial_seconds(&mut history, &picture(1, 0), 9), [1]);
}

#[test]
fn only_the_newest_are_kept() {
    let place = TestFolder::new();
    let mut history = place.open();
    assert_eq!(history.most_rows, 20_000);
    history.most_rows = 10;
    for second in 0..128 {
        history.append(DEVICE, &picture(second, 0)).unwrap();
    }
    let listing = history.newest(&Filter::default(), u32::MAX).unwrap();
    let oldest = as_vae(&listing.entries.last().unwrap().record).unwrap().outcome.unwrap().elapsed.as_millis();
    assert_eq!((listing.entries.len(), oldest), (10, 118));
}

#[test]
fn filters_hold_together_and_clear_removes_what_they_match() {
    let place = TestFolder::new();
    let mut history = place.open();
    for second in 0..8 {
        let mut record = picture(second, 0);
        if second % 2 == 0 {
            record.policy.name = "fixed".into();
        }
        if second >= 4 {
            record.request.model.family = "sdxl".into();
        }
        if second == 6 {
            record.outcome = None;
        }
        history.append(if second < 2 { "gfx1151, ROCm" } else { DEVICE }, &record).unwrap();
    }
    let all = Filter::default();
    let text = |text: &str| Some(text.to_owned());
    let since = |second| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
    let cases = [
        (all.clone(), 8),
        (Filter { policy: text("fixed"), ..all.clone() }, 4),
        (Filter { policy: text("fixed"), family: text("sdxl"), ..all.clone() }, 2),
        (Filter { policy: text("fix"), ..all.clone() }, 0),
        (Filter { device: text("GFX1151"), ..all.clone() }, 2),
        (Filter { device: text("some proc"), ..all.clone() }, 8),
        (Filter { device: text("%"), ..all.clone() }, 0),
        (Filter { since: since(5), ..all.clone() }, 3),
        (Filter { failed: true, ..all.clone() }, 1),
        (Filter { failed: true, since: since(7), ..all.clone() }, 0),
        (Filter { policy: text("' OR 1 = 1 --"), ..all.clone() }, 0),
    ];
    for (filter, count) in &cases {
        assert_eq!(history.count(filter).unwrap(), *count, "{filter:?}");
        let mut lines = Vec::new();
        assert_eq!(history.export(filter, &mut lines).unwrap(), Exported { records: *count, unreadable: 0 });
        assert_eq!(String::from_utf8(lines).unwrap().lines().count() as u64, *count);
    }
    assert_eq!(history.clear(&cases[2].0).unwrap(), 2);
    assert_eq!(history.count(&all).unwrap(), 6);
    assert_eq!(history.clear(&all).unwrap(), 6);
    let bytes = fs::read(place.path()).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"adaptive"), "what was cleared is gone from the file too");
}

#[test]
fn what_cannot_be_read_is_counted_and_what_is_too_large_refused() {
    let place = TestFolder::new();
    let mut history = place.open();
    for second in 0..3 {
        history.append(DEVICE, &picture(second, second * 64)).unwrap();
    }
    history.connection.execute(r#"UPDATE trial SET record = '{"from": "another version"}' WHERE id = 2"#, []).unwrap();
    let listing = history.newest(&Filter::default(), 20).unwrap();
    assert_eq!((listing.entries.len(), listing.unreadable), (2, 1));
    assert_eq!(history.export(&Filter::default(), &mut Vec::new()).unwrap(), Exported { records: 2, unreadable: 1 });
    assert_eq!(trial_seconds(&mut history, &picture(0, 0), 8), [2, 0]);
    let mut record = picture(0, 0);
    record.plan.reason = "x".repeat(MOST_RECORD_BYTES);
    assert!(matches!(history.append(DEVICE, &record), Err(Error::TooLarge { .. })));
}

#[test]
fn times_are_read_as_people_write_them() {
    let at = |text: &str| humantime::parse_rfc3339(text).unwrap();
    let now = at("2026-11-21T12:00:00Z");
    let cases = [
        ("90min", "2026-11-21T10:30:00Z"),
        ("7d", "2026-11-14T12:00:00Z"),
        ("2h 30m", "2026-11-21T09:30:00Z"),
        ("2026-11-20", "2026-11-20T00:00:00Z"),
        (" 2026-11-20T08:30:00Z ", "2026-11-20T08:30:00Z"),
        ("2026-11-20 08:30:00", "2026-11-20T08:30:00Z"),
        ("900 years", "1970-01-01T00:00:00Z"),
    ];
    for (text, time) in cases {
        assert_eq!(since(text, now), Ok(at(time)), "{text}");
    }
    for text in ["", "yesterday", "7", "-7d", "2026-13-01", "2026-11", "99999999999999999999d", "1969-01-01", "\u{1b}"]
    {
        assert!(since(text, now).is_err(), "{text}");
    }
}

proptest! {
    // Each case makes a file, which waits for the disk.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_a_record_holds_comes_back(
        texts in prop::collection::vec(any::<String>(), 6), size in any::<[u32; 4]>(), time in any::<Option<u32>>(),
    ) {
        let mut record = record(time.unwrap_or(0), size, 64);
        if time.is_none() {
            record.time = texts[0].clone();
        }
        record.plan.reason = texts[1].clone();
        record.policy.name = texts[2].clone();
        record.request.model.family = texts[3].clone();
        record.device.name = texts[4].clone();
        let place = TestFolder::new();
        let mut history = place.open();
        history.append(&texts[5], &record).unwrap();
        let listing = history.newest(&Filter { policy: Some(texts[2].clone()), ..Filter::default() }, 1).unwrap();
        prop_assert_eq!(as_vae(&listing.entries[0].record), Some(&record));
        prop_assert_eq!(&listing.entries[0].device, &texts[5]);
        let query = Query { device: &texts[5], stage: record.stage(), request: &record.request };
        prop_assert_eq!(history.trials::<Vae>(&query, 1).unwrap().len(), 1);
        let line = json_line(&record).unwrap();
        prop_assert!(!line.chars().any(char::is_control));
        prop_assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }
}
