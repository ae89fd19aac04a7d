//! The work that parts do: decodes of generated latents by one plan each.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use tch::{Device, Tensor};
use tilewright_bench::{Latents, Network, Weights};
use tilewright_engine::{Cancelled, Machine, Observer, Overrides, Probe, Unfinished};
use tilewright_pipeline::{Decode, FrameStore, Model};
use tilewright_plan::{
    CostModel, Decision, Layout, LearnReport, Objective, Outcome, Plan, Planner, PolicyIdentity, Precision, Question,
    Record, Release, Space, Time,
};
use tilewright_torch::device::Choice;

use crate::Effort;

/// The seed of weights and latents.
const SEED: u64 = 1;

/// The device that is checked.
pub struct Context {
    choice: Choice,
    /// The extent of the check.
    pub effort: Effort,
}

impl Context {
    pub(crate) fn new(choice: Choice, effort: Effort) -> Self {
        Self { choice, effort }
    }

    /// The device.
    pub(crate) fn machine(&self) -> Result<Machine, String> {
        Machine::open(self.choice, Probe::Kept).map_err(|error| error.to_string())
    }

    /// The device, measured now.
    pub(crate) fn measured_machine(&self) -> Result<Machine, String> {
        Machine::open(self.choice, Probe::Fresh).map_err(|error| error.to_string())
    }

    /// True if only the sizes that show most faults are checked.
    pub(crate) fn is_quick(&self) -> bool {
        self.effort == Effort::Quick
    }
}

/// The CPU, for references.
pub fn cpu() -> Result<Machine, String> {
    Machine::open(Choice::Cpu, Probe::Kept).map_err(|error| error.to_string())
}

/// A decoder of generated weights, and latents for it.
pub struct Subject {
    pub model: Model,
    pub latents: Tensor,
}

impl Subject {
    /// A square picture or a clip of a few frames, of a side in pixels.
    pub fn new(network: Network, side: u32) -> Result<Self, String> {
        let path = Weights { network, seed: SEED }.cached_file().map_err(|error| error.to_string())?;
        let model = Model::open(&path, Overrides::default()).map_err(|error| error.to_string())?;
        let extent = (side / network.scale).max(1) as usize;
        let latents = Latents {
            batch: 1,
            channels: network.latent_channels,
            height: extent,
            width: extent,
            frames: network.is_video().then_some(2),
            seed: SEED,
        };
        let shape: Vec<i64> = latents.shape().into_iter().map(|extent| extent as i64).collect();
        let values = Tensor::f_from_slice(&latents.values()).and_then(|values| values.f_view(&shape[..]));
        Ok(Self { model, latents: values.map_err(|error| error.to_string())? })
    }

    /// Decodes by a plan within a limit in bytes.
    pub fn decode(
        &self,
        machine: &Machine,
        plan: &Plan,
        limit: Option<u64>,
        observer: &mut dyn Observer,
    ) -> Result<(Tensor, Record), Unfinished> {
        let limit = limit.unwrap_or(u64::MAX / 4);
        let job = Decode::new(machine, &self.model, &self.latents, limit, Objective::Fastest)?;
        let mut frames = FrameStore::new(true);
        let finished = job.run(&mut OnePlan::new(plan), observer, &mut frames, &[0])?;
        Ok((frames.tensor().map_err(|error| tilewright_engine::Error::Sink(error.into()))?, finished.record))
    }

    /// The peak that a plan is estimated to hold, in bytes.
    pub fn estimated_peak(&self, machine: &Machine, plan: &Plan) -> Result<u64, String> {
        let job = Decode::new(machine, &self.model, &self.latents, u64::MAX / 4, Objective::Fastest);
        Ok(job.map_err(|error| error.to_string())?.estimate(plan)?.peak_bytes)
    }
}

/// A plan for whole batches.
pub fn plan(space: Space, precision: Precision, layout: Layout) -> Plan {
    Plan {
        space,
        time: Time::Whole,
        batch: 1,
        precision,
        layout,
        release: Release::AtEnd,
        offload: false,
        prefetch: 0,
        reason: "checks the device".into(),
    }
}

/// A planner that knows one plan, and has no other after a failure.
struct OnePlan {
    identity: PolicyIdentity,
    plan: Plan,
}

impl OnePlan {
    fn new(plan: &Plan) -> Self {
        let identity = PolicyIdentity {
            name: "check".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            digest: String::new(),
            settings: BTreeMap::new(),
        };
        Self { identity, plan: plan.clone() }
    }
}

impl Planner for OnePlan {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, _: &Question<'_>, _: Arc<dyn CostModel>) -> Decision {
        Decision {
            answer: Some(self.plan.clone()),
            plan: self.plan.clone(),
            adjusted: Vec::new(),
            fallback: None,
            elapsed: Duration::ZERO,
            fuel: 0,
            candidates: Vec::new(),
            log: Vec::new(),
        }
    }

    fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
        LearnReport::default()
    }
}

/// Watches nothing.
pub struct Quiet;

impl Observer for Quiet {}

/// Cancels a decode once a share of it is done.
pub struct CancelAt {
    pub share: f64,
    pub cancelled: Option<std::time::Instant>,
}

impl Observer for CancelAt {
    fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        if share < self.share {
            return ControlFlow::Continue(());
        }
        self.cancelled.get_or_insert_with(std::time::Instant::now);
        ControlFlow::Break(Cancelled)
    }
}

/// The root of the mean square of a difference, over that of the expected values.
pub fn relative_error(found: &Tensor, expected: &Tensor) -> Result<f64, String> {
    let error = || -> Result<f64, tch::TchError> {
        let wide = |tensor: &Tensor| tensor.f_to_device(Device::Cpu)?.f_to_kind(tch::Kind::Double);
        let (found, expected) = (wide(found)?, wide(expected)?);
        let square = |tensor: &Tensor| -> Result<f64, tch::TchError> {
            f64::try_from(tensor.f_square()?.f_mean(tch::Kind::Double)?)
        };
        Ok((square(&found.f_sub(&expected)?)? / square(&expected)?.max(1e-30)).sqrt())
    };
    error().map_err(|error| error.to_string())
}
