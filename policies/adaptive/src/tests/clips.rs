//! Clips that carry their causal cache: chunks, bands, and tiles last.

use tilewright_sdk::{
    Attempt, Backend, Direction, Dtype, Failure, Kind, Layout, Objective, Plan, Policy, Precision, Space, Tile, Time,
};

use super::{adaptive, both, decide, prices::Case};
use crate::Adaptive;

fn cpu(limit: f64, objective: Objective) -> Case {
    // Only f32, so that the division is the only choice.
    Case { offered: "f32", ..Case::clip(Backend::Cpu, 512, limit, objective) }
}

fn divided(plan: &Plan) -> (Kind, Time) {
    (plan.kind(), plan.time)
}

fn carried(frames: u32) -> Time {
    Time::Carried(frames)
}

#[test]
fn frames_leave_early_where_that_costs_nothing() {
    let time = |per_chunk: f64| {
        let plan = decide(&Case { per_chunk, ..cpu(100.0, Objective::Fastest) }, vec![]);
        assert_eq!(plan.kind(), Kind::Whole);
        plan.time
    };
    // All at once would be 1 % faster, 1.9 %.
    assert_eq!([0.0, 0.04, 0.076].map(time), [carried(4); 3]);
    // Longer chunks gain 2 % and more, and the shortest of equals is taken.
    assert_eq!(time(0.12), carried(8));
    assert_eq!(time(0.25), carried(16));
    assert_eq!(time(0.6), Time::Whole);
}

#[test]
fn objectives_weigh_chunks_too() {
    // All chunks take the same time: the leanest runs a frame at a time in bands, the others the
    // natural chunk, or a leaner one.
    let plan = |objective| decide(&Case { per_chunk: 0.0, ..cpu(1.2, objective) }, vec![]);
    assert_eq!(divided(&plan(Objective::Fastest)), (Kind::Whole, carried(4)));
    assert_eq!(plan(Objective::Leanest).time, carried(1));
    assert_eq!(plan(Objective::Leanest).kind(), Kind::Exact);
    let balanced = plan(Objective::Balanced);
    let case = cpu(1.2, Objective::Balanced);
    assert!(case.price(&balanced).held() < case.price(&plan(Objective::Fastest)).held(), "{balanced:?}");
}

#[test]
fn shorter_chunks_then_bands_then_tiles_over_the_whole_clip() {
    let at = |limit: f64| {
        let case = Case { exact: true, per_chunk: 0.5, ..cpu(limit, Objective::Fastest) };
        let plan = decide(&case, vec![]);
        assert!(case.price(&plan).held() as f64 * 1.03 <= case.request().limit_bytes as f64);
        divided(&plan)
    };
    assert_eq!(at(100.0), (Kind::Whole, Time::Whole));
    assert_eq!(at(5.0), (Kind::Whole, carried(16)));
    // Bands of long chunks take less time than the whole picture in short ones.
    assert_eq!(at(2.0).0, Kind::Exact);
    assert_eq!(at(0.25).0, Kind::Exact);
    assert_eq!(at(0.1), (Kind::Blended, Time::Whole));
    let case = Case { exact: false, ..cpu(0.4, Objective::Fastest) };
    assert_eq!(divided(&decide(&case, vec![])), (Kind::Whole, carried(1)));
    // No tiles beyond 512, however large the picture; smaller ones if those don't fit.
    for (limit, most) in [(0.2, 512), (0.065, 192)] {
        let case = Case { exact: false, ..Case { width: 2048, height: 2048, ..cpu(limit, Objective::Fastest) } };
        let plan = decide(&case, vec![]);
        assert!(plan.tile().is_some_and(|tile| tile.width <= most && tile.height <= most), "{plan:?}");
        assert_eq!(plan.time, Time::Whole);
    }
}

#[test]
fn tiles_stream_where_their_state_can_wait_in_host_memory() {
    let at = |offload| {
        let case =
            Case { offload, fast: vec![], exact: false, ..Case::clip(Backend::Cuda, 512, 0.15, Objective::Fastest) };
        let plan = decide(&Case { offered: "f32", ..case }, vec![]);
        assert_eq!(plan.kind(), Kind::Blended);
        (plan.time, plan.offload)
    };
    assert_eq!(at(None), (Time::Whole, false));
    assert_eq!(at(Some(0.01)), (carried(4), true));
    assert_eq!(at(Some(0.05)), (Time::Whole, false));
    // Under way they continue in the same tiles, in shorter chunks.
    let plan = Plan { space: Space::Blended(Tile::square(128, 16)), time: carried(4), offload: true, ..super::f32() };
    let clip = Case::clip(Backend::Cuda, 512, 0.15, Objective::Fastest);
    let case = Case { offload: Some(0.01), begun: Some(plan.clone()), ..clip };
    case.install(vec![]);
    let attempts = [Attempt { plan: plan.clone(), failure: Failure::OutOfMemory(1) }];
    let next = adaptive().decide(&case.request(), &attempts).unwrap();
    assert_eq!((next.space, next.offload), (plan.space, true));
    assert!(case.price(&next).held() < case.price(&plan).held());
}

