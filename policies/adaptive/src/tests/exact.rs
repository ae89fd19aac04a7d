//! Right output before safety, and that before speed: blended tiles are the last resort unless the
//! user allows them.

use proptest::prelude::*;
use tilewright_sdk::{
    Attempt, Backend, Cost, Dtype, Failure, Kind, Layout, Memory, Objective, Plan, Policy, Precision, Request, Space,
    Tile, host::Stub,
};

use super::{
    adaptive,
    prices::{Case, f32},
    properties::any_case,
};

const GIB: f64 = 1_073_741_824.0;

/// Flux's decoder on a GPU, as it was found: tiles take 17 % less time than the whole picture, and
/// 256×256 holds a fraction of what bands do.
fn flux(side: u32, limit_bytes: f64, objective: Objective) -> (Case, Request) {
    let case = Case { blended: false, ..Case::new(Backend::Cuda, side, 1.0, objective) };
    let mut request = case.request();
    // 4.5 GiB at 1536×1536 in f32, whole.
    let scale = 4.5 * GIB / (4000.0 * 1536.0 * 1536.0);
    request.limit_bytes = limit_bytes as u64;
    let inner = case.clone();
    let estimate = move |plan: &Plan| {
        let cost = inner.price(plan);
        let time = if plan.kind() == Kind::Blended { 0.83 } else { 1.0 };
        let elapsed_ns = (cost.elapsed_ns as f64 * time / cost.rework) as u64;
        let memory = Memory { peak_bytes: (cost.held() as f64 * scale) as u64, weights_bytes: 0 };
        Ok(Cost { elapsed_ns, memory, ..cost })
    };
    Stub { estimate: Box::new(estimate), trials: vec![] }.install();
    (case, request)
}

const OBJECTIVES: [Objective; 3] = [Objective::Fastest, Objective::Balanced, Objective::Leanest];

#[test]
fn the_picture_is_not_traded_for_a_few_percent() {
    for objective in OBJECTIVES {
        let (_, mut request) = flux(1536, 18.0 * GIB, objective);
        let plan = adaptive().decide(&request, &[]).unwrap();
        assert_ne!(plan.kind(), Kind::Blended, "{objective:?}: {plan:?}");
        // Allowed, they win as they did.
        request.allows_blended = true;
        let plan = adaptive().decide(&request, &[]).unwrap();
        assert_eq!(plan.kind(), Kind::Blended, "{objective:?}: {plan:?}");
    }
}

#[test]
fn tiles_are_decided_where_nothing_exact_fits() {
    // In bf16, the narrowest type, the lowest bands hold 0.8 GiB.
    for objective in OBJECTIVES {
        for (gib, is_exact) in [(4.0, true), (2.0, true), (1.0, true), (0.6, false), (0.2, false)] {
            let (_, request) = flux(1536, gib * GIB, objective);
            let plan = adaptive().decide(&request, &[]).unwrap();
            assert_eq!(plan.kind() != Kind::Blended, is_exact, "{objective:?} in {gib} GiB: {plan:?}");
            if !is_exact {
                assert!(plan.reason.contains(" as nothing exact fits"), "{}", plan.reason);
            }
        }
    }
}

#[test]
fn a_narrow_type_comes_before_tiles_and_the_user_s_own_type_does_not() {
    // In f32 not even bands fit; in bf16 they do.
    let case = Case { blended: false, ..Case::new(Backend::Cpu, 1024, 0.3, Objective::Balanced) };
    case.install(vec![]);
    let plan = adaptive().decide(&case.request(), &[]).unwrap();
    assert_eq!((plan.kind(), plan.precision.dtype()), (Kind::Exact, Dtype::Bf16), "{plan:?}");
    let settings = crate::Adaptive::describe().defaults().with("precision", "f32");
    let plan = crate::Adaptive::configure(&settings).unwrap().decide(&case.request(), &[]).unwrap();
    assert_eq!((plan.kind(), plan.precision.dtype()), (Kind::Blended, Dtype::F32), "{plan:?}");
}

#[test]
fn bands_without_their_margin_come_before_tiles() {
    let case = Case { offered: "f32", blended: false, ..Case::new(Backend::Cpu, 1024, 1.0, Objective::Fastest) };
    let least = case.price(&f32().exact(&case.request(), 64)).held() as f64;
    let of_whole = least / case.price(&f32()).held() as f64;
    for (share, kind) in [(1.05, Kind::Exact), (1.01, Kind::Exact), (0.99, Kind::Blended)] {
        let case = Case { limit: of_whole * share, ..case.clone() };
        case.install(vec![]);
        let request = case.request();
        let plan = adaptive().decide(&request, &[]).unwrap();
        assert_eq!(plan.kind(), kind, "{share}: {plan:?}");
        // If that was too tight after all, tiles follow.
        let attempts = [Attempt { plan, failure: Failure::OverLimit(request.limit_bytes + 1) }];
        assert_eq!(adaptive().decide(&request, &attempts).unwrap().kind(), Kind::Blended);
    }
}

/// Exact plans in the types that are always considered where they are offered.
fn exact_plans(case: &Case) -> Vec<Plan> {
    let request = case.request();
    let types = [Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16), Precision::Uniform(Dtype::Bf16)];
    let mut plans = Vec::new();
    for precision in types.into_iter().filter(|precision| request.offers(precision.dtype())) {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let whole = Plan { layout, time: case.natural().time, ..Plan::whole(precision) };
            if case.exact && case.height > 64 {
                let bands = Space::Exact(Tile { height: 64, width: case.width, overlap: 0 });
                plans.push(Plan { space: bands, ..whole.clone() });
            }
            plans.push(whole);
        }
    }
    plans
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn blended_only_where_nothing_exact_fits(case in any_case()) {
        let case = Case { blended: false, ..case };
        let request = case.request();
        case.install(Vec::new());
        if let Ok(plan) = adaptive().decide(&request, &[])
            && plan.kind() == Kind::Blended
        {
            for exact in exact_plans(&case) {
                let peak = case.price(&exact).held();
                prop_assert!(peak > request.limit_bytes, "{plan:?} where {exact:?} fits");
            }
        }
    }
}
