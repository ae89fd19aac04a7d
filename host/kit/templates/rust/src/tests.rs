//! Runs natively by `cargo test`: no WebAssembly, and a stub of the host.

use tilewright_sdk::{
    Backend, Capabilities, Device, Direction, HostMemory, Memory, Model, Space, StoredType, UnderWay, Weights, host::Stub,
};

use super::*;

const MIB: u64 = 1 << 20;

/// A picture of 1024×1024 with this much memory.
fn request(limit_bytes: u64) -> Request {
    Request {
        direction: Direction::Decode,
        model: Model {
            family: "flux".into(),
            weights: Weights {
                stored_bytes: 95 * MIB,
                stored_types: vec![StoredType { name: "bf16".into(), bytes: 95 * MIB }],
            },
            sample_size: Some(1024),
        },
        device: Device {
            backend: Backend::Rocm,
            name: "AMD Radeon 8060S".into(),
            arch: "gfx1151".into(),
            compute_units: 40,
            total_bytes: 65_536 * MIB,
            free_bytes: 65_536 * MIB,
            unified: true,
            fast_dtypes: vec![],
        },
        host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
        limit_bytes,
        objective: Objective::Balanced,
        allows_blended: false,
        batch: 1,
        frames: 1,
        height: 1024,
        width: 1024,
        spatial_scale: 8,
        temporal_scale: 1,
        capabilities: Capabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 16,
            prefetch_most: 2,
            exact: true,
            carried: true,
            offload: false,
            options: vec![],
        },
        under_way: None,
        hints: vec![],
    }
}

/// A host for which a pixel of a tile costs a kilobyte, in sixteen frames at once.
fn policy() -> Tiles {
    let estimate = |plan: &Plan| {
        let side = plan.tile().map_or(1024, |tile| tile.height);
        let tiles = (1024 / side).pow(2);
        let frames = if let Time::Carried(frames) = plan.time { frames } else { 16 };
        let peak_bytes = u64::from(side * side * frames) << 6;
        let memory = Memory { peak_bytes, weights_bytes: 0 };
        Ok(Cost { memory, elapsed_ns: 1_000_000 + u64::from(tiles), tiles, shapes: 1, rework: 1.0 })
    };
    Stub { estimate: Box::new(estimate), trials: vec![] }.install();
    Tiles::configure(&Tiles::describe().defaults()).unwrap()
}

#[test]
fn whole_if_it_fits_and_tiles_if_it_does_not() {
    assert_eq!(policy().decide(&request(2048 * MIB), &[]).unwrap().space, Space::Whole);
    let mut tight = request(300 * MIB);
    let bands = policy().decide(&tight, &[]).unwrap();
    assert_eq!(bands.space, Space::Exact(Tile { height: 512, width: 1024, overlap: 0 }));
    // Tiles are the last resort, or allowed.
    tight.capabilities.exact = false;
    assert_eq!(policy().decide(&tight, &[]).unwrap().space, Space::Blended(Tile::square(512, 64)));
    let mut leanest = Request { objective: Objective::Leanest, ..request(2048 * MIB) };
    leanest.capabilities.exact = false;
    assert_eq!(policy().decide(&leanest, &[]).unwrap().space, Space::Whole);
    leanest.allows_blended = true;
    assert_eq!(policy().decide(&leanest, &[]).unwrap().space, Space::Blended(Tile::square(64, 8)));
}

#[test]
fn the_quickest_type_and_memory_order_are_taken() {
    let mut policy = policy();
    let estimate = |plan: &Plan| {
        let is_quick = (plan.layout, plan.precision) == (Layout::ChannelsLast, Precision::Uniform(Dtype::F32));
        let memory = Memory { peak_bytes: MIB, weights_bytes: 0 };
        Ok(Cost { memory, elapsed_ns: if is_quick { 1 } else { 2 }, tiles: 1, shapes: 1, rework: 1.0 })
    };
    Stub { estimate: Box::new(estimate), trials: vec![] }.install();
    let mut request = request(2048 * MIB);
    request.device.fast_dtypes = vec![Dtype::Bf16, Dtype::F32];
    let plan = policy.decide(&request, &[]).unwrap();
    assert_eq!((plan.layout, plan.precision), (Layout::ChannelsLast, Precision::Uniform(Dtype::F32)));
}

#[test]
fn tiles_shrink_until_there_is_nothing_smaller() {
    let mut policy = policy();
    let mut request = request(300 * MIB);
    request.capabilities.exact = false;
    let mut plan = policy.decide(&request, &[]).unwrap();
    let mut sides = vec![];
    while let Ok(next) = policy.decide(&request, &[Attempt { plan, failure: Failure::OutOfMemory(MIB) }]) {
        sides.push(next.tile().unwrap().height);
        plan = next;
    }
    assert_eq!(sides, [256, 128, 64]);
}

#[test]
fn a_clip_is_taken_in_fewer_frames_at_once() {
    let mut policy = policy();
    let mut request = Request { frames: 81, ..request(2048 * MIB) };
    request.temporal_scale = 4;
    let plan = policy.decide(&request, &[]).unwrap();
    assert_eq!((plan.space, plan.time), (Space::Whole, Time::Carried(16)));
    let failure = Failure::OverLimit(4096 * MIB);
    let attempts = [Attempt { plan, failure }];
    assert_eq!(policy.decide(&request, &attempts).unwrap().time, Time::Carried(4));
    // Frames get fewer before anything is blended.
    request.limit_bytes = MIB;
    let plan = policy.decide(&request, &[]).unwrap();
    assert_eq!((plan.space, plan.time), (Space::Exact(Tile { height: 64, width: 1024, overlap: 0 }), Time::Carried(4)));
    // A clip under way is left to the host.
    let plan = Plan { time: Time::Carried(4), ..Plan::whole(Precision::Uniform(Dtype::F32)) };
    request.under_way = Some(UnderWay { frames_done: 4, plan: plan.clone() });
    assert!(policy.decide(&request, &[Attempt { plan, failure }]).is_err());
}

#[test]
fn a_tile_out_of_range_is_refused() {
    assert!(Tiles::configure(&Tiles::describe().defaults().with("tile", 100)).is_err());
}
