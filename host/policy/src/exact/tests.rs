use std::{collections::BTreeMap, time::Duration};

use tilewright_plan::{
    Backend, Cost, Device, Dtype, HostMemory, Layout, Model, Objective, Outcome, PoolStatistics, Stage, UnderWay,
};

use super::*;

/// A kilobyte and 100 ns for each pixel that is held. Bands hold three quarters of the picture and
/// their share of the rest, and take 10 % more time; tiles take 17 % less. Measured over estimated
/// memory of whole plans is `measured`, if there is one.
struct Prices {
    request: Request,
    measured: Option<f64>,
}

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let area = |height: u32, width: u32| f64::from(height) * f64::from(width);
        let picture = area(self.request.height, self.request.width);
        let (held, time) = match plan.space {
            Space::Whole => (picture, 1.0),
            Space::Exact(tile) => (0.75 * picture + 0.25 * area(tile.height, self.request.width), 1.1),
            Space::Blended(tile) => (area(tile.height, tile.width), 0.83),
        };
        let frames = match plan.time {
            Time::Carried { frames } | Time::Blended { frames, .. } => frames,
            Time::Whole => self.request.frames,
        };
        Ok(Cost {
            peak_bytes: (held * 1024.0) as u64 * u64::from(frames) * u64::from(plan.batch),
            elapsed: Duration::from_nanos((picture * 100.0 * time) as u64),
            tiles: 1,
            shapes: 1,
            rework: 1.0,
            weights_bytes: 0,
        })
    }

    fn trials(&self, _most: u32) -> Vec<Trial> {
        let trial = |ratio: f64| {
            let plan = plan(Space::Whole);
            let peak_bytes = (self.estimate_one(&plan).unwrap().peak_bytes as f64 * ratio) as u64;
            let outcome = Outcome {
                elapsed: Duration::from_secs(1),
                load: Duration::ZERO,
                peak_bytes,
                attempts: 1,
                pool: PoolStatistics::default(),
                cold: false,
                weights_bytes: 0,
            };
            Trial { plan, outcome }
        };
        self.measured.into_iter().map(trial).collect()
    }
}

fn plan(space: Space) -> Plan {
    Plan { space, layout: Layout::ChannelsLast, reason: "tiles".into(), ..Plan::plain() }
}

fn tiles(side: u32) -> Plan {
    plan(Space::Blended(Tile { height: side, width: side, overlap: 32 }))
}

fn bands(height: u32) -> Space {
    Space::Exact(Tile { height, width: 1024, overlap: 0 })
}

/// A picture of 1024×1024, or a clip of it, within `limit_mib` MiB; the whole picture holds 1024.
fn request(limit_mib: u64, frames: u32, objective: Objective) -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: if frames > 1 { 4 } else { 1 },
        },
        batch: 1,
        frames,
        height: 1024,
        width: 1024,
        memory_limit: limit_mib << 20,
        limit_counts_weights: false,
        allows_blended: false,
        objective,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

fn capabilities(exact: bool, carried: bool) -> Capabilities {
    Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact,
        carried,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    }
}

fn device() -> Device {
    Device {
        backend: Backend::Cpu,
        name: "test".into(),
        arch: "test".into(),
        compute_units: 1,
        total_bytes: 1 << 40,
        free_bytes: 1 << 40,
        unified: false,
        fast_dtypes: vec![],
        hints: Vec::new(),
    }
}

fn replaced(answer: &Plan, request: &Request, capabilities: &Capabilities, attempts: &[Attempt]) -> Option<Plan> {
    let device = device();
    let question = Question::new(Stage::Decode, request, &device, capabilities).after(attempts);
    in_place_of(answer, &question, &Prices { request: request.clone(), measured: None })
}

#[test]
fn the_best_exact_plan_that_fits_replaces_tiles_that_are_not_allowed() {
    let offered = capabilities(true, false);
    let space =
        |limit, objective| replaced(&tiles(256), &request(limit, 1, objective), &offered, &[]).map(|plan| plan.space);
    for (objective, height) in [(Objective::Fastest, 256), (Objective::Balanced, 64)] {
        assert_eq!(space(4096, objective), Some(Space::Whole));
        assert_eq!(space(1000, objective), Some(bands(height)));
    }
    assert_eq!(space(4096, Objective::Leanest), Some(bands(64)));
    // Nothing exact fits: the answer stands.
    assert_eq!(space(700, Objective::Fastest), None);
    let exact = replaced(&Plan { batch: 8, ..tiles(256) }, &request(4096, 1, Objective::Fastest), &offered, &[]);
    let exact = exact.unwrap();
    assert_eq!((exact.batch, exact.precision, exact.layout), (1, tiles(256).precision, tiles(256).layout));
    // Without bands the whole picture is all that is exact.
    let bare = capabilities(false, false);
    let whole =
        |limit| replaced(&tiles(256), &request(limit, 1, Objective::Leanest), &bare, &[]).map(|plan| plan.space);
    assert_eq!((whole(4096), whole(1000)), (Some(Space::Whole), None));
}

