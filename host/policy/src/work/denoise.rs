//! Samples. The fallback plan has everything at once while that fits, else it is divided step by
//! step, by the changes that cost least time first.

use tilewright_plan::{
    Attempt, Attention, Backend, CostModel, Denoise, DenoiseCapabilities, DenoisePlan, Dtype, Failure, GuidanceOrder,
    Precision, Products, Question, StepReuse, WeightForm,
};

use super::{Planned, unheld};
use crate::{
    check::{Change, Nonsense, Rule, change_if, fitted, number_or_all, offered, said, unmixed},
    fallback::Fitting,
};

/// The ranges that a sample's plan has to lie in.
#[derive(Clone, Debug)]
pub(crate) struct DenoiseBounds {
    pub batch: u32,
    pub tokens: u32,
    pub passes: u32,
    pub capabilities: DenoiseCapabilities,
}

const NONSENSE: &[Nonsense<Denoise>] = &[
    (|plan| plan.attention == Attention::Pieces { queries: 0 }, "attention of no queries"),
    (|plan| plan.samples == Some(0), "no samples at once"),
    (|plan| plan.feed_forward == 0, "a feed-forward layer in no parts"),
    (
        |plan| !(plan.reuse.threshold() >= 0.0 && plan.reuse.threshold().is_finite()),
        "a reuse that is no part of the output",
    ),
];

const RULES: &[Rule<Denoise>] = &[
    ("precision", "not offered on this device", |plan, bounds| {
        offered(&mut plan.precision, &bounds.capabilities.dtypes)
    }),
    ("precision", "nothing to mix", |plan, _| unmixed(&mut plan.precision)),
    ("products", "FP8 needs a device that has it, and weights in f8_e4m3", |plan, bounds| {
        only_if(plan, Products::Fp8, bounds.capabilities.fp8_products)
    }),
    ("products", "INT8 needs a processor that has it, and weights in blocks of integers", |plan, bounds| {
        only_if(plan, Products::Int8, bounds.capabilities.int8_products)
    }),
    ("products", "FP8 gives 16 bits, of weights as stored that are on the device", |plan, _| {
        let is_narrow = matches!(plan.precision.dtype(), Dtype::Bf16 | Dtype::F16);
        let fits = is_narrow && plan.weights == WeightForm::Packed && plan.ahead.is_none();
        only_if(plan, Products::Fp8, fits)
    }),
    ("products", "INT8 takes weights as stored, beside f32 or bf16", |plan, _| {
        let fits = plan.weights == WeightForm::Packed && plan.precision.dtype() != Dtype::F16;
        only_if(plan, Products::Int8, fits)
    }),
    ("ahead", "expanded weights stay on the device", |plan, _| match plan.weights {
        WeightForm::Expanded => number_or_all(&mut plan.ahead, None),
        WeightForm::Packed => None,
    }),
    ("ahead", "no more than {ahead} blocks", |plan, bounds| {
        let fitted = plan.ahead.map(|blocks| blocks.min(bounds.capabilities.ahead_most));
        number_or_all(&mut plan.ahead, fitted)
    }),
    ("attention", "no more queries than there are", |plan, bounds| {
        fitted(queries(plan)?, |queries| queries.min(bounds.tokens.max(1)))
    }),
    ("attention", "at least {queries} queries", |plan, bounds| {
        fitted(queries(plan)?, |queries| queries.max(bounds.capabilities.queries_least))
    }),
    ("guidance", "there is one pass", |plan, bounds| {
        change_if(bounds.passes < 2, &mut plan.guidance, GuidanceOrder::InTurn)
    }),
    ("samples", "no more than there are", |plan, bounds| {
        let fitted = plan.samples.filter(|samples| *samples < bounds.batch);
        number_or_all(&mut plan.samples, fitted)
    }),
    ("feed-forward", "no more than {parts} parts", |plan, bounds| {
        fitted(&mut plan.feed_forward, |parts| parts.min(bounds.capabilities.parts_most.max(1)))
    }),
    ("reuse", "the user does not allow it", |plan, bounds| {
        let most = bounds.capabilities.reuse_most;
        reuse(plan, |threshold| if most > 0.0 { threshold } else { 0.0 })
    }),
    ("reuse", "no more than the user allows", |plan, bounds| {
        reuse(plan, |threshold| threshold.min(bounds.capabilities.reuse_most))
    }),
];

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

impl Planned for Denoise {
    type Bounds = DenoiseBounds;

