//! What a policy is asked while it is measured: the golden set, as the gate asks it.

use std::sync::Arc;

use tilewright_gate::golden;
use tilewright_plan::{Capabilities, CostModel, Decision, Device, Planner, Question, Request, Stage};
use tilewright_policy::Policy;

/// A request with all that a decision needs.
#[derive(Clone)]
pub struct Asked {
    /// The kind of work.
    pub stage: Stage,
    /// What is asked for.
    pub request: Request,
    /// What it runs on.
    pub device: Device,
    /// What can be carried out.
    pub capabilities: Capabilities,
    /// What prices plans.
    pub costs: Arc<dyn CostModel>,
}

impl Asked {
    pub(super) fn question(&self) -> Question<'_> {
        Question::new(self.stage, &self.request, &self.device, &self.capabilities)
    }

    pub(super) fn decide(&self, policy: &mut Policy) -> Decision {
        policy.decide(&self.question(), self.costs.clone())
    }
}

/// The golden requests, which `policy bench` asks in turn.
pub fn requests() -> Vec<Asked> {
    let golden = golden::set().into_iter();
    golden
        .map(|golden| Asked {
            costs: golden.costs(),
            stage: golden.stage,
            request: golden.request,
            device: golden.device,
            capabilities: golden.capabilities,
        })
        .collect()
}
