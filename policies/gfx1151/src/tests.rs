//! The published settings against a host whose prices are known.

use tilewright_sdk::{
    Backend, Capabilities, Cost, Device, Direction, Hint, HostMemory, Memory, Model, Objective, StoredType, UnderWay,
    Weights, host::Stub,
};

use super::*;

/// 4 KiB per pixel and frame at once in f32, half of it in bf16, and 2 KiB of causal cache per
/// pixel of a clip's picture, or of its tile if tiles run over the whole clip. Bands hold a tenth
/// of the picture besides themselves.
fn price(request: &Request, plan: &Plan) -> Cost {
    let picture = u64::from(request.height) * u64::from(request.width);
    let tile = plan
        .tile()
        .map_or(picture, |tile| u64::from(tile.height.min(request.height)) * u64::from(tile.width.min(request.width)));
    let held = if matches!(plan.space, Space::Exact(_)) { tile + picture / 10 } else { tile };
    let (frames, state) = match plan.time {
        Time::Carried(frames) => (frames, picture),
        Time::Blended(chunk) => (chunk.frames, 0),
        Time::Whole => (request.frames.min(4), if request.frames > 1 { tile } else { 0 }),
    };
    let bytes = held * 4096 * u64::from(frames) * u64::from(plan.batch) + state * 2048;
    let peak_bytes = bytes * plan.precision.dtype().bytes() / 4;
    Cost { memory: Memory { peak_bytes, weights_bytes: 0 }, elapsed_ns: 1, tiles: 1, shapes: 1, rework: 1.0 }
}

fn request(width: u32, height: u32, frames: u32) -> Request {
    let request = Request {
        direction: Direction::Decode,
        model: Model {
            family: "wan-2.1".into(),
            weights: Weights {
                stored_bytes: 1 << 28,
                stored_types: vec![StoredType { name: "bf16".into(), bytes: 1 << 28 }],
            },
            sample_size: None,
        },
        device: Device {
            backend: Backend::Rocm,
            name: "AMD Radeon 8060S".into(),
            arch: "gfx1151".into(),
            compute_units: 40,
            total_bytes: 128 << 30,
            free_bytes: 100 << 30,
            unified: true,
            fast_dtypes: vec![Dtype::Bf16],
        },
        host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
        limit_bytes: 100 << 30,
        objective: Objective::Balanced,
        allows_blended: true,
        batch: 1,
        frames,
        height,
        width,
        spatial_scale: 8,
        temporal_scale: 4,
        capabilities: Capabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
            tile_unit: 8,
            tile_least: 8,
            batch_most: 64,
            prefetch_most: 0,
            exact: true,
            carried: true,
            offload: false,
            options: vec![],
        },
        under_way: None,
        hints: vec![],
    };
    let known = request.clone();
    Stub { estimate: Box::new(move |plan| Ok(price(&known, plan))), trials: vec![] }.install();
    request
}

fn policy() -> Gfx1151 {
    Gfx1151::configure(&Gfx1151::describe().defaults()).unwrap()
}

fn decide(request: &Request) -> Plan {
    policy().decide(request, &[]).unwrap()
}

fn ran_out(request: &Request, plan: Plan) -> Result<Plan, String> {
    policy().decide(request, &[Attempt { plan, failure: Failure::OutOfMemory(1) }])
}

#[test]
fn the_published_cases() {
    let case = |width, height, frames| {
        let plan = decide(&request(width, height, frames));
        (plan.space, plan.time, plan.precision.word(), plan.batch)
    };
    assert_eq!(case(320, 320, 1), (Space::Whole, Time::Whole, "f32", 8));
    assert_eq!(case(320, 320, 5), (Space::Whole, Time::Carried(5), "f32", 1));
    assert_eq!(case(320, 320, 17), (Space::Whole, Time::Carried(16), "f32", 1));
    let tile = |width, height| Space::Blended(Tile { height, width, overlap: 96 });
    assert_eq!(case(480, 720, 33), (Space::Whole, Time::Carried(8), "mixed-bf16", 1));
    assert_eq!(case(832, 480, 81), (tile(768, 480), Time::Carried(8), "mixed-bf16", 1));
    assert_eq!(case(1920, 1080, 81), (tile(1024, 1024), Time::Carried(4), "bf16", 1));
}

