//! The search against a host whose prices are known.

mod clips;
mod exact;
mod noise;
mod prices;
mod properties;

use tilewright_sdk::{Backend, Failure, Kind, Layout, Objective, Space, Tile, Trial};

use super::*;
use prices::{Case, f32};

fn adaptive() -> Adaptive {
    Adaptive::configure(&Adaptive::describe().defaults()).unwrap()
}

/// Decides after every trial was made three times: one run says little of a plan.
fn decide(case: &Case, trials: Vec<Trial>) -> Plan {
    case.install([trials.clone(), trials.clone(), trials].concat());
    adaptive().decide(&case.request(), &[]).unwrap()
}

fn last(plan: Plan) -> Plan {
    Plan { layout: Layout::ChannelsLast, ..plan }
}

fn cpu(limit: f64, objective: Objective) -> Case {
    Case::new(Backend::Cpu, 1024, limit, objective)
}

/// The plan in both memory orders.
fn both(plan: Plan) -> [Plan; 2] {
    [plan.clone(), last(plan)]
}

#[test]
fn each_objective_takes_what_it_promises() {
    // Plenty of memory: the fastest is whole, in the faster memory order.
    let plan = decide(&cpu(100.0, Objective::Fastest), vec![]);
    assert_eq!((plan.kind(), plan.layout, plan.precision), (Kind::Whole, Layout::ChannelsLast, f32().precision));
    // At 1.2 times whole's memory, bands cost 3 % more time and a third as much memory.
    assert_eq!(decide(&cpu(1.2, Objective::Balanced), vec![]).kind(), Kind::Exact);
    // If memory does not matter, time decides.
    assert_eq!(decide(&cpu(100.0, Objective::Balanced), vec![]).kind(), Kind::Whole);
    // Tiles need the least memory, the smaller the less; the bound on time holds.
    let case = cpu(100.0, Objective::Leanest);
    let leanest = decide(&case, vec![]);
    assert_eq!((leanest.kind(), leanest.tile().map(|tile| tile.height)), (Kind::Blended, Some(256)));
    assert!(case.price(&leanest).elapsed_ns <= 4 * case.price(&last(f32())).elapsed_ns);
}

#[test]
fn leanest_takes_no_more_than_four_times_the_quickest() {
    let case = cpu(100.0, Objective::Leanest);
    // Tiles turn out to take four times their price: more than four times the fastest.
    let tile = Tile::square(256, 32);
    let slow = both(Plan { space: Space::Blended(tile), ..f32() }).map(|plan| case.trial(&plan, 4.0, 1.0));
    let whole = both(f32()).map(|plan| case.trial(&plan, 1.0, 1.0));
    let plan = decide(&case, [slow, whole].concat());
    assert_eq!(plan.kind(), Kind::Exact, "{plan:?}");
}

#[test]
fn exact_only_where_it_is_offered() {
    for objective in [Objective::Fastest, Objective::Balanced, Objective::Leanest] {
        for limit in [0.05, 0.3, 0.5, 0.7, 1.2, 10.0] {
            let plan = decide(&Case { exact: false, ..cpu(limit, objective) }, vec![]);
            assert_ne!(plan.kind(), Kind::Exact);
        }
    }
}

