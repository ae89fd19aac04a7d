//! The host's own plan of a sample: everything at once while that fits, else divided step by step,
//! by the changes that cost least time first.

use tilewright_plan::{
    Backend, CostModel, Denoise, DenoisePlan, Dtype, Failure, GuidanceOrder, Precision, Products, Question, StepReuse,
    WeightForm,
};

use super::{Fitting, HostPlans};

/// Changes of a plan that may hold less, those that cost least time first. Expanded weights are not
/// read again. A narrower type comes last, since it alone changes the result.
const LEANER: [fn(&mut DenoisePlan); 7] = [
    |plan| plan.guidance = GuidanceOrder::InTurn,
    |plan| plan.weights = WeightForm::Packed,
    |plan| (plan.weights, plan.ahead) = (WeightForm::Packed, plan.ahead.or(Some(1))),
    |plan| plan.samples = Some(1),
    |plan| plan.feed_forward = plan.feed_forward.max(FEED_FORWARD_PARTS),
    |plan| (plan.weights, plan.ahead) = (WeightForm::Packed, Some(0)),
    |plan| plan.precision = Precision::Uniform(Dtype::Bf16),
];

/// The parts of a feed-forward layer where memory is short: with more, attention holds the most.
const FEED_FORWARD_PARTS: u32 = 8;

/// The share of a limit that expanded weights may take on a GPU.
const EXPANDED_SHARE: u64 = 2;

impl HostPlans for Denoise {
    fn host_plan(question: &Question<'_, Self>, costs: &dyn CostModel<Self>) -> DenoisePlan {
        let fitting = Fitting::new(question, costs);
        match fitting.next() {
            Some(plan) => plan,
            // Nothing is left to try: the last plan says so by failing again.
            None => question.attempts.last().map_or_else(DenoisePlan::plain, |attempt| attempt.plan.clone()),
        }
    }

    fn last_resort(question: &Question<'_, Self>, costs: &dyn CostModel<Self>) -> Option<DenoisePlan> {
        let fitting = Fitting::new(question, costs);
        let own = fitting.divided(fitting.plain());
        Some(own).filter(|plan| fitting.is_new(plan) && fitting.may_fit(plan)).or_else(|| fitting.next())
    }
}

impl Fitting<'_, Denoise> {
    /// The first plan, or the one after the attempts.
    fn next(&self) -> Option<DenoisePlan> {
        let Some(last) = self.question.attempts.last() else { return Some(self.divided(self.plain())) };
        let next = DenoisePlan { reason: format!("native default: after {}", last.failure), ..last.plan.clone() };
        if let Failure::NonFinite { .. } = last.failure {
            let is_wide = last.plan.precision.dtype() == Dtype::F32;
            let precision = Precision::Uniform(Dtype::F32);
            let wider = DenoisePlan { precision, products: Products::Precision, ..next };
            return Some(self.divided(wider)).filter(|plan| !is_wide && self.is_new(plan));
        }
        self.leaner(next).find(|plan| self.is_new(plan))
    }

    /// The plan of a device whose memory is no concern: f32 on a CPU and bf16 on a GPU that is fast
    /// in it; weights as they are stored, or expanded on a GPU that has room for them; outputs
    /// reused as far as the user allows.
    fn plain(&self) -> DenoisePlan {
        let Question { request, device, capabilities, .. } = *self.question;
        let is_gpu = device.backend != Backend::Cpu;
        let is_fast = |dtype: Dtype| device.fast_dtypes.contains(&dtype) && capabilities.dtypes.contains(&dtype);
        let narrow = is_gpu && is_fast(Dtype::Bf16) && !self.has_overflowed();
        let precision = Precision::Uniform(if narrow { Dtype::Bf16 } else { Dtype::F32 });
        let bytes = u64::from(precision.dtype().bits() / 8);
        let room = request.memory_limit / EXPANDED_SHARE;
        let expanded = is_gpu && request.model.parameters.saturating_mul(bytes) < room;
        DenoisePlan {
            precision,
            weights: if expanded { WeightForm::Expanded } else { WeightForm::Packed },
            reuse: match capabilities.reuse_most {
                threshold if threshold > 0.0 => StepReuse::Output { threshold },
                _ => StepReuse::Off,
            },
            reason: "native default".into(),
            ..DenoisePlan::plain()
        }
    }

    /// The plan as it is if it fits, else changed until it does, or until nothing holds less.
    fn divided(&self, mut plan: DenoisePlan) -> DenoisePlan {
        for leaner in self.leaner(plan.clone()) {
            if self.may_fit(&plan) {
                break;
            }
            plan = leaner;
        }
        self.legal(plan)
    }

    /// Plans that hold less, each less than the one before.
    fn leaner(&self, mut plan: DenoisePlan) -> impl Iterator<Item = DenoisePlan> {
        let mut least = self.held(&plan).unwrap_or(u64::MAX);
        LEANER.into_iter().filter_map(move |change| {
            let mut next = plan.clone();
            change(&mut next);
            if next.precision != plan.precision && self.has_overflowed() {
                return None;
            }
            let next = self.legal(next);
            let held = self.held(&next).filter(|held| *held < least)?;
            (least, plan) = (held, next.clone());
            Some(next)
        })
    }

    /// The changes make sense, and so does the plan that they begin with.
    fn legal(&self, plan: DenoisePlan) -> DenoisePlan {
        self.make_legal(plan.clone()).unwrap_or(plan)
    }
}
