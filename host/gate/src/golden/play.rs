//! The events after the first decision: failures, and outcomes to learn from.

use std::time::Duration;

use tilewright_plan::{
    Attempt, CostModel, Decision, Dtype, Failure, Layout, LearnReport, Outcome, Plan, Planner, PoolStatistics,
    Precision, UnderWay,
};

use super::{FailureKind, FollowUp, GoldenRequest};
use crate::finding::Call;

/// A call of a policy, and its result.
#[derive(Clone, Debug)]
pub struct CallResult {
    /// The function that was called.
    pub call: Call,
    /// The attempts that had failed before.
    pub attempts: Vec<Attempt>,
    /// The clip under way, if one goes on.
    pub under_way: Option<UnderWay>,
    /// The decision; none for `learn`.
    pub decision: Option<Decision>,
    /// The report of `learn`; the default for a decision.
    pub report: LearnReport,
}

impl GoldenRequest {
    /// Makes all calls that belong to this request, one after the other, and passes each with the
    /// policy to `on_call`.
    pub fn play<P: Planner + ?Sized>(&self, policy: &mut P, mut on_call: impl FnMut(&mut P, CallResult)) {
        let report = LearnReport::default();
        let mut tell = |policy: &mut P, call, attempts: &[Attempt], under_way: Option<&UnderWay>, decision| {
            let (attempts, under_way) = (attempts.to_vec(), under_way.cloned());
            on_call(policy, CallResult { call, attempts, under_way, decision: Some(decision), report: report.clone() });
        };
        let question = self.question().going_on(self.under_way.as_ref());
        let (fails, mut plan) = match (self.then, &self.under_way) {
            (FollowUp::UnderWay(_, _, fails), Some(begun)) => (fails, begun.plan.clone()),
            (then, _) => {
                let decision = policy.decide(&question, self.costs());
                let plan = decision.plan.clone();
                tell(policy, Call::Decide, &[], None, decision);
                (if let FollowUp::Fail(fails) = then { fails } else { &[] }, plan)
            }
        };
        let mut attempts = Vec::new();
        for fails in fails {
            let Some(attempt) = self.fail(plan, *fails, attempts.is_empty()) else { return };
            attempts.push(attempt);
            let decision = policy.decide(&question.after(&attempts), self.costs());
            plan = decision.plan.clone();
            tell(policy, Call::Recover, &attempts, question.under_way, decision);
        }
        if matches!(self.then, FollowUp::Learn) {
            let native = Plan { layout: Layout::ChannelsFirst, ..self.plain() };
            for plan in [plan, native] {
                let report = policy.learn(&question, &plan, &self.outcome(&plan));
                on_call(
                    policy,
                    CallResult { call: Call::Learn, attempts: Vec::new(), under_way: None, decision: None, report },
                );
                let decision = policy.decide(&question, self.costs());
                let (attempts, under_way, report) = (Vec::new(), None, LearnReport::default());
                on_call(
                    policy,
                    CallResult { call: Call::Decide, attempts, under_way, decision: Some(decision), report },
                );
            }
        }
    }

    /// The plan's failure. An overflow is impossible in f32, so a plan in f32 is taken to have run
    /// in the narrowest type. `None` if there is no narrower type, or if no host would ask again.
    fn fail(&self, mut plan: Plan, fails: FailureKind, is_first: bool) -> Option<Attempt> {
        let cost = self.costs.estimate_one(&plan).map_or(self.request.memory_limit, |cost| cost.peak_bytes);
        let failure = match fails {
            FailureKind::OutOfMemory => Failure::OutOfMemory { bytes: cost / 8 },
            FailureKind::OverLimit => Failure::OverLimit { bytes: self.request.memory_limit / 10 * 11 },
            FailureKind::NonFinite => {
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

    /// A third more time and 5 % more memory than the price.
    fn outcome(&self, plan: &Plan) -> Outcome {
        let cost = self.costs.estimate_one(plan).ok();
        Outcome {
            elapsed: cost.map(|cost| cost.elapsed / 3 * 4).unwrap_or_default(),
            load: Duration::ZERO,
            peak_bytes: cost.map_or(1 << 30, |cost| cost.peak_bytes / 20 * 21),
            attempts: 1,
            pool: PoolStatistics::default(),
            cold: false,
        }
    }
}
