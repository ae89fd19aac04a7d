//! The requests of a measurement: the golden set, as the gate asks it.

use std::sync::Arc;

use tilewright_gate::golden;
use tilewright_plan::{Capabilities, CostModel, Decision, Device, Planner, Question, Request, Stage};
use tilewright_policy::Policy;

/// A request with everything that a decision needs.
#[derive(Clone)]
pub struct BenchRequest {
    /// The stage.
    pub stage: Stage,
    /// The request itself.
    pub request: Request,
    /// The device.
    pub device: Device,
    /// The plans that can be carried out.
    pub capabilities: Capabilities,
    /// The prices of plans.
    pub costs: Arc<dyn CostModel>,
}

impl BenchRequest {
    pub(super) fn question(&self) -> Question<'_> {
        Question::new(self.stage, &self.request, &self.device, &self.capabilities)
    }

    pub(super) fn decide(&self, policy: &mut Policy) -> Decision {
        policy.decide(&self.question(), self.costs.clone())
    }
}

/// The golden requests, which `policy bench` asks in turn.
pub fn requests() -> Vec<BenchRequest> {
    let golden = golden::set().into_iter();
    golden
        .map(|golden| BenchRequest {
            costs: golden.costs(),
            stage: golden.stage,
            request: golden.request,
            device: golden.device,
            capabilities: golden.capabilities,
        })
        .collect()
}