    const NONSENSE: &'static [Nonsense<Self>] = NONSENSE;

    const RULES: &'static [Rule<Self>] = RULES;

    fn bounds(question: &Question<'_, Denoise>) -> DenoiseBounds {
        let request = question.request;
        DenoiseBounds {
            batch: request.batch,
            tokens: request.text_tokens.saturating_add(request.image_tokens),
            passes: request.passes,
            capabilities: question.capabilities.clone(),
        }
    }

    fn offer(bounds: &DenoiseBounds) -> &DenoiseCapabilities {
        &bounds.capabilities
    }

    fn values(bounds: &DenoiseBounds) -> Vec<(&'static str, u32)> {
        vec![
            ("{ahead}", bounds.capabilities.ahead_most),
            ("{queries}", bounds.capabilities.queries_least),
            ("{parts}", bounds.capabilities.parts_most),
        ]
    }

    fn breaches(plan: &DenoisePlan, bounds: &DenoiseBounds) -> Vec<&'static str> {
        let capabilities = &bounds.capabilities;
        let dtype = plan.precision.dtype();
        let is_narrow = matches!(dtype, Dtype::Bf16 | Dtype::F16);
        let is_resident = plan.weights == WeightForm::Packed && plan.ahead.is_none();
        let queries = match plan.attention {
            Attention::Fused => None,
            Attention::Pieces { queries } => Some(queries),
        };
        let threshold = plan.reuse.threshold();
        unheld(&[
            ("the type is offered", dtype == Dtype::F32 || capabilities.dtypes.contains(&dtype)),
            ("there is something to mix", plan.precision != Precision::Mixed(Dtype::F32)),
            (
                "products in FP8 or INT8 are offered and possible",
                match plan.products {
                    Products::Precision => true,
                    Products::Fp8 => capabilities.fp8_products && is_narrow && is_resident,
                    Products::Int8 => {
                        capabilities.int8_products && plan.weights == WeightForm::Packed && dtype != Dtype::F16
                    }
                },
            ),
            ("expanded weights stay", plan.weights == WeightForm::Packed || plan.ahead.is_none()),
            (
                "no more blocks are read ahead than offered",
                plan.ahead.is_none_or(|ahead| ahead <= capabilities.ahead_most),
            ),
            ("enough queries at once", queries.is_none_or(|queries| queries >= capabilities.queries_least)),
            ("one pass runs alone", bounds.passes > 1 || plan.guidance == GuidanceOrder::InTurn),
            (
                "samples at once are fewer than all",
                plan.samples.is_none_or(|samples| (1..bounds.batch).contains(&samples)),
            ),
            ("parts are within the offer", (1..=capabilities.parts_most.max(1)).contains(&plan.feed_forward)),
            ("no more is reused than allowed", threshold.is_finite() && threshold <= capabilities.reuse_most),
        ])
    }

    /// Memory use and overflow come from the types, from the weights that are held, and from the
    /// work that runs at once. Plans that differ only in the release of memory or in reuse are the
    /// same plan here.
    fn repeats(plan: &DenoisePlan, attempt: &Attempt<Denoise>) -> bool {
        let held = |plan: &DenoisePlan| DenoisePlan {
            reuse: attempt.plan.reuse,
            release: attempt.plan.release,
            reason: String::new(),
            ..plan.clone()
        };
        held(plan) == held(&attempt.plan)
    }

    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        let size = |request: &Self::Request| {
            let tokens = (request.text_tokens, request.image_tokens);
            (request.batch, request.frames, request.height, request.width, tokens, request.passes)
        };
        one.model == other.model && size(one) == size(other)
    }

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

/// Takes products back to the precision if they are these and don't fit.
fn only_if(plan: &mut DenoisePlan, products: Products, fits: bool) -> Option<Change> {
    change_if(plan.products == products && !fits, &mut plan.products, Products::Precision)
}

fn queries(plan: &mut DenoisePlan) -> Option<&mut u32> {
    match &mut plan.attention {
        Attention::Fused => None,
        Attention::Pieces { queries } => Some(queries),
    }
}

