//! The request to hostile guests, and the answer of a healthy one.

use std::{sync::Arc, time::Duration};

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Decision, Device, Dtype, HostMemory, Model, Objective, Outcome, Plan,
    Planner, PoolStatistics, Question, Request, Space, Stage,
};
use tilewright_policy::{CacheDir, Limits, Policy, PolicyHost};

use crate::{
    clock::OwnClock,
    guest::{Guest, HOSTILE_BATCH, HOSTILE_FAMILY},
};

pub struct Prices;

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let pixels = plan.space.tile().map_or(1 << 20, |tile| u64::from(tile.height) * u64::from(tile.width));
        Ok(Cost {
            peak_bytes: pixels * 100,
            elapsed: Duration::from_millis(5),
            tiles: 1,
            shapes: 1,
            rework: 1.0,
            weights_bytes: 0,
        })
    }
}

pub fn request() -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::F16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames: 1,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 33,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

/// The request that makes a guest misbehave.
pub fn hostile_request() -> Request {
    let mut request = Request { batch: HOSTILE_BATCH, ..request() };
    request.model.family = HOSTILE_FAMILY.into();
    request
}

pub fn device() -> Device {
    Device {
        backend: Backend::Cpu,
        name: "test".into(),
        arch: "test".into(),
        compute_units: 2,
        total_bytes: 1 << 34,
        free_bytes: 1 << 33,
        unified: false,
        fast_dtypes: Vec::new(),
        hints: Vec::new(),
    }
}

pub fn offer() -> Capabilities {
    Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: false,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    }
}

pub fn outcome() -> Outcome {
    Outcome {
        elapsed: Duration::from_secs(1),
        load: Duration::ZERO,
        peak_bytes: 1,
        attempts: 1,
        pool: PoolStatistics::default(),
        cold: false,
        weights_bytes: 0,
    }
}

/// A host under the design's limits that keeps nothing on disk, and whose clocks stand still: a
/// guest that has to be stopped is stopped by another limit, on every machine.
pub fn host() -> PolicyHost {
    PolicyHost::with_clock(Limits::default(), &CacheDir::Off, OwnClock::still()).unwrap()
}

pub fn put_to_work(host: &PolicyHost, guest: &Guest) -> Policy {
    host.load("guest", &guest.build()).unwrap().configure(&[]).unwrap()
}

pub fn decide(policy: &mut Policy, request: &Request) -> Decision {
    policy.decide(&Question::new(Stage::Decode, request, &device(), &offer()), Arc::new(Prices))
}

/// Fails unless a decision is the healthy answer, unchanged.
pub fn is_right(decision: &Decision) -> Result<(), String> {
    let right = decision.fallback.is_none()
        && decision.plan.space == Space::Whole
        && decision.answer.as_ref() == Some(&decision.plan)
        && decision.fuel > 0;
    if right { Ok(()) } else { Err(format!("not the healthy answer: {decision:?}")) }
}

pub fn assert_right(decision: &Decision) {
    is_right(decision).unwrap();
}
