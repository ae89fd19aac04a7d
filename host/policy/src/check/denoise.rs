//! The rules of plans of samples.

use tilewright_plan::{
    Attempt, Attention, Denoise, DenoiseCapabilities, DenoisePlan, Dtype, GuidanceOrder, Products, Question, StepReuse,
    WeightForm,
};

use super::{Bounded, Change, Nonsense, Rule, change_if, fitted, number_or_all, offered, said, unmixed};
use crate::oracle;

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

impl Bounded for Denoise {
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
        oracle::sample_breaches(plan, bounds)
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

#[cfg(test)]
mod tests {
    use tilewright_plan::{Failure, Precision};

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