fn reuse(plan: &mut DenoisePlan, fitted: impl FnOnce(f64) -> f64) -> Option<Change> {
    if plan.reuse == StepReuse::Off {
        return None;
    }
    let threshold = plan.reuse.threshold();
    let to = fitted(threshold);
    plan.reuse = if to > 0.0 { plan.reuse.up_to(to) } else { StepReuse::Off };
    (to.to_bits() != threshold.to_bits() || plan.reuse == StepReuse::Off).then(|| said(threshold, to))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fit;

    fn bounds() -> DenoiseBounds {
        let capabilities = DenoiseCapabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            fp8_products: true,
            int8_products: true,
            fused_attention: true,
            queries_least: 16,
            ahead_most: 64,
            parts_most: 64,
            reuse_most: 0.2,
            options: Vec::new(),
        };
        DenoiseBounds { batch: 4, tokens: 4096, passes: 2, capabilities }
    }

    fn checked(plan: &DenoisePlan, bounds: &DenoiseBounds) -> Result<(DenoisePlan, Vec<String>), &'static str> {
        let (mut plan, mut notes) = (plan.clone(), Vec::new());
        fit::<Denoise>(&mut plan, bounds, &mut |note| notes.push(note.to_string()))?;
        Ok((plan, notes))
    }

    #[test]
    fn plans_are_brought_into_bounds_with_a_note_of_each_change() {
        let plain = DenoisePlan::plain();
        assert_eq!(checked(&plain, &bounds()), Ok((plain.clone(), Vec::new())));
        let wild = DenoisePlan {
            precision: Precision::Uniform(Dtype::F16),
            products: Products::Fp8,
            weights: WeightForm::Expanded,
            ahead: Some(900),
            attention: Attention::Pieces { queries: 3 },
            guidance: GuidanceOrder::Together,
            samples: Some(9),
            feed_forward: 1000,
            reuse: StepReuse::Output { threshold: 0.5 },
            ..plain.clone()
        };
        let (plan, notes) = checked(&wild, &bounds()).unwrap();
        assert_eq!(
            notes,
            [
                "precision f16 → f32: not offered on this device",
                "products fp8 → precision: FP8 gives 16 bits, of weights as stored that are on the device",
                "ahead 900 → all: expanded weights stay on the device",
                "attention 3 → 16: at least 16 queries",
                "samples 9 → all: no more than there are",
                "feed-forward 1000 → 64: no more than 64 parts",
                "reuse 0.5 → 0.2: no more than the user allows",
            ]
        );
        assert_eq!(checked(&plan, &bounds()), Ok((plan, Vec::new())), "a checked plan is legal");
        let integers = DenoisePlan { products: Products::Int8, ..plain.clone() };
        assert_eq!(checked(&integers, &bounds()), Ok((integers.clone(), Vec::new())));
        let (plan, notes) = checked(&DenoisePlan { weights: WeightForm::Expanded, ..integers }, &bounds()).unwrap();
        assert_eq!((plan.products, notes.len()), (Products::Precision, 1), "{notes:?}");
        let alone = DenoiseBounds { passes: 1, ..bounds() };
        let forbidden = DenoiseCapabilities { reuse_most: 0.0, fp8_products: false, ..bounds().capabilities };
        let (plan, notes) = checked(&wild, &DenoiseBounds { capabilities: forbidden, ..alone }).unwrap();
        assert_eq!((plan.guidance, plan.reuse), (GuidanceOrder::InTurn, StepReuse::Off));
        assert!(notes.contains(&"reuse 0.5 → 0: the user does not allow it".to_owned()), "{notes:?}");
    }

    #[test]
    fn plans_without_a_meaning_are_refused() {
        let plain = DenoisePlan::plain;
        for plan in [
            DenoisePlan { attention: Attention::Pieces { queries: 0 }, ..plain() },
            DenoisePlan { samples: Some(0), ..plain() },
            DenoisePlan { feed_forward: 0, ..plain() },
            DenoisePlan { reuse: StepReuse::Output { threshold: f64::NAN }, ..plain() },
            DenoisePlan { reuse: StepReuse::Output { threshold: f64::INFINITY }, ..plain() },
            DenoisePlan { reuse: StepReuse::Output { threshold: -0.1 }, ..plain() },
        ] {
            assert!(checked(&plan, &bounds()).is_err(), "{plan:?}");
        }
    }

    #[test]
    fn a_plan_repeats_another_that_holds_as_much() {
        let plan = DenoisePlan::plain();
        let attempt = Attempt { plan: plan.clone(), failure: Failure::OutOfMemory { bytes: 1 } };
        let again = DenoisePlan { reason: "other".into(), release: tilewright_plan::Release::EachStep, ..plan.clone() };
        assert!(Denoise::repeats(&again, &attempt));
        assert!(!Denoise::repeats(&DenoisePlan { ahead: Some(1), ..plan }, &attempt));
    }
}
