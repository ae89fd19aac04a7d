//! The planner of one job. It asks the job's revision, reports each decision to the watchdog and
//! the shadow, and changes revisions between the chunks of a clip or the steps of a sample if the
//! route allows that.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tilewright_plan::{
    CostModel, Decision, Exchange, Fallback, LearnReport, Planner, PolicyIdentity, Question, Recorded, Vae,
};
use tilewright_policy::FallbackPlanner;

use crate::{
    Rollout,
    assignment::Assignment,
    revision::{Instance, Revision},
    served::Served,
    shadow::ShadowQuestion,
};

/// Decides for one job.
pub struct Decider<W: Served = Vae> {
    rollout: Arc<Rollout>,
    assignment: Assignment,
    instance: Instance<W>,
    /// True if another decision was made in the middle of the job: its measurements belong to no
    /// revision.
    is_mixed: bool,
    /// The number of the revision that decides now, for observers.
    current: Arc<AtomicU64>,
    identity: PolicyIdentity,
}

impl<W: Served> Decider<W> {
    /// Takes an instance of the job's revision.
    pub fn new(rollout: Arc<Rollout>, assignment: Assignment) -> Self {
        let instance = assignment.revision.instance();
        let identity = assignment.revision.identity.clone();
        let current = Arc::new(AtomicU64::new(assignment.revision.number));
        Self { rollout, assignment, instance, is_mixed: false, current, identity }
    }

    /// The revision that decides now.
    pub fn revision(&self) -> &Arc<Revision> {
        &self.instance.revision
    }

    /// True if several plans had a part in the job.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// The number of the revision that decides now, from anywhere.
    pub fn current(&self) -> Arc<AtomicU64> {
        self.current.clone()
    }

    /// A function that is true once for each new revision that waits to take over at the next
    /// chunk or step.
    pub fn successor(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (slot, takes_over) = (self.assignment.slot.clone(), self.assignment.takes_over && !self.assignment.canary);
        let first = self.assignment.revision.number;
        let last = AtomicU64::new(first);
        move || {
            let now = slot.forces.load().in_force.number;
            takes_over && last.swap(now, Ordering::Relaxed) != now
        }
    }

    /// The calls so far, for the record.
    pub fn exchange(&mut self) -> Option<Exchange<W>> {
        self.instance.planner().take()
    }

    fn paused_planner(&self) -> Option<Box<dyn Planner<W> + Send>> {
        let paused = self.assignment.slot.is_paused();
        let name = &self.assignment.slot.name;
        paused.then(|| -> Box<dyn Planner<W> + Send> {
            Box::new(FallbackPlanner::new(self.identity.clone(), format!("policy {name} is paused")))
        })
    }

    fn report_decision(&self, decision: &Decision<W>) {
        let failed = decision.fallback.as_ref().is_some_and(is_failure);
        self.rollout.record_decision(self.revision(), failed);
    }
}

fn is_failure(fallback: &Fallback) -> bool {
    fallback.reason.is_failure()
}

impl<W: Served> Recorded<W> for Decider<W> {
    fn take(&mut self) -> Option<Exchange<W>> {
        self.exchange()
    }
}

impl<W: Served> Planner<W> for Decider<W> {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        if let Some(mut paused) = self.paused_planner() {
            return paused.decide(question, costs);
        }
        if !question.attempts.is_empty() {
            let decision = self.instance.planner().decide(question, costs);
            self.report_decision(&decision);
            return decision;
        }
        let mut note = None;
        let is_under_way = question.under_way.is_some();
        self.is_mixed |= is_under_way;
        let current = self.assignment.slot.forces.load().in_force.clone();
        if is_under_way && self.assignment.takes_over && current.number != self.instance.revision.number {
            let (old, new) = (self.instance.revision.number, current.number);
            note = Some(format!("revision {new} took over from {old} in the middle of the work"));
            self.current.store(new, Ordering::Release);
            self.instance = current.instance();
            self.identity = current.identity.clone();
        }
        let mut decision = self.instance.planner().decide(question, costs.clone());
        decision.adjusted.extend(note);
        self.report_decision(&decision);
        if let Some((shadow, revision)) = &self.assignment.shadow {
            self.rollout.ask_shadow(ShadowQuestion {
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

    fn fallback(&mut self, question: &Question<'_, W>, costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        match self.paused_planner() {
            Some(mut paused) => paused.fallback(question, costs),
            // No policy is asked, so there is no decision to count; the failed attempts count when
            // the job has ended.
            None => self.instance.planner().fallback(question, costs),
        }
    }

    fn learn(&mut self, question: &Question<'_, W>, plan: &W::Plan, outcome: &W::Outcome) -> LearnReport {
        // The time of work with several plans belongs to none of them.
        if self.assignment.slot.is_paused() || self.is_mixed {
            return LearnReport::default();
        }
        let report = self.instance.planner().learn(question, plan, outcome);
        // Learning is not a decision, so it does not count; a failure to learn counts like a
        // failure to decide.
        if report.failure.is_some() {
            self.rollout.record_decision(self.revision(), true);
        }
        report
    }
}

/// Asks a revision without counting its decisions: for work that is only compared.
pub struct UntrackedPlanner<W: Served = Vae>(Instance<W>);

impl<W: Served> UntrackedPlanner<W> {
    /// Takes an instance of the revision.
    pub fn new(revision: &Arc<Revision>) -> Self {
        Self(revision.instance())
    }
}

impl<W: Served> Planner<W> for UntrackedPlanner<W> {
    fn identity(&self) -> &PolicyIdentity {
        &self.0.revision.identity
    }

    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        self.0.planner().decide(question, costs)
    }

    fn fallback(&mut self, question: &Question<'_, W>, costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        self.0.planner().fallback(question, costs)
    }

    fn learn(&mut self, _: &Question<'_, W>, _: &W::Plan, _: &W::Outcome) -> LearnReport {
        LearnReport::default()
    }
}
