//! The requests of a measurement: the golden set, as the gate asks it.

use std::sync::Arc;

use tilewright_gate::{
    golden::{self, GoldenRequest},
    work::Judged,
};
use tilewright_plan::{CostModel, Decision, Denoise, Device, Planner, Question, Stage, Text, Vae};
use tilewright_policy::Policy;

/// A request with everything that a decision needs.
#[derive(Clone)]
pub struct BenchRequest<W: Judged = Vae> {
    /// The stage.
    pub stage: Stage,
    /// The request itself.
    pub request: W::Request,
    /// The device.
    pub device: Device,
    /// The plans that can be carried out.
    pub capabilities: W::Capabilities,
    /// The prices of plans.
    pub costs: Arc<dyn CostModel<W>>,
}

impl<W: Judged> BenchRequest<W> {
    fn new(golden: GoldenRequest<W>) -> Self {
        Self {
            costs: golden.costs(),
            stage: golden.stage,
            request: golden.request,
            device: golden.device,
            capabilities: golden.capabilities,
        }
    }

    pub(super) fn question(&self) -> Question<'_, W> {
        Question::first(self.stage, &self.request, &self.device, &self.capabilities)
    }

    pub(super) fn decide(&self, policy: &mut Policy) -> Decision<W>
    where
        Policy: Planner<W>,
    {
        policy.decide(&self.question(), self.costs.clone())
    }
}

/// The golden requests for decodes and encodes, which `policy bench` asks in turn.
pub fn requests() -> Vec<BenchRequest> {
    golden::set().into_iter().map(BenchRequest::new).collect()
}

/// The golden requests for samples.
pub(super) fn samples() -> Vec<BenchRequest<Denoise>> {
    golden::samples().into_iter().map(BenchRequest::new).collect()
}

/// The golden requests for text encoders.
pub(super) fn texts() -> Vec<BenchRequest<Text>> {
    golden::texts().into_iter().map(BenchRequest::new).collect()
}