#[test]
fn allowed_and_exact_answers_stand() {
    let offered = capabilities(true, false);
    let allowing = Request { allows_blended: true, ..request(4096, 1, Objective::Balanced) };
    assert_eq!(replaced(&tiles(256), &allowing, &offered, &[]), None);
    assert_eq!(replaced(&plan(bands(256)), &request(4096, 1, Objective::Balanced), &offered, &[]), None);
}

#[test]
fn chunks_that_blend_are_replaced_as_well() {
    let blended = Plan { time: Time::Blended { frames: 16, overlap: 2 }, ..plan(Space::Whole) };
    let request = request(1 << 20, 81, Objective::Balanced);
    let exact = replaced(&blended, &request, &capabilities(false, false), &[]).unwrap();
    assert_eq!((exact.space, exact.time), (Space::Whole, Time::Whole));
    let tiled = Plan { time: Time::Carried { frames: 16 }, ..tiles(256) };
    let exact = replaced(&tiled, &request, &capabilities(true, true), &[]).unwrap();
    assert_eq!((exact.space, exact.time), (Space::Whole, Time::Carried { frames: 4 }));
}

#[test]
fn a_clip_under_way_in_tiles_goes_on_in_them() {
    let (request, device, offered) = (request(1 << 20, 81, Objective::Balanced), device(), capabilities(true, true));
    let begun = UnderWay { done: 5, plan: Plan { time: Time::Carried { frames: 4 }, ..tiles(256) } };
    let question = Question::new(Stage::Decode, &request, &device, &offered).going_on(Some(&begun));
    let prices = Prices { request: request.clone(), measured: None };
    assert_eq!(in_place_of(&begun.plan, &question, &prices), None);
}

#[test]
fn after_failures_less_is_expected_to_fit_and_at_last_nothing() {
    let offered = capabilities(true, false);
    let request = request(4096, 1, Objective::Balanced);
    let failed = |plan: Plan| Attempt { plan, failure: Failure::OutOfMemory { bytes: 1 } };
    // Bands hold more than 70 % of the whole picture.
    assert_eq!(replaced(&tiles(256), &request, &offered, &[failed(plan(Space::Whole))]), None);
    let batch = Plan { batch: 4, ..plan(Space::Whole) };
    let exact = replaced(&tiles(256), &request, &offered, &[failed(batch.clone())]).unwrap();
    assert_eq!(exact.space, Space::Whole);
    let overflowed = Attempt { failure: Failure::NonFinite { values: 1 }, ..failed(plan(bands(64))) };
    let exact = replaced(&tiles(256), &request, &offered, &[overflowed]).unwrap();
    assert_eq!(exact.space, Space::Whole);
    assert_eq!(
        replaced(&tiles(256), &request, &offered, &[failed(batch.clone()), failed(batch.clone()), failed(batch)]),
        None
    );
}

#[test]
fn measurements_of_exact_plans_count() {
    let (request, device, offered) = (request(1040, 1, Objective::Fastest), device(), capabilities(true, false));
    let question = Question::new(Stage::Decode, &request, &device, &offered);
    let space = |measured| {
        let prices = Prices { request: request.clone(), measured };
        in_place_of(&tiles(256), &question, &prices).map(|plan| plan.space)
    };
    assert_eq!(space(None), Some(Space::Whole));
    assert_eq!(space(Some(1.2)), Some(bands(256)));
    assert_eq!(space(Some(1.4)), None);
}

#[test]
fn a_note_names_each_part_that_changed() {
    let answer = Plan { batch: 4, ..tiles(256) };
    assert_eq!(
        notes(&answer, &plan(Space::Whole)),
        [format!("space blended 256×256/32 → whole: {BECAUSE}"), format!("batch 4 → 1: {BECAUSE}")]
    );
}

#[test]
fn a_setting_allows_what_it_names_and_a_default_does_not() {
    let declared =
        |default: &str| Setting { name: "space".into(), summary: String::new(), default: Value::Text(default.into()) };
    let asks = |default: &str, given: &str| {
        let settings = BTreeMap::from([("space".to_owned(), Value::Text(given.into()))]);
        let identity = PolicyIdentity { name: "p".into(), version: "1".into(), digest: String::new(), settings };
        asks_for_blended(&identity, &[declared(default)])
    };
    assert!(asks("whole", "blended"));
    assert!(!asks("whole", "exact") && !asks("whole", "whole") && !asks("blended", "blended"));
}