#[test]
fn a_clip_has_no_batch() {
    for limit in [100.0, 0.1] {
        let plan = decide(&Case { batch: 3, ..cpu(limit, Objective::Fastest) }, vec![]);
        assert_eq!(plan.batch, 1);
    }
}

#[test]
fn rocm_gets_chunks_that_divide_the_clip() {
    // 60 frames after the first: neither 8 nor 16 divide them, 12 does.
    let case = Case { frames: 61, per_chunk: 0.6, ..Case::clip(Backend::Rocm, 256, 4.0, Objective::Fastest) };
    let plan = decide(&case, vec![]);
    assert_eq!(plan.time, carried(12));
    assert_eq!(case.price(&plan).shapes, 1);
    assert_eq!(decide(&Case { backend: Backend::Cuda, ..case }, vec![]).time, carried(16));
}

#[test]
fn what_chunks_take_is_learnt_apart() {
    // Carried chunks turn out to take twice their time; the clip as a whole as long as expected.
    let case = Case { per_chunk: 0.0, ..cpu(100.0, Objective::Fastest) };
    let chunks = both(case.natural()).map(|plan| case.trial(&plan, 2.0, 1.0));
    let whole = both(super::f32()).map(|plan| case.trial(&plan, 1.0, 1.0));
    assert_eq!(decide(&case, chunks.to_vec()).time, carried(4), "what chunks are slow at, the whole is slow at too");
    assert_eq!(decide(&case, [chunks, whole].concat()).time, Time::Whole);
    // The whole's memory says nothing of chunks.
    let case = Case { per_chunk: 0.0, ..cpu(1.3, Objective::Fastest) };
    let over = both(super::f32()).map(|plan| case.trial(&plan, 1.0, 4.0)).to_vec();
    assert_eq!(divided(&decide(&case, over)), (Kind::Whole, carried(4)));
    let over = both(case.natural()).map(|plan| case.trial(&plan, 1.0, 4.0)).to_vec();
    assert_ne!(divided(&decide(&case, over)), (Kind::Whole, carried(4)));
}

#[test]
fn chunks_of_one_decision_are_learnt_as_they_come() {
    let case = Case { per_chunk: 0.0, exact: false, ..cpu(1.2, Objective::Fastest) };
    case.install(vec![]);
    let (request, mut policy) = (case.request(), adaptive());
    let first = policy.decide(&request, &[]).unwrap();
    assert_eq!(divided(&first), (Kind::Whole, carried(4)));
    for _ in 0..3 {
        policy.learn(&request, &first, &case.outcome(&first, 1.0, 2.0));
    }
    let second = policy.decide(&request, &[]).unwrap();
    assert!(!second.is_like(&first));
    // Encodes are separate.
    let mut encode = request;
    encode.direction = Direction::Encode;
    assert!(policy.decide(&encode, &[]).unwrap().is_like(&first));
}

