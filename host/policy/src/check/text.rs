//! The rules of plans of text encoders' runs.

use tilewright_plan::{Attempt, Failure, Question, Text, TextCapabilities, TextPlan, WeightForm};

use super::{Bounded, Nonsense, Rule, change_if, offered, rank_precision, unmixed};
use crate::oracle;

impl Bounded for Text {
    type Bounds = TextCapabilities;

    /// Every combination of a plan's parts has a meaning.
    const NONSENSE: &'static [Nonsense<Self>] = &[];

    const RULES: &'static [Rule<Self>] = &[
        ("precision", "not offered", |plan, capabilities| offered(&mut plan.precision, &capabilities.dtypes)),
        ("precision", "nothing to mix", |plan, _| unmixed(&mut plan.precision)),
        ("place", "not offered", |plan, capabilities| {
            change_if(!capabilities.places.contains(&plan.place), &mut plan.place, capabilities.usual_place())
        }),
        ("weights", "not offered", |plan, capabilities| {
            change_if(!capabilities.weights.contains(&plan.weights), &mut plan.weights, WeightForm::Packed)
        }),
        ("kept", "the encoder is not needed again in this process", |plan, capabilities| {
            change_if(!capabilities.kept, &mut plan.kept, false)
        }),
    ];

    fn bounds(question: &Question<'_, Text>) -> TextCapabilities {
        question.capabilities.clone()
    }

    fn offer(capabilities: &TextCapabilities) -> &TextCapabilities {
        capabilities
    }

    fn values(_: &TextCapabilities) -> Vec<(&'static str, u32)> {
        Vec::new()
    }

    fn breaches(plan: &TextPlan, capabilities: &TextCapabilities) -> Vec<&'static str> {
        oracle::text_breaches(plan, capabilities)
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
    use tilewright_plan::{Dtype, Options, Place, Precision};

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
