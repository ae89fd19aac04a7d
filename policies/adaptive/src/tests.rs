//! The search against a host whose prices are known: time by pixels and precision, memory by the pixels held at once.

use tilewright_sdk::{Backend, Cost, Device, Hint, Layout, Model, Objective, Outcome, Space, Trial, host::Stub};

use super::*;

fn request(backend: Backend, side: u32, memory_limit: u64, objective: Objective) -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        device: Device {
            backend,
            name: "test".into(),
            arch: "test".into(),
            compute_units: 1,
            total_bytes: 1 << 34,
            free_bytes: 1 << 33,
            unified: false,
            fast_dtypes: vec![Dtype::Bf16, Dtype::F16],
        },
        batch: 1,
        frames: 1,
        height: side,
        width: side,
        memory_limit,
        objective,
        hints: vec![Hint { name: "offer.dtypes".into(), value: "f32,bf16,f16".into() }],
    }
}

/// 1000 bytes per pixel held and f32 element's four bytes, 10 ns per pixel worked on; narrow types cost half.
fn cost(plan: &Plan, side: u32) -> Cost {
    let (pixels, tiles) = match plan.tile() {
        None => (u64::from(side).pow(2), 1),
        Some(tile) => {
            let along = u64::from((side - tile.width).div_ceil(tile.width - tile.overlap) + 1);
            (u64::from(tile.width) * u64::from(tile.height), along * along)
        }
    };
    let half = if plan.precision.dtype() == Dtype::F32 { 2 } else { 1 };
    Cost {
        peak_bytes: pixels * 500 * half * u64::from(plan.batch),
        elapsed_ns: pixels * tiles * 5 * half,
        tiles: tiles as u32,
        shapes: 1,
        rework: 1.0,
    }
}

fn stub(side: u32, trials: Vec<Trial>) {
    Stub { estimate: Box::new(move |plan| Ok(cost(plan, side))), trials, log: Vec::new() }.install();
}

fn adaptive() -> Adaptive {
    Adaptive::configure(&Adaptive::describe().defaults()).unwrap()
}

#[test]
fn whole_where_it_fits() {
    stub(1024, Vec::new());
    let plan = adaptive().decide(&request(Backend::Cpu, 1024, 1 << 40, Objective::Fastest)).unwrap();
    assert_eq!((plan.space, plan.precision), (Space::Whole, Precision::Uniform(Dtype::F32)));
}

#[test]
fn narrow_where_the_device_is_fast_in_it_and_never_f16_alone() {
    stub(1024, Vec::new());
    let plan = adaptive().decide(&request(Backend::Cuda, 1024, 1 << 40, Objective::Fastest)).unwrap();
    assert_eq!((plan.space, plan.precision), (Space::Whole, Precision::Mixed(Dtype::Bf16)));
}

#[test]
fn tiles_within_the_limit() {
    stub(2048, Vec::new());
    let limit = 700 << 20;
    let plan = adaptive().decide(&request(Backend::Cpu, 2048, limit, Objective::Balanced)).unwrap();
    assert!(plan.tile().is_some(), "{plan:?}");
    assert!(cost(&plan, 2048).peak_bytes <= limit);
    let tiny = adaptive().decide(&request(Backend::Cpu, 2048, 20 << 20, Objective::Fastest)).unwrap();
    assert!(tiny.tile().unwrap().width < 256);
    assert!(adaptive().decide(&request(Backend::Cpu, 2048, 1 << 10, Objective::Fastest)).is_err());
}

#[test]
fn leanest_takes_less_than_fastest() {
    stub(2048, Vec::new());
    let peak = |objective| {
        cost(&adaptive().decide(&request(Backend::Cpu, 2048, 1 << 40, objective)).unwrap(), 2048).peak_bytes
    };
    assert!(peak(Objective::Leanest) < peak(Objective::Fastest));
}

#[test]
fn measurements_correct_the_estimates() {
    // Whole was measured to take five times what was expected, tiles as long as expected.
    let trial = |space, ratio: u64| {
        let plan = Plan { space, layout: Layout::ChannelsFirst, ..Plan::whole(Precision::Uniform(Dtype::F32)) };
        let expected = cost(&plan, 2048);
        let outcome = Outcome { elapsed_ns: expected.elapsed_ns * ratio, peak_bytes: expected.peak_bytes, attempts: 1 };
        Trial { plan, outcome }
    };
    let tiles = Space::Blended(tilewright_sdk::Tile::square(768, 96));
    let last = |space, ratio| {
        let mut trial = trial(space, ratio);
        trial.plan.layout = Layout::ChannelsLast;
        trial
    };
    stub(2048, vec![trial(Space::Whole, 5), trial(tiles, 1), last(Space::Whole, 5), last(tiles, 1)]);
    let plan = adaptive().decide(&request(Backend::Cpu, 2048, 1 << 40, Objective::Fastest)).unwrap();
    assert!(plan.tile().is_some(), "{plan:?}");
}

#[test]
fn recovers_by_width_and_by_memory() {
    stub(1024, Vec::new());
    let request = request(Backend::Cuda, 1024, 1 << 40, Objective::Fastest);
    let mut attempts =
        vec![Attempt { plan: Plan::whole(Precision::Uniform(Dtype::Bf16)), failure: Failure::NonFinite(3) }];
    let mixed = adaptive().recover(&request, &attempts).unwrap();
    assert_eq!(mixed.precision, Precision::Mixed(Dtype::Bf16));
    attempts.push(Attempt { plan: mixed, failure: Failure::NonFinite(3) });
    let full = adaptive().recover(&request, &attempts).unwrap();
    assert_eq!(full.precision, Precision::Uniform(Dtype::F32));
    attempts.push(Attempt { plan: full.clone(), failure: Failure::OutOfMemory(1 << 20) });
    let smaller = adaptive().recover(&request, &attempts).unwrap();
    assert_eq!(smaller.precision, Precision::Uniform(Dtype::F32));
    assert!(cost(&smaller, 1024).peak_bytes * 10 <= cost(&full, 1024).peak_bytes * 7);
    attempts.push(Attempt { plan: smaller, failure: Failure::NonFinite(1) });
    assert!(adaptive().recover(&request, &attempts).is_err());
}

#[test]
fn settings_are_checked() {
    let refused = |name: &str, value: tilewright_sdk::Value| {
        Adaptive::configure(&Adaptive::describe().defaults().with(name, value)).err().unwrap()
    };
    assert_eq!(refused("min-tile", 4096.into()), "max-tile: has to be at least min-tile");
    assert_eq!(
        refused("precision", "f8".into()),
        "precision=f8: allowed is auto, f32, bf16, f16, mixed-bf16, mixed-f16"
    );
    assert!(refused("overlap", "-1".into()).starts_with("overlap=-1: allowed is auto"));
}