#[test]
fn memory_that_runs_out_gets_shorter_chunks_then_bands_then_tiles() {
    let case = Case { per_chunk: 0.25, ..cpu(100.0, Objective::Fastest) };
    case.install(vec![]);
    let request = case.request();
    let mut attempts = vec![];
    let mut steps = vec![];
    for _ in 0..4 {
        let plan = adaptive().decide(&request, &attempts).unwrap();
        steps.push(divided(&plan));
        attempts.push(Attempt { plan, failure: Failure::OutOfMemory(1 << 20) });
    }
    assert_eq!(steps[..3], [(Kind::Whole, carried(16)), (Kind::Whole, carried(8)), (Kind::Whole, carried(4))]);
    assert_eq!(steps[3], (Kind::Blended, Time::Whole), "the last chance is the leanest plan");
    assert!(attempts[1].plan.reason.starts_with("memory ran out in f32, whole, 16 frames at a time: whole, 8 frames"));
    // Bands with as many frames at once would be quicker, but shorter chunks come first.
    let busy = Case { per_chunk: 1.0, ..case.clone() };
    busy.install(vec![]);
    let plan = Plan { time: carried(16), layout: Layout::ChannelsLast, ..super::f32() };
    let quicker = busy.price(&plan.clone().exact(&busy.request(), 64));
    let first = [Attempt { plan: plan.clone(), failure: Failure::OutOfMemory(1) }];
    let next = adaptive().decide(&busy.request(), &first).unwrap();
    assert_eq!(divided(&next), (Kind::Whole, carried(8)));
    assert!(quicker.elapsed_ns < busy.price(&next).elapsed_ns && quicker.held() < busy.price(&next).held());
    // Nothing is left to shorten: bands.
    case.install(vec![]);
    let plan = Plan { time: carried(1), layout: Layout::ChannelsLast, ..super::f32() };
    let last = [Attempt { plan, failure: Failure::OutOfMemory(1) }];
    let next = adaptive().decide(&request, &last).unwrap();
    assert_eq!(next.kind(), Kind::Exact);
}

#[test]
fn values_that_overflow_get_a_wider_type_in_the_same_chunks() {
    for is_under_way in [false, true] {
        let plan = Plan { time: carried(8), ..Plan::whole(Precision::Uniform(Dtype::F16)) };
        let begun = is_under_way.then(|| plan.clone());
        let case = Case { begun, ..Case::clip(Backend::Cuda, 512, 100.0, Objective::Fastest) };
        case.install(vec![]);
        let mut attempts = vec![Attempt { plan, failure: Failure::NonFinite(1) }];
        for word in ["bf16", "mixed-bf16", "f32"] {
            let next = adaptive().decide(&case.request(), &attempts).unwrap();
            assert_eq!((next.precision.word(), next.time, next.space), (word, carried(8), Space::Whole));
            attempts.push(Attempt { plan: next, failure: Failure::NonFinite(1) });
        }
    }
}

#[test]
fn a_chunk_that_is_wished_for() {
    let with = |chunk: i64, limit: f64| {
        let case = cpu(limit, Objective::Fastest);
        case.install(vec![]);
        let settings = Adaptive::describe().defaults().with("chunk", chunk);
        Adaptive::configure(&settings).unwrap().decide(&case.request(), &[]).unwrap()
    };
    assert_eq!(with(0, 100.0).time, carried(4));
    assert_eq!(with(1, 100.0).time, carried(1));
    // As the host rounds it: whole latent frames, or a power of two of less, or the clip.
    assert_eq!([3, 10, 200].map(|chunk| with(chunk, 100.0).time), [carried(2), carried(8), carried(81)]);
    // It yields if it doesn't fit.
    assert_ne!(with(80, 1.2).time, carried(80));
    let refused = Adaptive::configure(&Adaptive::describe().defaults().with("chunk", -1)).err().unwrap();
    assert_eq!(refused, "chunk=-1: allowed is 0 to 65536");
}

#[test]
fn a_person_is_told_how_the_clip_is_divided() {
    let reason = |limit| decide(&Case { per_chunk: 0.0, ..cpu(limit, Objective::Fastest) }, vec![]).reason;
    assert!(reason(1.2).starts_with("whole, 4 frames at a time; fastest of "), "{}", reason(1.2));
    assert!(reason(0.25).contains(" frame at a time as whole does not fit: "), "{}", reason(0.25));
}

#[test]
fn a_clip_that_another_policy_began_goes_on() {
    // A question without attempts: tiles stay the same, in no narrower type.
    let tiles = Plan { space: Space::Blended(Tile::square(256, 32)), time: carried(4), ..super::f32() };
    let bands = Plan { time: carried(8), layout: Layout::ChannelsLast, ..super::f32() };
    let whole = Plan { time: Time::Whole, ..super::f32() };
    for begun in [tiles, bands, whole] {
        let case = Case::clip(Backend::Cuda, 512, 100.0, Objective::Fastest);
        let plan = decide(&Case { begun: Some(begun.clone()), ..case }, vec![]);
        let is_tiled = begun.kind() == Kind::Blended;
        assert_eq!(plan.kind() == Kind::Blended, is_tiled);
        assert!(!is_tiled || plan.space == begun.space);
        assert_eq!((plan.time == Time::Whole, plan.layout), (begun.time == Time::Whole, begun.layout));
        assert_eq!(plan.precision, begun.precision);
    }
}
