//! The planner of one job: asks the revision that the job was given, lets the watchdog and the shadow hear, and changes over between the
//! chunks of a clip where the route says so.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tilewright_plan::{
    CostModel, Decision, Exchange, Fallback, LearnReport, Outcome, Plan, Planner, PolicyIdentity, Question,
};
use tilewright_policy::FallbackPlanner;

use crate::{
    Rollout,
    assignment::Assignment,
    revision::{Instance, Revision},
    shadow::Asked,
};

/// Decides for one job.
pub struct Decider {
    rollout: Arc<Rollout>,
    assignment: Assignment,
    instance: Instance,
    /// Another decision was made in the middle: what is measured is nobody's.
    is_mixed: bool,
    /// The number of the revision that decides now, for those who listen.
    current: Arc<AtomicU64>,
    identity: PolicyIdentity,
}

impl Decider {
    /// Takes an instance of the job's revision.
    pub fn new(rollout: Arc<Rollout>, assignment: Assignment) -> Self {
        let instance = assignment.revision.instance();
        let identity = assignment.revision.identity.clone();
        let current = Arc::new(AtomicU64::new(assignment.revision.number));
        Self { rollout, assignment, instance, is_mixed: false, current, identity }
    }

    /// Who decides for the job.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// The revision that decides now.
    pub fn revision(&self) -> &Arc<Revision> {
        &self.instance.revision
    }

    /// More than one plan had a part in it.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// The number of the revision that decides now, from anywhere.
    pub fn current(&self) -> Arc<AtomicU64> {
        self.current.clone()
    }

    /// Tells, from anywhere, whether a new revision waits to take over at the next chunk.
    pub fn successor(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (slot, takes_over) = (self.assignment.slot.clone(), self.assignment.takes_over && !self.assignment.canary);
        let first = self.assignment.revision.number;
        let last = AtomicU64::new(first);
        move || {
            let now = slot.forces.load().in_force.number;
            takes_over && last.swap(now, Ordering::Relaxed) != now
        }
    }

    /// What was said, for the record.
    pub fn exchange(&mut self) -> Option<Exchange> {
        self.instance.planner().take()
    }

    fn paused(&self) -> Option<FallbackPlanner> {
        let paused = self.assignment.slot.is_paused();
        let name = &self.assignment.slot.name;
        paused.then(|| FallbackPlanner::new(self.identity.clone(), format!("policy {name} is paused")))
    }

    fn decided(&self, decision: &Decision) {
        let failed = decision.fallback.as_ref().is_some_and(is_failure);
        self.rollout.decided(self.revision(), failed);
    }
}

fn is_failure(fallback: &Fallback) -> bool {
    fallback.reason.is_failure()
}

impl Planner for Decider {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        if let Some(mut paused) = self.paused() {
            return paused.decide(question, costs);
        }
        if !question.attempts.is_empty() {
            let decision = self.instance.planner().decide(question, costs);
            self.decided(&decision);
            return decision;
        }
        let mut note = None;
        let is_under_way = question.under_way.is_some();
        self.is_mixed |= is_under_way;
        let current = self.assignment.slot.forces.load().in_force.clone();
        if is_under_way && self.assignment.takes_over && current.number != self.instance.revision.number {
            let (old, new) = (self.instance.revision.number, current.number);
            note = Some(format!("revision {new} took over from {old} in the middle of the clip"));
            self.current.store(new, Ordering::Release);
            self.instance = current.instance();
            self.identity = current.identity.clone();
        }
        let mut decision = self.instance.planner().decide(question, costs.clone());
        decision.adjusted.extend(note);
        self.decided(&decision);
        if let Some((shadow, revision)) = &self.assignment.shadow {
            self.rollout.ask_shadow(Asked {
                shadow: shadow.clone(),
                revision: revision.clone(),
                stage: question.stage,
                request: question.request.clone(),
                device: question.device.clone(),
                capabilities: question.capabilities.clone(),
                under_way: question.under_way.cloned(),
                costs,
                plan: decision.plan.clone(),
            });
        }
        decision
    }

    fn fallback(&mut self, question: &Question<'_>, costs: &dyn CostModel) -> Option<Decision> {
        match self.paused() {
            Some(mut paused) => paused.fallback(question, costs),
            // No policy is asked, so there is nothing to count; that its attempts failed counts when the job has ended.
            None => self.instance.planner().fallback(question, costs),
        }
    }

    fn learn(&mut self, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> LearnReport {
        // The time of a clip that several plans had a part in is none's.
        if self.assignment.slot.is_paused() || self.is_mixed {
            return LearnReport::default();
        }
        let report = self.instance.planner().learn(question, plan, outcome);
        // Learning is no decision, so it does not count; a failure to learn counts like a failure to decide.
        if report.failure.is_some() {
            self.rollout.decided(self.revision(), true);
        }
        report
    }
}

/// Asks a revision without that it counts: for decodes that are only compared.
pub struct UntrackedPlanner(Instance);

impl UntrackedPlanner {
    /// Takes an instance of the revision.
    pub fn new(revision: &Arc<Revision>) -> Self {
        Self(revision.instance())
    }
}

impl Planner for UntrackedPlanner {
    fn identity(&self) -> &PolicyIdentity {
        &self.0.revision.identity
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        self.0.planner().decide(question, costs)
    }

    fn fallback(&mut self, question: &Question<'_>, costs: &dyn CostModel) -> Option<Decision> {
        self.0.planner().fallback(question, costs)
    }

    fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
        LearnReport::default()
    }
}
