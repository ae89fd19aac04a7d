//! What happens after the first decision: failures, and outcomes that are told.

use std::time::Duration;

use tilewright_plan::{
    Attempt, CostModel, Decision, Dtype, Failure, Layout, LearnReport, Outcome, Plan, Planner, PoolStatistics,
    Precision, UnderWay,
};

use super::{Fails, GoldenRequest, Then};
use crate::finding::Call;

/// What a policy was asked, and what it said.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Which call it was.
    pub call: Call,
    /// The attempts that had failed before.
    pub attempts: Vec<Attempt>,
    /// What is under way, for a clip that goes on.
    pub under_way: Option<UnderWay>,
    /// What came of it; none for what the policy was only told.
    pub decision: Option<Decision>,
    /// The report on telling it an outcome; the default for a decision.
    pub report: LearnReport,
}

impl GoldenRequest {
    /// Asks a policy all that belongs to this request, one call after the other; `hear` is told of each, with the policy at hand.
    pub fn play<P: Planner + ?Sized>(&self, policy: &mut P, mut hear: impl FnMut(&mut P, Heard)) {
        let report = LearnReport::default();
        let mut tell = |policy: &mut P, call, attempts: &[Attempt], under_way: Option<&UnderWay>, decision| {
            let (attempts, under_way) = (attempts.to_vec(), under_way.cloned());
            hear(policy, Heard { call, attempts, under_way, decision: Some(decision), report: report.clone() });
        };
        let question = self.question().going_on(self.under_way.as_ref());
        let (fails, mut plan) = match (self.then, &self.under_way) {
            (Then::UnderWay(_, _, fails), Some(begun)) => (fails, begun.plan.clone()),
            (then, _) => {
                let decision = policy.decide(&question, self.costs());
                let plan = decision.plan.clone();
                tell(policy, Call::Decide, &[], None, decision);
                (if let Then::Fail(fails) = then { fails } else { &[] }, plan)
            }
        };
        let mut attempts = Vec::new();
        for fails in fails {
            let Some(attempt) = self.failed(plan, *fails, attempts.is_empty()) else { return };
            attempts.push(attempt);
            let decision = policy.decide(&question.after(&attempts), self.costs());
            plan = decision.plan.clone();
            tell(policy, Call::Recover, &attempts, question.under_way, decision);
        }
        if matches!(self.then, Then::Learn) {
            let native = Plan { layout: Layout::ChannelsFirst, ..self.plain() };
            for plan in [plan, native] {
                let report = policy.learn(&question, &plan, &self.outcome(&plan));
                hear(
                    policy,
                    Heard { call: Call::Learn, attempts: Vec::new(), under_way: None, decision: None, report },
                );
                let decision = policy.decide(&question, self.costs());
                let (attempts, under_way, report) = (Vec::new(), None, LearnReport::default());
                hear(policy, Heard { call: Call::Decide, attempts, under_way, decision: Some(decision), report });
            }
        }
    }

    /// The plan's failure. Where values are to overflow that were f32, the plan is taken to have been run in the narrowest type; none
    /// where that can't be, or where no host would ask again.
    fn failed(&self, mut plan: Plan, fails: Fails, is_first: bool) -> Option<Attempt> {
        let cost = self.costs.estimate_one(&plan).map_or(self.request.memory_limit, |cost| cost.peak_bytes);
        let failure = match fails {
            Fails::OutOfMemory => Failure::OutOfMemory { bytes: cost / 8 },
            Fails::OverLimit => Failure::OverLimit { bytes: self.request.memory_limit / 10 * 11 },
            Fails::NonFinite => {
                if plan.precision.dtype() == Dtype::F32 {
                    let narrow =
                        self.capabilities.dtypes.iter().find(|dtype| **dtype != Dtype::F32).filter(|_| is_first)?;
                    plan.precision = Precision::Uniform(*narrow);
                }
                Failure::NonFinite { values: 4096 }
            }
        };
        Some(Attempt { plan, failure })
    }

    /// A third more time and a twentieth more memory than the price.
    fn outcome(&self, plan: &Plan) -> Outcome {
        let cost = self.costs.estimate_one(plan).ok();
        Outcome {
            elapsed: cost.map(|cost| cost.elapsed / 3 * 4).unwrap_or_default(),
            load: Duration::ZERO,
            peak_bytes: cost.map_or(1 << 30, |cost| cost.peak_bytes / 20 * 21),
            attempts: 1,
            pool: PoolStatistics::default(),
        }
    }
}
