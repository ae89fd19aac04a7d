//! Runs of text encoders. The fallback plan is f32, and bf16 with sums in f32 where that does not
//! fit or fails; on the device, and on the host's processor where no type fits there. Sums stay
//! f32, since T5's overflow in f16. Nothing is kept afterwards.

use tilewright_plan::{
    Attempt, CostModel, Dtype, Failure, Place, Precision, Question, Text, TextCapabilities, TextPlan, WeightForm,
};

use super::{Planned, unheld};
use crate::{
    check::{Nonsense, Rule, change_if, offered, rank_precision, unmixed},
    fallback::Fitting,
};

/// Types in the order in which they are tried.
const PRECISIONS: [Precision; 2] = [Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16)];

impl Planned for Text {
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
        let dtype = plan.precision.dtype();
        unheld(&[
            ("the type is offered", dtype == Dtype::F32 || capabilities.dtypes.contains(&dtype)),
            ("there is something to mix", plan.precision != Precision::Mixed(Dtype::F32)),
            ("the place is offered", capabilities.places.contains(&plan.place) || plan.place == Place::Host),
            (
                "the form of weights is offered",
                plan.weights == WeightForm::Packed || capabilities.weights.contains(&plan.weights),
            ),
            ("it is kept where it can be", capabilities.kept || !plan.kept),
        ])
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

    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        one.model == other.model && one.tokens == other.tokens
    }

    fn host_plan(question: &Question<'_, Self>, costs: &dyn CostModel<Self>) -> TextPlan {
        match next(question, costs) {
            Some(plan) => plan,
            // Nothing is left to try: the last plan says so by failing again.
            None => {
                let plain = || TextPlan::plain(question.capabilities.usual_place());
                question.attempts.last().map_or_else(plain, |attempt| attempt.plan.clone())
            }
        }
    }

    fn last_resort(question: &Question<'_, Self>, costs: &dyn CostModel<Self>) -> Option<TextPlan> {
        next(question, costs)
    }
}

/// The first plan that fits and has not failed; if none fits, the one that holds least, since
/// estimates may be too high. `None` if all have failed.
fn next(question: &Question<'_, Text>, costs: &dyn CostModel<Text>) -> Option<TextPlan> {
    let Question { capabilities, attempts, .. } = *question;
    let fitting = Fitting::new(question, costs);
    let reason = match attempts.last() {
        None => "native default".to_owned(),
        Some(last) => format!("native default: after {}", last.failure),
    };
    let mut places = capabilities.places.clone();
    places.sort_by_key(|place| *place != capabilities.usual_place());
    let plans = places.into_iter().flat_map(|place| {
        PRECISIONS.map(|precision| TextPlan { precision, reason: reason.clone(), ..TextPlan::plain(place) })
    });
    let legal = plans.filter_map(|plan| fitting.make_legal(plan));
    let left: Vec<TextPlan> = legal.filter(|plan| fitting.is_new(plan)).collect();
    let first = left.iter().find(|plan| fitting.may_fit(plan)).cloned();
    first.or_else(|| left.into_iter().min_by_key(|plan| fitting.held(plan).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tilewright_plan::{Backend, Device, EncoderModel, HostMemory, Objective, Options, TextCost, TextRequest};

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

    /// Eight bytes of f32 and six in bf16, or none of the device on the host.
    struct Prices;

    impl CostModel<Text> for Prices {
        fn estimate_one(&self, plan: &TextPlan) -> Result<TextCost, String> {
            let held = if plan.precision.dtype() == Dtype::F32 { 8 } else { 6 };
            let [device, host] = if plan.place == Place::Host { [0, held] } else { [held, 0] };
            let (elapsed, load) = (Duration::from_secs(1), Duration::ZERO);
            Ok(TextCost { elapsed, load, peak_bytes: device, weights_bytes: 0, host_bytes: host })
        }
    }

    fn ask<T>(
        memory_limit: u64,
        places: &[Place],
        attempts: &[Attempt<Text>],
        answer: fn(&Question<'_, Text>, &dyn CostModel<Text>) -> T,
    ) -> T {
        let model = EncoderModel {
            kind: "t5-xxl".into(),
            stored_types: Vec::new(),
            parameter_bytes: 1,
            blocks: 24,
            width: 4096,
            head_width: 64,
        };
        let request = TextRequest {
            model,
            tokens: vec![256],
            memory_limit,
            objective: Objective::Balanced,
            host: HostMemory::default(),
        };
        let device = Device {
            backend: Backend::Cuda,
            name: "test".into(),
            arch: "test".into(),
            compute_units: 1,
            total_bytes: 1 << 40,
            free_bytes: 1 << 40,
            unified: false,
            fast_dtypes: vec![],
            hints: Vec::new(),
        };
        let capabilities = TextCapabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            places: places.to_vec(),
            weights: vec![WeightForm::Packed],
            kept: false,
            options: Vec::new(),
        };
        answer(&Question::text(&request, &device, &capabilities).after(attempts), &Prices)
    }

    const BOTH: &[Place] = &[Place::Device, Place::Host];

    #[test]
    fn f32_comes_first_and_the_host_last() {
        let at = |limit, places| {
            let plan = ask(limit, places, &[], Text::host_plan);
            (plan.precision.dtype(), plan.place)
        };
        assert_eq!(at(8, BOTH), (Dtype::F32, Place::Device));
        assert_eq!(at(7, BOTH), (Dtype::Bf16, Place::Device));
        assert_eq!(at(5, BOTH), (Dtype::F32, Place::Host));
        assert_eq!(at(5, &[Place::Device]), (Dtype::Bf16, Place::Device), "the leanest, since estimates may be high");
        assert_eq!(at(8, &[Place::Host]), (Dtype::F32, Place::Host));
    }

    #[test]
    fn what_failed_is_not_tried_again() {
        let failed = |plan: TextPlan, failure| Attempt { plan, failure };
        let memory = Failure::OutOfMemory { bytes: 1 };
        let mut attempts = Vec::new();
        let mut tried = Vec::new();
        while let Some(plan) = ask(8, BOTH, &attempts, Text::last_resort) {
            tried.push((plan.precision.dtype(), plan.place));
            attempts.push(failed(plan, memory));
        }
        let (wide, narrow) = (Dtype::F32, Dtype::Bf16);
        let places = [(wide, Place::Device), (narrow, Place::Device), (wide, Place::Host), (narrow, Place::Host)];
        assert_eq!(tried, places);
        let narrow = TextPlan { precision: PRECISIONS[1], ..TextPlan::plain(Place::Device) };
        let wider = ask(6, BOTH, &[failed(narrow, Failure::NonFinite { values: 1 })], Text::host_plan);
        assert_eq!((wider.precision, wider.place), (PRECISIONS[0], Place::Host));
        let wide = TextPlan::plain(Place::Device);
        assert_eq!(ask(9, BOTH, &[failed(wide, Failure::NonFinite { values: 1 })], Text::last_resort), None);
    }
}
