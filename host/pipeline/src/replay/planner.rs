//! The captured plan as a planner.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tilewright_plan::{CostModel, Decision, LearnReport, Planner, PolicyIdentity, Question, Record, Work};

/// The name by which records know it.
pub(super) const AS_CAPTURED: &str = "as-captured";

/// Decides as a record says, and nothing else: a plan that fails is not replaced.
pub(super) struct AsCaptured<W: Work> {
    plan: W::Plan,
    identity: PolicyIdentity,
}

impl<W: Work> AsCaptured<W> {
    pub fn new(record: &Record<W>) -> Self {
        let identity = PolicyIdentity { name: AS_CAPTURED.into(), settings: BTreeMap::new(), ..record.policy.clone() };
        Self { plan: record.plan.clone(), identity }
    }
}

impl<W: Work> Planner<W> for AsCaptured<W> {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, _: &Question<'_, W>, _: Arc<dyn CostModel<W>>) -> Decision<W> {
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

    fn learn(&mut self, _: &Question<'_, W>, _: &W::Plan, _: &W::Outcome) -> LearnReport {
        LearnReport::default()
    }
}