#[test]
fn exact_before_blended_and_whole_before_exact() {
    // Whole doesn't fit; tiles of a size that fits would take longer, and are charged 5 % more.
    let plan = decide(&cpu(0.7, Objective::Fastest), vec![]);
    assert_eq!(plan.kind(), Kind::Exact, "{plan:?}");
    assert_eq!(plan.tile().unwrap().width, 1024);
    // Measured to be 3 % faster than bands, tiles still lose; 8 % faster, they win.
    let case = cpu(0.7, Objective::Fastest);
    let request = case.request();
    let tiles = both(Plan { space: Space::Blended(Tile::square(576, 72)), ..f32() });
    let bands = both(f32().exact(&request, 256));
    let measured = |plans: &[Plan; 2], like: &[Plan; 2], share: f64| -> Vec<Trial> {
        let ratio = |plan, like| share * case.price(like).elapsed_ns as f64 / case.price(plan).elapsed_ns as f64;
        plans.iter().zip(like).map(|(plan, like)| case.trial(plan, ratio(plan, like), 1.0)).collect()
    };
    let bands_as_priced = measured(&bands, &bands, 1.0);
    let with_tiles = |share| decide(&case, [measured(&tiles, &bands, share), bands_as_priced.clone()].concat()).kind();
    assert_eq!([with_tiles(1.0), with_tiles(0.97), with_tiles(0.92)], [Kind::Exact, Kind::Exact, Kind::Blended]);
    // Bands measured as fast as whole, or slightly faster: whole.
    let wholes = both(f32());
    let with_bands = |share| {
        let trials = [measured(&bands, &wholes, share), measured(&wholes, &wholes, 1.0)].concat();
        decide(&Case { limit: 3.0, ..case.clone() }, trials).kind()
    };
    assert_eq!([with_bands(1.0), with_bands(0.9995), with_bands(0.98)], [Kind::Whole, Kind::Whole, Kind::Exact]);
}

#[test]
fn at_equal_memory_the_better_picture_wins() {
    // Bands were measured to hold what the smallest tiles do, within a percent.
    let case = Case { limit: 4.0, ..Case::new(Backend::Cpu, 512, 1.0, Objective::Leanest) };
    let request = case.request();
    let tile = case.price(&Plan { space: Space::Blended(Tile::square(256, 32)), ..f32() }).held();
    let band = f32().exact(&request, 64);
    let equal = |factor: f64| {
        let ratio = factor * tile as f64 / case.price(&band).held() as f64;
        assert!(ratio > 0.5, "the trial would not be trusted");
        decide(&case, both(band.clone()).map(|plan| case.trial(&plan, 1.0, ratio)).to_vec()).kind()
    };
    let fitted = decide(&case, vec![]);
    assert_eq!(fitted.kind(), Kind::Blended);
    let measured = case.price(&fitted).held() as f64 / tile as f64;
    assert_eq!(equal(measured * 1.01), Kind::Exact);
    assert_eq!(equal(measured * 1.05), Kind::Blended);
}

#[test]
fn the_margin_goes_once_the_kind_was_measured() {
    // Just enough for whole, but not for 3 % more.
    let case = Case { exact: false, ..cpu(1.01, Objective::Fastest) };
    assert_eq!(decide(&case, vec![]).kind(), Kind::Blended);
    let trial = case.trial(&f32(), 1.0, 1.0);
    let plan = decide(&case, vec![trial]);
    assert_eq!((plan.kind(), plan.layout), (Kind::Whole, Layout::ChannelsFirst));
    // Tiles that were measured say nothing about whole's memory.
    let tile = Plan { space: Space::Blended(Tile::square(512, 64)), ..f32() };
    assert_eq!(decide(&case, vec![case.trial(&tile, 1.0, 1.0)]).kind(), Kind::Blended);
}

#[test]
fn memory_is_the_most_that_was_seen_and_time_the_quickest() {
    let case = Case { exact: false, ..cpu(1.2, Objective::Fastest) };
    // An older run held more than fits: the newer ones don't make it safe.
    let trials = |worst: f64| {
        let runs = [1.0, 1.0, worst].map(|memory| both(f32()).map(|plan| case.trial(&plan, 1.0, memory)));
        runs.into_iter().flatten().collect::<Vec<_>>()
    };
    assert_eq!(decide(&case, trials(1.0)).kind(), Kind::Whole);
    assert_eq!(decide(&case, trials(1.3)).kind(), Kind::Blended);
    // Slow runs flip a decision only if there are no others.
    let case = cpu(100.0, Objective::Fastest);
    let runs = |times: &[f64]| {
        let mut trials: Vec<Trial> = Vec::new();
        for time in times {
            trials.extend(both(f32()).map(|plan| case.trial(&plan, *time, 1.0)));
        }
        let tile = Space::Blended(Tile::square(576, 72));
        trials.extend(both(Plan { space: tile, ..f32() }).map(|plan| case.trial(&plan, 1.0, 1.0)));
        trials.extend(both(f32().exact(&case.request(), 128)).map(|plan| case.trial(&plan, 1.15, 1.0)));
        decide(&case, trials).kind()
    };
    assert_eq!(runs(&[1.0, 1.0, 1.0]), Kind::Whole);
    assert_eq!(runs(&[4.0, 1.0]), Kind::Whole);
    assert_eq!(runs(&[1.0, 4.0]), Kind::Whole);
    assert_ne!(runs(&[1.5, 1.5]), Kind::Whole);
}

