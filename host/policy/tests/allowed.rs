//! Blended plans that the user does not allow, through the sandbox: the host carries out exact ones
//! in their place, whichever policy answers and whichever version of the contract it speaks.

#[path = "corpus/read.rs"]
mod read;

use std::{sync::Arc, time::Duration};

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Device, Dtype, HostMemory, Model, Objective, Plan, Planner, Question,
    Request, Space, Stage,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, PolicyHost, key_value, shipped_names};

/// Whole holds a kilobyte per pixel, bands 80 %, tiles their share; tiles are the fastest.
struct Prices(Request);

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let picture = u64::from(self.0.height) * u64::from(self.0.width);
        let (held, nanoseconds) = match plan.space {
            Space::Whole => (picture, 100),
            Space::Exact(_) => (picture * 8 / 10, 110),
            Space::Blended(tile) => (u64::from(tile.height) * u64::from(tile.width), 80),
        };
        let bits = u64::from(plan.precision.dtype().bits());
        Ok(Cost {
            peak_bytes: held * 1024 * bits / 32 * u64::from(plan.batch),
            elapsed: Duration::from_nanos(picture * nanoseconds),
            tiles: 1,
            shapes: 1,
            rework: 1.0,
            weights_bytes: 0,
        })
    }
}

fn request(limit_mib: u64, allows_blended: bool) -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::F32,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames: 1,
        height: 1536,
        width: 1536,
        memory_limit: limit_mib << 20,
        limit_counts_weights: false,
        allows_blended,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

fn decide(policy: &LoadedPolicy, settings: &[&str], request: &Request) -> (Plan, Vec<String>) {
    let settings: Vec<(String, String)> = settings.iter().map(|pair| key_value(pair).unwrap()).collect();
    // The policy's formula sees less free memory than the limit, as ComfyUI's may.
    let device = Device {
        backend: Backend::Rocm,
        name: "test".into(),
        arch: "gfx1151".into(),
        compute_units: 40,
        total_bytes: 1 << 35,
        free_bytes: 1 << 33,
        unified: true,
        fast_dtypes: vec![],
        hints: Vec::new(),
    };
    let capabilities = Capabilities {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: true,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    };
    let question = Question::new(Stage::Decode, request, &device, &capabilities);
    let decision = policy.configure(&settings).unwrap().decide(&question, Arc::new(Prices(request.clone())));
    assert_eq!(decision.fallback, None, "{decision:?}");
    (decision.plan, decision.adjusted)
}

fn host() -> PolicyHost {
    PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap()
}

/// Settings with which each policy tiles a picture of this size.
const TILING: [(&str, &[&str]); 4] =
    [("adaptive", &[]), ("gfx1151", &[]), ("comfyui", &["tiled=true"]), ("diffusers", &[])];

#[test]
fn what_ships_blends_where_it_may_and_where_nothing_exact_fits() {
    let host = host();
    for (name, settings) in TILING {
        assert!(shipped_names().any(|shipped| shipped == name));
        let policy = host.load_shipped(name).unwrap();
        let decide = |limit, allows| decide(&policy, settings, &request(limit, allows));
        let (plan, adjusted) = decide(18 << 10, false);
        assert!(!plan.is_blended() && adjusted.is_empty(), "{name} knows by itself: {plan:?} {adjusted:?}");
        let (plan, _) = decide(18 << 10, true);
        assert!(plan.is_blended(), "{name} may: {plan:?}");
        // The whole picture holds 2,304 MiB, bands 1,843.
        let (plan, adjusted) = decide(2000, false);
        assert!(matches!(plan.space, Space::Exact(_)) && adjusted.is_empty(), "{name}: {plan:?} {adjusted:?}");
        let (plan, _) = decide(1200, false);
        assert!(plan.is_blended(), "{name} has nothing else: {plan:?}");
    }
}

#[test]
fn a_setting_that_names_it_allows_it() {
    let fixed = host().load_shipped("fixed").unwrap();
    let (plan, adjusted) = decide(&fixed, &["space=blended", "tile=256", "overlap=32"], &request(18 << 10, false));
    assert!(plan.is_blended() && adjusted.is_empty(), "{plan:?} {adjusted:?}");
}

#[test]
fn a_policy_that_does_not_know_of_it_is_held_to_it() {
    let old = read::unpacked(&read::folder("0.1.0").join(format!("rust-diffusers-component{}", read::ENDING)));
    let old = host().load("old", &old).unwrap();
    let (plan, adjusted) = decide(&old, &[], &request(18 << 10, false));
    assert_eq!(plan.space, Space::Whole);
    assert_eq!(
        adjusted,
        [
            "space blended 1024×1024/256 → whole: blended is the last resort unless the user allows it, and an exact plan fits"
        ]
    );
    let (plan, adjusted) = decide(&old, &[], &request(18 << 10, true));
    assert!(plan.is_blended() && adjusted.is_empty(), "{plan:?} {adjusted:?}");
    let (plan, _) = decide(&old, &[], &request(1500, false));
    assert!(plan.is_blended(), "{plan:?}");
}
