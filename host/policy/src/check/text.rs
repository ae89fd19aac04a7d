//! The rules of plans of text encoders' runs.

use tilewright_plan::{Attempt, Dtype, Failure, Precision, Question, Text, TextCapabilities, TextPlan, WeightForm};

use super::{Bounded, Predicate, Rule, change, rank_precision};

static RULES: &[Rule<Text>] = &[
    Rule {
        subject: "precision",
        because: "not offered",
        fit: |plan, capabilities| match plan.precision.dtype() {
            Dtype::F32 => None,
            dtype if capabilities.dtypes.contains(&dtype) => None,
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
        subject: "place",
        because: "not offered",
        fit: |plan, capabilities| match capabilities.places.contains(&plan.place) {
            true => None,
            false => change(&mut plan.place, capabilities.usual_place()),
        },
    },
    Rule {
        subject: "weights",
        because: "not offered",
        fit: |plan, capabilities| match capabilities.weights.contains(&plan.weights) {
            true => None,
            false => change(&mut plan.weights, WeightForm::Packed),
        },
    },
    Rule {
        subject: "kept",
        because: "the encoder is not needed again in this process",
        fit: |plan, capabilities| if capabilities.kept { None } else { change(&mut plan.kept, false) },
    },
];

/// Every combination of a plan's parts has a meaning.
const NONSENSE: &[(Predicate<TextPlan>, &str)] = &[];

impl Bounded for Text {
    type Bounds = TextCapabilities;

    fn bounds(question: &Question<'_, Text>) -> TextCapabilities {
        question.capabilities.clone()
    }

    fn capabilities(capabilities: &TextCapabilities) -> &TextCapabilities {
        capabilities
    }

    fn nonsense() -> &'static [(Predicate<TextPlan>, &'static str)] {
        NONSENSE
    }

    fn rules() -> &'static [Rule<Text>] {
        RULES
    }

    fn values(_: &TextCapabilities) -> Vec<(&'static str, u32)> {
        Vec::new()
    }

    /// Memory use comes from the type, the place and the form of weights, and overflow from the
    /// type: a plan that stays loaded afterwards is the same plan here.
    fn repeats(plan: &TextPlan, attempt: &Attempt<Text>) -> bool {
        let tried = &attempt.plan;
        match attempt.failure {
            Failure::NonFinite { .. } => rank_precision(plan.precision) <= rank_precision(tried.precision),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                (plan.precision, plan.place, plan.weights, &plan.options)
                    == (tried.precision, tried.place, tried.weights, &tried.options)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Options, Place};

    use super::*;
    use crate::check::fit;

    fn capabilities() -> TextCapabilities {
        TextCapabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            places: vec![Place::Host],
            weights: vec![WeightForm::Packed, WeightForm::Expanded],
            kept: false,
            options: Vec::new(),
        }
    }

    fn checked(plan: &TextPlan, capabilities: &TextCapabilities) -> (TextPlan, Vec<String>) {
        let (mut plan, mut notes) = (plan.clone(), Vec::new());
        fit::<Text>(&mut plan, capabilities, &mut |note| notes.push(note.to_string())).unwrap();
        (plan, notes)
    }

    #[test]
    fn plans_are_brought_into_bounds_with_a_note_of_each_change() {
        let plain = TextPlan::plain(Place::Host);
        assert_eq!(checked(&plain, &capabilities()), (plain.clone(), Vec::new()));
        let wild = TextPlan {
            precision: Precision::Uniform(Dtype::F16),
            place: Place::Device,
            weights: WeightForm::Expanded,
            kept: true,
            options: Options::none(),
            reason: String::new(),
        };
        let packed = TextCapabilities { weights: vec![WeightForm::Packed], ..capabilities() };
        let (plan, notes) = checked(&wild, &packed);
        assert_eq!(
            notes,
            [
                "precision f16 → f32: not offered",
                "place device → host: not offered",
                "weights expanded → packed: not offered",
                "kept true → false: the encoder is not needed again in this process",
            ]
        );
        assert_eq!(checked(&plan, &packed), (plan, Vec::new()), "a checked plan is legal");
        let mixed = TextPlan { precision: Precision::Mixed(Dtype::F32), ..plain };
        assert_eq!(checked(&mixed, &capabilities()).1, ["precision mixed f32 → f32: nothing to mix"]);
    }

    #[test]
    fn a_plan_repeats_another_that_holds_as_much_or_keeps_no_more_of_values() {
        let plan = TextPlan::plain(Place::Device);
        let failed = |plan: &TextPlan, failure| Attempt { plan: plan.clone(), failure };
        let memory = failed(&plan, Failure::OutOfMemory { bytes: 1 });
        assert!(Text::repeats(&TextPlan { kept: true, reason: "other".into(), ..plan.clone() }, &memory));
        assert!(!Text::repeats(&TextPlan { place: Place::Host, ..plan.clone() }, &memory));
        let narrow = TextPlan { precision: Precision::Mixed(Dtype::Bf16), ..plan.clone() };
        let overflowed = failed(&narrow, Failure::NonFinite { values: 1 });
        assert!(Text::repeats(&TextPlan { weights: WeightForm::Expanded, ..narrow.clone() }, &overflowed));
        assert!(!Text::repeats(&plan, &overflowed));
    }
}