#[test]
fn another_precision_is_as_slow_as_the_machine() {
    let case = Case::new(Backend::Cuda, 1024, 100.0, Objective::Fastest);
    let before = decide(&case, vec![]);
    assert_eq!((before.kind(), before.precision), (Kind::Whole, Precision::Uniform(Dtype::Bf16)));
    let slow = both(f32()).map(|plan| case.trial(&plan, 4.0, 4.0));
    assert!(decide(&case, slow.to_vec()).is_like(&before));
    // If nothing else was measured, it is the machine that is slow.
    let half = both(Plan::whole(Precision::Uniform(Dtype::Bf16))).map(|plan| case.trial(&plan, 4.0, 1.0));
    assert!(decide(&case, half.to_vec()).is_like(&before));
    // Next to a plan that is not slow, the plan is at fault; another kind of space gives its time,
    // so that bands don't look faster for lack of a measurement.
    let mixed = both(Plan::whole(Precision::Mixed(Dtype::Bf16))).map(|plan| case.trial(&plan, 1.0, 1.0));
    let after = decide(&case, [half, mixed].concat());
    assert_eq!((after.kind(), after.precision), (Kind::Whole, Precision::Mixed(Dtype::Bf16)));
}

#[test]
fn whole_that_is_ten_times_too_slow_loses_to_tiles() {
    let case = Case { exact: false, ..cpu(100.0, Objective::Fastest) };
    let tile = Space::Blended(Tile::square(576, 72));
    let mut trials: Vec<Trial> = both(f32()).map(|plan| case.trial(&plan, 11.0, 1.0)).to_vec();
    trials.extend(both(Plan { space: tile, ..f32() }).map(|plan| case.trial(&plan, 1.0, 1.0)));
    assert_eq!(decide(&case, trials).kind(), Kind::Blended);
}

#[test]
fn outcomes_are_learnt_without_a_history() {
    let case = Case { exact: false, ..cpu(1.2, Objective::Fastest) };
    case.install(vec![]);
    let request = case.request();
    let mut policy = adaptive();
    let first = policy.decide(&request, &[]).unwrap();
    assert_eq!(first.kind(), Kind::Whole);
    // The host has no price for the plan of this outcome, so the policy learns nothing.
    let over = case.outcome(&first, 1.0, 2.0);
    let estimate = Box::new(|_: &Plan| Err("nobody decided on it".to_owned()));
    tilewright_sdk::host::Stub { estimate, trials: vec![] }.install();
    policy.learn(&request, &first, &over);
    case.install(vec![]);
    assert!(policy.decide(&request, &[]).unwrap().is_like(&first));
    // The policy's own plan needed twice as much: it does not answer it again, nor at another size
    // of the same model and device.
    policy.learn(&request, &first, &over);
    let second = policy.decide(&request, &[]).unwrap();
    assert_eq!((second.kind(), second.layout), (Kind::Whole, Layout::ChannelsFirst));
    policy.learn(&request, &second, &case.outcome(&second, 1.0, 2.0));
    assert_eq!(policy.decide(&request, &[]).unwrap().kind(), Kind::Blended);
    let larger = Case { height: 1088, ..case.clone() };
    larger.install(vec![]);
    assert_eq!(policy.decide(&larger.request(), &[]).unwrap().kind(), Kind::Blended);
    // Another device has other ratios, and a new instance has none.
    case.install(vec![]);
    let mut other = request.clone();
    other.device.arch = "other".into();
    assert_eq!(policy.decide(&other, &[]).unwrap().kind(), Kind::Whole);
    assert!(adaptive().decide(&request, &[]).unwrap().is_like(&first));
}

