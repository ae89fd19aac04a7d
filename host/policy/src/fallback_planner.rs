//! The host's own plan as a planner, for a policy that is not to be asked at all.

use std::{sync::Arc, time::Instant};

use tilewright_plan::{
    CostModel, Decision, Fallback, FallbackReason, LearnReport, Outcome, Plan, Planner, PolicyIdentity, Question,
};

use crate::fallback;

/// Decides as the host does if no policy's answer can be used, in the name of a policy that is not
/// asked.
pub struct FallbackPlanner {
    identity: PolicyIdentity,
    why: String,
}

impl FallbackPlanner {
    /// Replaces a policy; `why` goes into every record, in one line.
    pub fn new(identity: PolicyIdentity, why: impl Into<String>) -> Self {
        Self { identity, why: why.into() }
    }

    fn decision(&self, started: Instant, plan: Plan) -> Decision {
        fallback_decision(started, plan, FallbackReason::OutOfService, self.why.clone())
    }
}

/// A decision for the host's own plan, without a policy.
pub(crate) fn fallback_decision(started: Instant, plan: Plan, reason: FallbackReason, detail: String) -> Decision {
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

impl Planner for FallbackPlanner {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        let started = Instant::now();
        self.decision(started, fallback::decide(question, &*costs))
    }

    fn fallback(&mut self, question: &Question<'_>, costs: &dyn CostModel) -> Option<Decision> {
        let started = Instant::now();
        Some(self.decision(started, fallback::last_resort(question, costs)?))
    }

    fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
        LearnReport::default()
    }
}
