//! Runs of text encoders.

use std::time::Duration;

use tilewright_plan::{Dtype, Precision, Text, TextCost, TextOutcome, TextPlan, TextRequest, WeightForm, Work};

use super::{differing, milliseconds};
use crate::{
    compare::{Compared, Field},
    replay::Replayed,
    simulate::Simulated,
};

impl Compared for Text {
    fn fields(a: &TextPlan, b: &TextPlan) -> Vec<Field> {
        differing([
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("place", a.place.to_string(), b.place.to_string()),
            ("weights", a.weights.to_string(), b.weights.to_string()),
            ("kept", a.kept.to_string(), b.kept.to_string()),
        ])
    }

    fn name(request: &TextRequest) -> String {
        Self::words(request)
    }

    fn time_with_loading(cost: &TextCost) -> Duration {
        cost.elapsed.saturating_add(cost.load)
    }
}

impl Replayed for Text {
    fn describe_fully(plan: &TextPlan) -> String {
        format!("{plan}, \"{}\"", plan.reason)
    }

    fn cost_key(TextRequest { model, tokens, .. }: &TextRequest) -> String {
        format!("{model:?} {tokens:?}")
    }
}

impl Simulated for Text {
    const KEY: &'static str = "texts";
    const HEADING: &'static str = "text";

    fn is_whole(plan: &TextPlan) -> bool {
        (plan.precision, plan.weights) == (Precision::Uniform(Dtype::F32), WeightForm::Packed)
    }

    fn is_priced_alike(one: &TextPlan, other: &TextPlan) -> bool {
        TextPlan { kept: other.kept, ..Self::without_reason(one) } == Self::without_reason(other)
    }

    fn words(request: &TextRequest) -> String {
        let tokens = request.all_tokens();
        let texts =
            if request.tokens.len() > 1 { format!(" in {} texts", request.tokens.len()) } else { String::new() };
        format!("{} {tokens} tokens{texts}", request.model.kind)
    }

    fn size(request: &TextRequest) -> ([u32; 4], &str) {
        let tokens = u32::try_from(request.all_tokens()).unwrap_or(u32::MAX);
        ([tokens, 1, 1, request.tokens.len() as u32], &request.model.kind)
    }

    fn table_figures(outcome: &TextOutcome) -> (f64, u64) {
        ((outcome.elapsed + outcome.load).as_secs_f64() * 1e3, outcome.held_bytes())
    }

    fn table_outcome(
        _: &TextRequest,
        cost: Option<Self::Cost>,
        elapsed_ms: f64,
        held_bytes: u64,
        attempts: u32,
    ) -> TextOutcome {
        let all = milliseconds(elapsed_ms);
        let load = cost.map_or(Duration::ZERO, |cost| cost.load).min(all);
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes).min(held_bytes);
        TextOutcome {
            elapsed: all - load,
            load,
            peak_bytes: held_bytes - weights_bytes,
            weights_bytes,
            host_bytes: cost.map_or(0, |cost| cost.host_bytes),
            attempts,
            ..TextOutcome::default()
        }
    }
}
