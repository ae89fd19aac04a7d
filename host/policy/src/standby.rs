//! The native default on its own, for a policy that is not to be asked at all.

use std::{sync::Arc, time::Instant};

use tilewright_plan::{
    Attempt, Decision, Device, Facts, Fallback, FallbackReason, Offer, Outcome, Plan, Planner, PolicyIdentity, Request,
};

use crate::native;

/// Decides as the host does where no policy's answer can be used, in the name of a policy that is not asked.
pub struct Standby {
    identity: PolicyIdentity,
    why: String,
}

impl Standby {
    /// Stands in for a policy; `why` goes into every record, in one line.
    pub fn new(identity: PolicyIdentity, why: impl Into<String>) -> Self {
        Self { identity, why: why.into() }
    }

    fn decided(&self, started: Instant, plan: Plan) -> Decision {
        stood_in(started, plan, FallbackReason::OutOfService, self.why.clone())
    }
}

/// A decision of the host's own, made without a policy.
pub(crate) fn stood_in(started: Instant, plan: Plan, reason: FallbackReason, detail: String) -> Decision {
    Decision {
        answer: None,
        plan,
        adjusted: Vec::new(),
        fallback: Some(Fallback { reason, detail }),
        elapsed: started.elapsed(),
        fuel: 0,
        candidates: Vec::new(),
        log: Vec::new(),
    }
}

impl Planner for Standby {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, request: &Request, device: &Device, offer: &Offer, facts: Arc<dyn Facts>) -> Decision {
        let started = Instant::now();
        self.decided(started, native::decide(request, device, offer, &*facts))
    }

    fn recover(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Decision {
        let started = Instant::now();
        self.decided(started, native::recover(request, device, offer, &*facts, attempts))
    }

    fn stand_in(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Option<Decision> {
        let started = Instant::now();
        Some(self.decided(started, native::own(request, device, offer, &*facts, attempts)?))
    }

    fn learn(&mut self, _: &Request, _: &Device, _: &Plan, _: &Outcome) {}
}