#[test]
fn overlap_only_without_a_causal_state() {
    for (side, frames, overlap) in [(320, 16, 8), (960, 8, 4), (1280, 4, 2)] {
        let mut uncarried = request(side, side, 81);
        uncarried.capabilities.carried = false;
        let plan = decide(&uncarried);
        assert_eq!(plan.time, Time::Blended(Overlapped { frames, overlap }));
        let plan = decide(&request(side, side, 81));
        assert_eq!(plan.time, Time::Carried(frames));
    }
}

#[test]
fn little_memory_gets_four_frames_and_then_tiles() {
    let at = |limit: u64| {
        let mut request = request(320, 320, 81);
        request.limit_bytes = limit;
        let plan = decide(&request);
        assert!(price(&request, &plan).held() <= limit);
        (plan.space, plan.time)
    };
    let whole = price(&request(320, 320, 81), &decide(&request(320, 320, 81))).held();
    assert_eq!(at(whole), (Space::Whole, Time::Carried(16)));
    assert_eq!(at(whole - 1), (Space::Whole, Time::Carried(8)));
    assert_eq!(at(whole / 3), (Space::Whole, Time::Carried(4)));
    // The picture's causal cache alone would take 210 MB.
    assert_eq!(at(310_000_000), (Space::Blended(Tile::square(128, 32)), Time::Whole));
}

#[test]
fn nothing_above_its_share_of_memory() {
    let mut request = request(320, 320, 81);
    let whole = price(&request, &decide(&request)).held();
    request.device.total_bytes = whole * 5 / 4 + 1;
    assert_eq!(decide(&request).time, Time::Carried(16));
    request.device.total_bytes = whole;
    assert_eq!(decide(&request).time, Time::Carried(8));
}

#[test]
fn memory_that_runs_out_takes_steps() {
    let whole = |request: &Request| Plan { time: Time::Carried(16), ..Plan::whole(precision(request)) };
    for is_under_way in [false, true] {
        let mut request = request(320, 320, 81);
        let mut plan = whole(&request);
        request.under_way = is_under_way.then(|| UnderWay { frames_done: 16, plan: plan.clone() });
        let mut steps = Vec::new();
        while let Ok(next) = ran_out(&request, plan.clone()) {
            assert!(10 * price(&request, &next).held() <= 7 * price(&request, &plan).held(), "{next:?}");
            assert_eq!(next.release, Release::EachStep);
            steps.push((next.space, next.time));
            plan = next;
            assert!(steps.len() < 9);
        }
        let bands = |height| Space::Exact(Tile { height, width: 320, overlap: 0 });
        let expected =
            [(Space::Whole, Time::Carried(8)), (Space::Whole, Time::Carried(4)), (bands(128), Time::Carried(4))];
        assert_eq!(&steps[..3], &expected);
        // A clip under way is never cut into tiles.
        let is_cut = steps.iter().any(|(space, _)| matches!(space, Space::Blended(_)));
        assert_eq!(is_cut, !is_under_way, "{steps:?}");
    }
}

