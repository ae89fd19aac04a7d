//! What happens after the first decision: failures, and outcomes that are told.

use std::time::Duration;

use tilewright_plan::{
    Attempt, Decision, Dtype, Facts, Failure, Hint, Layout, Outcome, Plan, Planner, PoolStatistics, Precision,
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
    pub running: Option<Plan>,
    /// What came of it; none for what the policy was only told.
    pub decision: Option<Decision>,
}

impl GoldenRequest {
    /// Asks a policy all that belongs to this request, one call after the other; `hear` is told of each, with the policy at hand.
    pub fn play<P: Planner + ?Sized>(&self, policy: &mut P, mut hear: impl FnMut(&mut P, Heard)) {
        let mut tell = |policy: &mut P, call, attempts: &[Attempt], running: Option<&Plan>, decision| {
            hear(policy, Heard { call, attempts: attempts.to_vec(), running: running.cloned(), decision });
        };
        let (mut request, mut offer) = (self.request.clone(), self.offer.clone());
        let (fails, mut plan) = match (self.then, &self.under_way) {
            (Then::UnderWay(_, done, fails), Some(begun)) => {
                request.hints.push(Hint { name: "clip.done".into(), value: done.to_string() });
                offer.running = Some(begun.clone());
                (fails, begun.clone())
            }
            (then, _) => {
                let decision = policy.decide(&request, &self.device, &offer, self.facts());
                let plan = decision.plan.clone();
                tell(policy, Call::Decide, &[], None, Some(decision));
                (if let Then::Fail(fails) = then { fails } else { &[] }, plan)
            }
        };
        let mut attempts = Vec::new();
        for fails in fails {
            let Some(attempt) = self.failed(plan, *fails, attempts.is_empty()) else { return };
            attempts.push(attempt);
            let decision = policy.recover(&request, &self.device, &offer, self.facts(), &attempts);
            plan = decision.plan.clone();
            tell(policy, Call::Recover, &attempts, offer.running.as_ref(), Some(decision));
        }
        if matches!(self.then, Then::Learn) {
            let native = Plan { layout: Layout::ChannelsFirst, ..self.plain() };
            for plan in [plan, native] {
                policy.learn(&request, &self.device, &plan, &self.outcome(&plan));
                tell(policy, Call::Learn, &[], None, None);
                let decision = policy.decide(&request, &self.device, &offer, self.facts());
                tell(policy, Call::Decide, &[], None, Some(decision));
            }
        }
    }

    /// The plan's failure. Where values are to overflow that were f32, the plan is taken to have been run in the narrowest type; none
    /// where that can't be, or where no host would ask again.
    fn failed(&self, mut plan: Plan, fails: Fails, is_first: bool) -> Option<Attempt> {
        let cost = self.facts.estimate(&plan).map_or(self.request.memory_limit, |cost| cost.peak_bytes);
        let failure = match fails {
            Fails::OutOfMemory => Failure::OutOfMemory { bytes: cost / 8 },
            Fails::OverLimit => Failure::OverLimit { bytes: self.request.memory_limit / 10 * 11 },
            Fails::NonFinite => {
                if plan.precision.dtype() == Dtype::F32 {
                    let narrow = self.offer.dtypes.iter().find(|dtype| **dtype != Dtype::F32).filter(|_| is_first)?;
                    plan.precision = Precision::Uniform(*narrow);
                }
                Failure::NonFinite { values: 4096 }
            }
        };
        Some(Attempt { plan, failure })
    }

    /// A third more time and a twentieth more memory than the price.
    fn outcome(&self, plan: &Plan) -> Outcome {
        let cost = self.facts.estimate(plan).ok();
        Outcome {
            elapsed: cost.map(|cost| cost.elapsed / 3 * 4).unwrap_or_default(),
            load: Duration::ZERO,
            peak_bytes: cost.map_or(1 << 30, |cost| cost.peak_bytes / 20 * 21),
            attempts: 1,
            pool: PoolStatistics::default(),
        }
    }
}