#[test]
fn what_is_learnt_is_bounded() {
    let case = cpu(100.0, Objective::Fastest);
    case.install(vec![]);
    let mut policy = adaptive();
    let request = |arch: usize| {
        let mut request = case.request();
        request.device.arch = arch.to_string();
        request
    };
    for arch in 0..200 {
        let plan = policy.decide(&request(arch), &[]).unwrap();
        policy.learn(&request(arch), &plan, &case.outcome(&plan, 4.0, 1.0));
    }
    let known = |arch| policy.memory.about(&request(arch)).count();
    assert_eq!((known(0), known(135), known(136), known(199)), (0, 0, 1, 1));
}

#[test]
fn rocm_gets_equal_tiles_and_few_shapes() {
    // 1664×928 is the published case.
    let mut case = Case::new(Backend::Rocm, 1664, 0.2, Objective::Fastest);
    (case.height, case.exact, case.batch) = (928, false, 3);
    for (limit, objective) in [(0.3, Objective::Fastest), (0.1, Objective::Balanced), (0.05, Objective::Leanest)] {
        let case = Case { limit, objective, ..case.clone() };
        let plan = decide(&case, vec![]);
        let tile = plan.tile().unwrap();
        for (side, extent) in [(tile.height, case.height), (tile.width, case.width)] {
            assert!(side == extent || side % 64 == 0, "{tile:?}");
        }
        // The tiles are even: the next smaller one would make one more of them.
        assert!(case.price(&plan).rework < 1.6, "{tile:?} computes {} times", case.price(&plan).rework);
        assert_eq!(case.price(&plan).shapes, 1, "{plan:?}");
        assert_ne!(plan.precision.dtype(), Dtype::F16);
    }
}

#[test]
fn rocm_counts_a_kernel_search_unless_the_plan_has_run() {
    let case = Case::new(Backend::Rocm, 1024, 100.0, Objective::Fastest);
    let request = case.request();
    let decide = |trials: Vec<Trial>, backend| {
        // Bands need a second shape for their last one, and are 20 % faster here.
        let inner = case.clone();
        let estimate = Box::new(move |plan: &Plan| {
            let mut cost = inner.price(plan);
            if plan.kind() == Kind::Exact {
                (cost.shapes, cost.elapsed_ns) = (2, cost.elapsed_ns * 4 / 5);
            }
            Ok(cost)
        });
        tilewright_sdk::host::Stub { estimate, trials }.install();
        let mut request = request.clone();
        request.device.backend = backend;
        adaptive().decide(&request, &[]).unwrap()
    };
    assert_eq!(decide(vec![], Backend::Rocm).kind(), Kind::Whole);
    let quick = decide(vec![], Backend::Cuda);
    assert_eq!(quick.kind(), Kind::Exact);
    let mut trial = case.trial(&quick, 0.8, 1.0);
    trial.plan.reason.clear();
    assert!(decide(vec![trial], Backend::Rocm).is_like(&quick));
}

#[test]
fn memory_that_runs_out_gets_bands_then_tiles() {
    let case = Case::new(Backend::Cpu, 1024, 1.5, Objective::Fastest);
    case.install(vec![]);
    let request = case.request();
    let mut attempts = vec![];
    let mut kinds = vec![];
    for _ in 0..4 {
        let plan = adaptive().decide(&request, &attempts).unwrap();
        kinds.push((plan.kind(), plan.precision.word()));
        attempts.push(Attempt { plan, failure: Failure::OutOfMemory(1 << 20) });
    }
    let f32 = |kind| (kind, "f32");
    assert_eq!(kinds, [f32(Kind::Whole), f32(Kind::Exact), f32(Kind::Blended), (Kind::Blended, "bf16")]);
    assert_eq!(attempts[3].plan.tile().map(|tile| tile.height), Some(64), "the last chance is the leanest plan");
    assert!(attempts[1].plan.reason.starts_with("memory ran out in f32, whole: exact bands of "));
}

