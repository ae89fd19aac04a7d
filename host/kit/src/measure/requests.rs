//! What a policy is asked while it is measured: the golden set, as the gate asks it.

use std::sync::Arc;

use tilewright_gate::golden;
use tilewright_plan::{Decision, Device, Facts, Offer, Planner, Request};
use tilewright_policy::Policy;

/// A request with all that a decision needs.
#[derive(Clone)]
pub struct Asked {
    /// What is asked for.
    pub request: Request,
    /// What it runs on.
    pub device: Device,
    /// What can be carried out.
    pub offer: Offer,
    /// What prices plans.
    pub facts: Arc<dyn Facts>,
}

impl Asked {
    pub(super) fn decide(&self, policy: &mut Policy) -> Decision {
        policy.decide(&self.request, &self.device, &self.offer, self.facts.clone())
    }
}

/// The golden requests, which `policy bench` asks in turn.
pub fn requests() -> Vec<Asked> {
    let golden = golden::set().into_iter();
    golden
        .map(|golden| Asked {
            facts: golden.facts(),
            request: golden.request,
            device: golden.device,
            offer: golden.offer,
        })
        .collect()
}
