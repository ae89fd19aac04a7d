//! The host's own plan of a text encoder's run: f32, and bf16 with sums in f32 where that does not
//! fit or fails; on the device, and on the host's processor where no type fits there. Sums stay
//! f32, since T5's overflow in f16. Nothing is kept afterwards.

use tilewright_plan::{CostModel, Dtype, Precision, Question, Text, TextPlan};

use super::{Fitting, HostPlans};

/// Types in the order in which they are tried.
const PRECISIONS: [Precision; 2] = [Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16)];

impl HostPlans for Text {
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

    use tilewright_plan::{
        Attempt, Backend, Device, EncoderModel, Failure, HostMemory, Objective, Place, TextCapabilities, TextCost,
        TextRequest, Trial, WeightForm,
    };

    use super::*;

    /// Eight bytes of f32 and six in bf16, or none of the device on the host.
    struct Prices;

    impl CostModel<Text> for Prices {
        fn estimate(&self, plans: &[TextPlan]) -> Vec<Result<TextCost, String>> {
            let price = |plan: &TextPlan| {
                let held = if plan.precision.dtype() == Dtype::F32 { 8 } else { 6 };
                let [device, host] = if plan.place == Place::Host { [0, held] } else { [held, 0] };
                let (elapsed, load) = (Duration::from_secs(1), Duration::ZERO);
                Ok(TextCost { elapsed, load, peak_bytes: device, weights_bytes: 0, host_bytes: host })
            };
            plans.iter().map(price).collect()
        }

        fn trials(&self, _most: u32) -> Vec<Trial<Text>> {
            Vec::new()
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
