//! The search for the fallback plan, for requests without a usable answer of a policy.

use tilewright_plan::{CostModel, Failure, Question};

use crate::{check, work::Planned};

/// The inputs of a search for a plan.
pub(crate) struct Fitting<'a, W: Planned> {
    pub question: &'a Question<'a, W>,
    pub costs: &'a dyn CostModel<W>,
    bounds: W::Bounds,
}

impl<'a, W: Planned> Fitting<'a, W> {
    pub fn new(question: &'a Question<'a, W>, costs: &'a dyn CostModel<W>) -> Self {
        Self { question, costs, bounds: W::bounds(question) }
    }

    /// The plan after checking; none if it makes no sense.
    pub fn make_legal(&self, mut plan: W::Plan) -> Option<W::Plan> {
        check::fit::<W>(&mut plan, &self.bounds, &mut |_| {}).ok().map(|()| plan)
    }

    /// True if a plan repeats none that failed.
    pub fn is_new(&self, plan: &W::Plan) -> bool {
        !self.question.attempts.iter().any(|attempt| W::repeats(plan, attempt))
    }

    /// True if values were not finite: no narrower type is tried after that.
    pub fn has_overflowed(&self) -> bool {
        self.question.attempts.iter().any(|attempt| matches!(attempt.failure, Failure::NonFinite { .. }))
    }

    /// The bytes that a plan is expected to hold at once; none if it can't be carried out.
    pub fn held(&self, plan: &W::Plan) -> Option<u64> {
        let cost = self.costs.estimate_one(&W::without_reason(plan)).ok()?;
        Some(W::held_bytes(&cost))
    }

    /// True if a plan is within the limit, or if it is not known to be beyond.
    pub fn may_fit(&self, plan: &W::Plan) -> bool {
        self.held(plan).is_none_or(|held| held <= W::memory_limit(self.question.request))
    }
}
