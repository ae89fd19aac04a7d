//! The rules of plans of samples.

use std::fmt::Display;

use tilewright_plan::{
    Attempt, Attention, Denoise, DenoiseCapabilities, DenoisePlan, Dtype, GuidanceOrder, Precision, Products, Question,
    StepReuse, WeightForm,
};

use super::{Bounded, Change, Predicate, Rule, change, said};

/// The ranges that a sample's plan has to lie in.
#[derive(Clone, Debug)]
pub(crate) struct DenoiseBounds {
    pub batch: u32,
    pub tokens: u32,
    pub passes: u32,
    pub capabilities: DenoiseCapabilities,
}

const NONSENSE: &[(Predicate<DenoisePlan>, &str)] = &[
    (|plan| plan.attention == Attention::Pieces { queries: 0 }, "attention of no queries"),
    (|plan| plan.samples == Some(0), "no samples at once"),
    (|plan| plan.feed_forward == 0, "a feed-forward layer in no parts"),
    (
        |plan| !(plan.reuse.threshold() >= 0.0 && plan.reuse.threshold().is_finite()),
        "a reuse that is no part of the output",
    ),
];

static RULES: &[Rule<Denoise>] = &[
    Rule {
        subject: "precision",
        because: "not offered on this device",
        fit: |plan, bounds| match plan.precision.dtype() {
            Dtype::F32 => None,
            dtype if bounds.capabilities.dtypes.contains(&dtype) => None,
            _ => change(&mut plan.precision, Precision::Uniform(Dtype::F32)),
        },
    },
    Rule {
        subject: "precision",
        because: "nothing to mix",
        fit: |plan, _| match plan.precision {
            Precision::Mixed(Dtype::F32) => change(&mut plan.precision, Precision::Uniform(Dtype::F32)),
            _ => None,
        },
    },
    Rule {
        subject: "products",
        because: "FP8 needs a device that has it, and weights in f8_e4m3",
        fit: |plan, bounds| only_if(plan, Products::Fp8, bounds.capabilities.fp8_products),
    },
    Rule {
        subject: "products",
        because: "INT8 needs a processor that has it, and weights in blocks of integers",
        fit: |plan, bounds| only_if(plan, Products::Int8, bounds.capabilities.int8_products),
    },
    Rule {
        subject: "products",
        because: "FP8 gives 16 bits, of weights as stored that are on the device",
        fit: |plan, _| {
            let is_narrow = matches!(plan.precision.dtype(), Dtype::Bf16 | Dtype::F16);
            let fits = is_narrow && plan.weights == WeightForm::Packed && plan.ahead.is_none();
            only_if(plan, Products::Fp8, fits)
        },
    },
    Rule {
        subject: "products",
        because: "INT8 takes weights as stored, beside f32 or bf16",
        fit: |plan, _| {
            let fits = plan.weights == WeightForm::Packed && plan.precision.dtype() != Dtype::F16;
            only_if(plan, Products::Int8, fits)
        },
    },
    Rule {
        subject: "ahead",
        because: "expanded weights stay on the device",
        fit: |plan, _| match plan.weights {
            WeightForm::Expanded => ahead(plan, None),
            WeightForm::Packed => None,
        },
    },
    Rule {
        subject: "ahead",
        because: "no more than {ahead} blocks",
        fit: |plan, bounds| {
            let most = bounds.capabilities.ahead_most;
            let fitted = plan.ahead.map(|blocks| blocks.min(most));
            ahead(plan, fitted)
        },
    },
    Rule {
        subject: "attention",
        because: "no more queries than there are",
        fit: |plan, bounds| queries(plan, |queries| queries.min(bounds.tokens.max(1))),
    },
    Rule {
        subject: "attention",
        because: "at least {queries} queries",
        fit: |plan, bounds| queries(plan, |queries| queries.max(bounds.capabilities.queries_least)),
    },
    Rule {
        subject: "guidance",
        because: "there is one pass",
        fit: |plan, bounds| named(&mut plan.guidance, GuidanceOrder::InTurn, |_| bounds.passes < 2),
    },
    Rule {
        subject: "samples",
        because: "no more than there are",
        fit: |plan, bounds| {
            let fitted = plan.samples.filter(|samples| *samples < bounds.batch);
            let words = |samples: Option<u32>| samples.map_or("all".to_owned(), |samples| samples.to_string());
            let from = std::mem::replace(&mut plan.samples, fitted);
            (from != fitted).then(|| said(words(from), words(fitted)))
        },
    },
    Rule {
        subject: "feed-forward",
        because: "no more than {parts} parts",
        fit: |plan, bounds| {
            let fitted = plan.feed_forward.min(bounds.capabilities.parts_most.max(1));
            change(&mut plan.feed_forward, fitted)
        },
    },
    Rule {
        subject: "reuse",
        because: "the user does not allow it",
        fit: |plan, bounds| {
            let most = bounds.capabilities.reuse_most;
            reuse(plan, |threshold| if most > 0.0 { threshold } else { 0.0 })
        },
    },
    Rule {
        subject: "reuse",
        because: "no more than the user allows",
        fit: |plan, bounds| reuse(plan, |threshold| threshold.min(bounds.capabilities.reuse_most)),
    },
];

impl Bounded for Denoise {
    type Bounds = DenoiseBounds;

    fn bounds(question: &Question<'_, Denoise>) -> DenoiseBounds {
        let request = question.request;
        DenoiseBounds {
            batch: request.batch,
            tokens: request.text_tokens.saturating_add(request.image_tokens),
            passes: request.passes,
            capabilities: question.capabilities.clone(),
        }
    }

    fn capabilities(bounds: &DenoiseBounds) -> &DenoiseCapabilities {
        &bounds.capabilities
    }

    fn nonsense() -> &'static [(Predicate<DenoisePlan>, &'static str)] {
        NONSENSE
    }

    fn rules() -> &'static [Rule<Denoise>] {
        RULES
    }

    fn values(bounds: &DenoiseBounds) -> Vec<(&'static str, u32)> {
        vec![
            ("{ahead}", bounds.capabilities.ahead_most),
            ("{queries}", bounds.capabilities.queries_least),
            ("{parts}", bounds.capabilities.parts_most),
        ]
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

/// Changes a part that has a name in records.
fn named<T: Copy + PartialEq + Display>(place: &mut T, to: T, applies: impl FnOnce(T) -> bool) -> Option<Change> {
    if *place == to || !applies(*place) {
        return None;
    }
    change(place, to)
}

/// Takes products back to the precision if they are these and don't fit.
fn only_if(plan: &mut DenoisePlan, products: Products, fits: bool) -> Option<Change> {
    named(&mut plan.products, Products::Precision, |asked| asked == products && !fits)
}

fn ahead(plan: &mut DenoisePlan, to: Option<u32>) -> Option<Change> {
    let words = |ahead: Option<u32>| ahead.map_or("all".to_owned(), |blocks| blocks.to_string());
    let from = std::mem::replace(&mut plan.ahead, to);
    (from != to).then(|| said(words(from), words(to)))
}

fn queries(plan: &mut DenoisePlan, fitted: impl FnOnce(u32) -> u32) -> Option<Change> {
    match &mut plan.attention {
        Attention::Fused => None,
        Attention::Pieces { queries } => {
            let to = fitted(*queries);
            change(queries, to)
        }
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
    use tilewright_plan::Failure;

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
