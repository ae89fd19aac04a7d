//! The fallback as a planner, for a policy that is not to be asked at all.

use std::{sync::Arc, time::Instant};

use tilewright_plan::{
    CostModel, Decision, Fallback, FallbackReason, LearnReport, Planner, PolicyIdentity, Question, Work,
};

use crate::runtime::Decided;

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

    /// The policy in whose name it decides.
    pub fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decision<W: Work>(&self, started: Instant, plan: W::Plan) -> Decision<W> {
        fallback_decision(started, plan, FallbackReason::OutOfService, self.why.clone())
    }
}

/// A decision for the fallback plan, without a policy.
pub(crate) fn fallback_decision<W: Work>(
    started: Instant,
    plan: W::Plan,
    reason: FallbackReason,
    detail: String,
) -> Decision<W> {
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

impl<W: Decided> Planner<W> for FallbackPlanner {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        let started = Instant::now();
        self.decision(started, W::host_plan(question, &*costs))
    }

    fn fallback(&mut self, question: &Question<'_, W>, costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        let started = Instant::now();
        Some(self.decision(started, W::last_resort(question, costs)?))
    }

    fn learn(&mut self, _: &Question<'_, W>, _: &W::Plan, _: &W::Outcome) -> LearnReport {
        LearnReport::default()
    }
}