#[test]
fn after_a_failure_for_memory_exact_comes_before_leaner_tiles() {
    let case = cpu(1.5, Objective::Leanest);
    case.install(vec![]);
    let request = case.request();
    assert_eq!(adaptive().decide(&request, &[]).unwrap().kind(), Kind::Blended);
    let attempts = [Attempt { plan: f32(), failure: Failure::OutOfMemory(1) }];
    assert_eq!(adaptive().decide(&request, &attempts).unwrap().kind(), Kind::Exact);
}

#[test]
fn a_measured_peak_corrects_its_kind() {
    let case = Case { exact: false, ..cpu(1.5, Objective::Fastest) };
    case.install(vec![]);
    let request = case.request();
    // Tiles were expected to need a fifth of the memory and took three times the limit: four times
    // their price is trusted.
    let plan = last(Plan { space: Space::Blended(Tile::square(512, 64)), ..f32() });
    let attempts = [Attempt { plan: plan.clone(), failure: Failure::OverLimit(3 * request.limit_bytes) }];
    let next = adaptive().decide(&request, &attempts).unwrap();
    assert!(case.price(&next).held() as f64 <= 0.7 * case.price(&plan).held() as f64);
    assert!(next.kind() != Kind::Blended || 4 * case.price(&next).held() <= request.limit_bytes);
}

#[test]
fn values_that_overflow_get_a_wider_type_in_the_same_space() {
    let case = Case::new(Backend::Cuda, 1024, 100.0, Objective::Fastest);
    case.install(vec![]);
    let request = case.request();
    for space in [Space::Whole, Plan::exact(f32(), &request, 128).space, Space::Blended(Tile::square(384, 48))] {
        let plan = Plan { space, ..Plan::whole(Precision::Uniform(Dtype::Bf16)) };
        let mut attempts = vec![Attempt { plan, failure: Failure::NonFinite(3) }];
        for expected in [Precision::Mixed(Dtype::Bf16), Precision::Uniform(Dtype::F32)] {
            let plan = adaptive().decide(&request, &attempts).unwrap();
            assert_eq!((plan.precision, plan.space), (expected, space));
            attempts.push(Attempt { plan, failure: Failure::NonFinite(3) });
        }
        assert!(adaptive().decide(&request, &attempts).unwrap_err().contains("f32"));
    }
    // If the wider type doesn't fit in that space, another space is found.
    let case = Case { limit: 0.8, ..case };
    case.install(vec![]);
    let plan = Plan::whole(Precision::Mixed(Dtype::Bf16));
    let plan = adaptive().decide(&case.request(), &[Attempt { plan, failure: Failure::NonFinite(1) }]).unwrap();
    assert_eq!((plan.kind(), plan.precision), (Kind::Exact, f32().precision));
}