#[test]
fn values_that_overflow_get_a_wider_type_where_they_run() {
    let failure = Failure::NonFinite(1);
    let mut request = request(1920, 1080, 81);
    let plan = Plan { time: Time::Carried(4), ..Plan::whole(Precision::Uniform(Dtype::Bf16)) };
    request.under_way = Some(UnderWay { frames_done: 4, plan: plan.clone() });
    let next = policy().decide(&request, &[Attempt { plan: plan.clone(), failure }]).unwrap();
    assert_eq!((next.space, next.time, next.precision.word()), (Space::Whole, Time::Carried(4), "mixed-bf16"));
    let mut tight = request;
    tight.limit_bytes = price(&tight, &plan).held() / 2;
    let plan = Plan { precision: Precision::Mixed(Dtype::Bf16), ..plan };
    let next = policy().decide(&tight, &[Attempt { plan, failure }]).unwrap();
    assert!(matches!(next.space, Space::Exact(_)), "{next:?}");
    assert_eq!(next.precision.word(), "f32");
}

/// A request with versions of the libraries.
fn with_hints(request: Request, hints: &[(&str, &str)]) -> Request {
    let hints = hints.iter().map(|(name, value)| Hint { name: (*name).into(), value: (*value).into() }).collect();
    Request { hints, ..request }
}

#[test]
fn recent_releases_decode_whole_and_older_ones_in_tiles() {
    let decided = |hints: &[(&str, &str)]| {
        let plan = decide(&with_hints(request(1664, 928, 1), hints));
        (plan.space, plan.precision.word())
    };
    let whole = (Space::Whole, "bf16");
    assert_eq!(decided(&[("rocm", "10.1.0")]), whole);
    assert_eq!(decided(&[("rocm", "11.0"), ("hip", "7.2.53211")]), whole);
    assert_eq!(decided(&[("hip", "7.16.12345")]), whole);
    let tiled = (Space::Blended(Tile { height: 928, width: 1024, overlap: 96 }), "bf16");
    let older: [&[(&str, &str)]; 7] = [
        &[],
        &[("rocm", "7.2.1")],
        &[("rocm", "10.0.9"), ("hip", "7.16.0")],
        &[("hip", "7.13.1")],
        &[("rocm", "")],
        &[("rocm", "99999999999.1"), ("miopen", "3.5")],
        &[("rocm", "10.1.0"), ("miopen-used", "false")],
    ];
    for hints in older {
        assert_eq!(decided(hints), tiled, "{hints:?}");
    }
}

#[test]
fn settings_stay_as_published_beyond_what_was_measured_with_recent_releases() {
    let hints = [("rocm", "10.1.0")];
    let same = |request: &Request| {
        let (plan, known) = (decide(&with_hints(request.clone(), &hints)), decide(request));
        assert_eq!((plan.space, plan.time, plan.precision), (known.space, known.time, known.precision));
    };
    same(&request(1920, 1080, 81));
    let mut quantized = request(1664, 928, 1);
    quantized.model.weights.stored_types = vec![StoredType { name: "q8_0".into(), bytes: 1 << 28 }];
    same(&quantized);
    let mut other = request(1664, 928, 1);
    other.device.arch = "gfx1100".into();
    same(&other);
}

#[test]
fn recent_releases_take_bands_and_then_tiles_for_memory_alone() {
    let mut request = with_hints(request(2048, 2048, 1), &[("rocm", "10.1.0")]);
    let whole = decide(&request);
    assert_eq!((whole.space, whole.precision.word()), (Space::Whole, "bf16"));
    let bands = |height| Space::Exact(Tile { height, width: 2048, overlap: 0 });
    request.limit_bytes = price(&request, &whole).held() - 1;
    let plan = decide(&request);
    assert_eq!((plan.space, plan.precision.word()), (bands(1024), "bf16"));
    let next = ran_out(&request, plan).unwrap();
    assert_eq!(next.space, bands(512));
    request.limit_bytes = price(&request, &next).held() / 4;
    assert!(matches!(decide(&request).space, Space::Blended(_)));
    // The user's own tile counts.
    let settings = Gfx1151::describe().defaults().with("tile", 512);
    let plan = Gfx1151::configure(&settings).unwrap().decide(&with_hints(request, &[("rocm", "10.1.0")]), &[]).unwrap();
    assert_eq!(plan.space, Space::Blended(Tile::square(512, 96)));
}
