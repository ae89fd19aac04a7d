//! A policy's file, from its bytes to a decision: whatever they hold, the host says no or gets a
//! legal plan, within small limits.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Device, Dtype, HostMemory, Model, Objective, Plan, Planner, Question,
    Request, Stage,
};
use tilewright_policy::{CacheDir, Limits, PolicyHost, oracle};

static HOST: LazyLock<PolicyHost> = LazyLock::new(|| {
    let limits = Limits { fuel: 200_000, wall_ms: 100, file_bytes: 256 << 10, ..Limits::default() };
    PolicyHost::new(limits, &CacheDir::Off).expect("the sandbox can be set up")
});

static REQUEST: LazyLock<(Request, Device, Capabilities)> = LazyLock::new(|| {
    let model = Model {
        family: "flux".into(),
        stored: Dtype::Bf16,
        quantized: false,
        parameter_bytes: 1 << 20,
        spatial_scale: 8,
        temporal_scale: 1,
    };
    let request = Request {
        model,
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
    };
    let device = Device {
        backend: Backend::Cpu,
        name: "cpu".into(),
        arch: "x86-64".into(),
        compute_units: 2,
        total_bytes: 1 << 33,
        free_bytes: 1 << 32,
        unified: true,
        fast_dtypes: vec![Dtype::F32],
        hints: Vec::new(),
    };
    let offer = Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 4,
        exact: true,
        carried: true,
        offload: false,
        prefetch_most: 1,
        options: Vec::new(),
    };
    (request, device, offer)
});

struct Nothing;

impl CostModel for Nothing {
    fn estimate_one(&self, _: &Plan) -> Result<Cost, String> {
        Err("nothing is known".into())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(policy) = HOST.load("fuzzed", bytes) else { return };
    let Ok(mut policy) = policy.configure(&[]) else { return };
    let (request, device, offer) = &*REQUEST;
    for stage in [Stage::Decode, Stage::Encode] {
        let question = Question::new(stage, request, device, offer);
        let decision = policy.decide(&question, Arc::new(Nothing));
        let breaches = oracle::find_breaches(&decision.plan, &question);
        assert!(breaches.is_empty(), "{breaches:?}: {:?}", decision.plan);
    }
});