#[test]
fn narrow_types_where_they_gain() {
    let precision = |case: Case| decide(&case, vec![]).precision.word();
    let cuda = Case::new(Backend::Cuda, 1024, 100.0, Objective::Fastest);
    assert_eq!(precision(cuda.clone()), "bf16");
    assert_eq!(precision(Case { fast: vec![Dtype::F16], ..cuda.clone() }), "mixed-f16");
    assert_eq!(precision(Case { fast: vec![Dtype::F16], family: "wan-2.1", ..cuda.clone() }), "f16");
    assert_eq!(precision(Case { fast: vec![], ..cuda.clone() }), "f32");
    // The one of two narrow types that may overflow has to be faster by what an overflow costs.
    let half = |half, family| precision(Case { half, family, ..cuda.clone() });
    assert_eq!([half(0.8, "flux"), half(0.5, "flux"), half(0.5, "sdxl")], ["bf16", "mixed-f16", "bf16"]);
    // TF32 saves time and no memory.
    let tf32 = Case { fast: vec![Dtype::Tf32, Dtype::F32], offered: "f32,tf32", ..cuda.clone() };
    assert_eq!(precision(tf32.clone()), "tf32");
    assert_eq!(precision(Case { offered: "f32", ..tf32 }), "f32");
    // Not even tiles of 256 fit in f32.
    assert_eq!(precision(Case { fast: vec![], limit: 0.06, ..cuda }), "bf16");
    assert_eq!(precision(cpu(0.045, Objective::Fastest)), "bf16");
    // Mixed rounds less, and is taken if it fits.
    assert_eq!(precision(cpu(0.06, Objective::Fastest)), "mixed-bf16");
    assert_eq!(precision(cpu(0.10, Objective::Fastest)), "f32");
}

#[test]
fn a_person_is_told_why() {
    let reason = |case: &Case| decide(case, vec![]).reason;
    assert_eq!(reason(&cpu(100.0, Objective::Fastest)), "whole; fastest of 16 that fit");
    assert_eq!(
        reason(&cpu(0.7, Objective::Fastest)),
        "exact bands of 64 as whole does not fit: 37 % of whole's memory for 3 % more time; fastest of 14 that fit"
    );
    let plan = decide(&Case { exact: false, ..cpu(0.7, Objective::Balanced) }, vec![]);
    assert!(plan.reason.starts_with("tiles of "), "{}", plan.reason);
    assert!(plan.reason.contains(" % of whole's memory for "), "{}", plan.reason);
}

/// Bands fit in a narrow type alone, which is slow on a processor: the reason compares with the
/// whole picture as it would be run with more memory.
#[test]
fn a_reason_compares_with_the_fastest_whole_picture() {
    let case = Case { blended: false, ..cpu(0.3, Objective::Balanced) };
    let plan = decide(&case, vec![]);
    assert_eq!((plan.kind(), plan.precision.dtype()), (Kind::Exact, Dtype::Bf16));
    assert!(plan.reason.contains("of whole's memory in f32 for 13 % more time"), "{}", plan.reason);
}

#[test]
fn settings_are_checked() {
    let refused = |name: &str, value: tilewright_sdk::Value| {
        Adaptive::configure(&Adaptive::describe().defaults().with(name, value)).err().unwrap()
    };
    assert_eq!(refused("min-tile", 4096.into()), "max-tile=2048: has to be at least min-tile, which is 4096");
    assert_eq!(
        refused("precision", "f8".into()),
        "precision=f8: allowed is auto, f32, tf32, bf16, f16, mixed-bf16, mixed-f16"
    );
    assert!(refused("overlap", "-1".into()).starts_with("overlap=-1: allowed is auto"));
}

#[test]
fn settings_narrow_the_search() {
    let with = |name: &str, value: tilewright_sdk::Value, limit: f64| {
        let case = Case { exact: false, ..cpu(limit, Objective::Fastest) };
        case.install(vec![]);
        let settings = Adaptive::describe().defaults().with(name, value);
        Adaptive::configure(&settings).unwrap().decide(&case.request(), &[]).unwrap()
    };
    assert_eq!(with("precision", "mixed-bf16".into(), 100.0).precision, Precision::Mixed(Dtype::Bf16));
    assert_eq!(with("overlap", "96".into(), 0.6).tile().map(|tile| tile.overlap), Some(96));
    assert!(with("max-tile", 384.into(), 0.6).tile().unwrap().width <= 384);
    let tile = with("min-tile", 512.into(), 0.4).tile().unwrap();
    assert!(tile.width >= 512 && tile.height >= 512, "{tile:?}");
    // A user's bound on tiles yields if nothing of that size fits.
    assert!(with("min-tile", 512.into(), 0.05).tile().unwrap().width < 512);
}
