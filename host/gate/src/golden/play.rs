//! The events after the first decision: failures, and outcomes to learn from.

use tilewright_plan::{Attempt, Decision, Dtype, Failure, LearnReport, Planner, UnderWay, Vae};

use super::{Events, FailureKind, GoldenRequest};
use crate::{finding::Call, work::Judged};

/// A call of a policy, and its result.
#[derive(Clone, Debug)]
pub struct CallResult<W: Judged = Vae> {
    /// The function that was called.
    pub call: Call,
    /// The attempts that had failed before.
    pub attempts: Vec<Attempt<W>>,
    /// The work under way, if it goes on.
    pub under_way: Option<UnderWay<W>>,
    /// The decision; none for `learn`.
    pub decision: Option<Decision<W>>,
    /// The report of `learn`; the default for a decision.
    pub report: LearnReport,
}

impl<W: Judged> GoldenRequest<W> {
    /// Makes all calls that belong to this request, one after the other, and passes each with the
    /// policy to `on_call`.
    pub fn play<P: Planner<W> + ?Sized>(&self, policy: &mut P, mut on_call: impl FnMut(&mut P, CallResult<W>)) {
        let report = LearnReport::default();
        let mut tell = |policy: &mut P, call, attempts: &[Attempt<W>], under_way: Option<&UnderWay<W>>, decision| {
            let (attempts, under_way) = (attempts.to_vec(), under_way.cloned());
            on_call(policy, CallResult { call, attempts, under_way, decision: Some(decision), report: report.clone() });
        };
        let question = self.question().going_on(self.under_way.as_ref());
        let (fails, mut plan) = match (self.then, &self.under_way) {
            (Events::UnderWay(fails), Some(begun)) => (fails, begun.plan.clone()),
            (then, _) => {
                let decision = policy.decide(&question, self.costs());
                let plan = decision.plan.clone();
                tell(policy, Call::Decide, &[], None, decision);
                (if let Events::Fail(fails) = then { fails } else { &[] }, plan)
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
        if matches!(self.then, Events::Learn) {
            for plan in [plan, W::odd(self)] {
                let outcome = W::outcome(self.costs.estimate_one(&plan).ok());
                let report = policy.learn(&question, &plan, &outcome);
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
    fn fail(&self, mut plan: W::Plan, fails: FailureKind, is_first: bool) -> Option<Attempt<W>> {
        let limit = W::memory_limit(&self.request);
        let cost = self.costs.estimate_one(&plan).map_or(limit, |cost| W::held_bytes(&cost));
        let failure = match fails {
            FailureKind::OutOfMemory => Failure::OutOfMemory { bytes: cost / 8 },
            FailureKind::OverLimit => Failure::OverLimit { bytes: limit / 10 * 11 },
            FailureKind::NonFinite => {
                if W::precision(&plan).dtype() == Dtype::F32 {
                    let mut dtypes = W::dtypes(&self.capabilities).iter();
                    let narrow = dtypes.find(|dtype| **dtype != Dtype::F32).filter(|_| is_first)?;
                    plan = W::in_type(plan, *narrow);
                }
                Failure::NonFinite { values: 4096 }
            }
        };
        Some(Attempt { plan, failure })
    }
}
