//! Samples.

use tilewright_plan::{Attention, Denoise, DenoiseOutcome, DenoisePlan, DenoiseRequest, Work};

use super::{differing, extents, in_words, milliseconds, release};
use crate::{
    compare::{Compared, Field},
    replay::Replayed,
    simulate::Simulated,
};

impl Compared for Denoise {
    fn fields(a: &DenoisePlan, b: &DenoisePlan) -> Vec<Field> {
        let all = |number: Option<u32>| number.map_or_else(|| "all".to_owned(), |number| number.to_string());
        let attention = |attention: Attention| match attention {
            Attention::Fused => "fused".to_owned(),
            Attention::Pieces { queries } => queries.to_string(),
        };
        differing([
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("products", a.products.to_string(), b.products.to_string()),
            ("weights", format!("{:?}", a.weights).to_lowercase(), format!("{:?}", b.weights).to_lowercase()),
            ("ahead", all(a.ahead), all(b.ahead)),
            ("attention", attention(a.attention), attention(b.attention)),
            ("guidance", a.guidance.to_string(), b.guidance.to_string()),
            ("samples", all(a.samples), all(b.samples)),
            ("feed-forward", a.feed_forward.to_string(), b.feed_forward.to_string()),
            ("reuse", format!("{:?}", a.reuse), format!("{:?}", b.reuse)),
            ("release", release(a.release), release(b.release)),
        ])
    }

    fn name(DenoiseRequest { model, batch, frames, height, width, .. }: &DenoiseRequest) -> String {
        format!("{} latent {}", model.family, extents([*width, *height, *frames, *batch]))
    }
}

impl Replayed for Denoise {
    fn describe_fully(plan: &DenoisePlan) -> String {
        format!("{plan}, release {}, \"{}\"", plan.release, plan.reason)
    }

    /// Prices are of a step, whatever the number of steps.
    fn cost_key(request: &DenoiseRequest) -> String {
        let DenoiseRequest { model, batch, frames, height, width, text_tokens, passes, sampler, .. } = request;
        format!("{model:?} {batch} {frames} {height} {width} {text_tokens} {passes} {sampler}")
    }
}

impl Simulated for Denoise {
    const KEY: &'static str = "samples";
    const HEADING: &'static str = "samples";

    fn is_whole(plan: &DenoisePlan) -> bool {
        Self::is_same_work(plan, &DenoisePlan::plain())
    }

    fn is_priced_alike(one: &DenoisePlan, other: &DenoisePlan) -> bool {
        DenoisePlan { release: other.release, ..Self::without_reason(one) } == Self::without_reason(other)
    }

    fn words(request: &DenoiseRequest) -> String {
        let (extents, family) = Self::size(request);
        let passes = if request.passes == 2 { ", guided" } else { "" };
        format!("latent {}{passes}", in_words(extents, family))
    }

    fn table_figures(outcome: &DenoiseOutcome) -> (f64, u64) {
        (outcome.step.as_secs_f64() * 1e3, outcome.held_bytes())
    }

    fn table_outcome(
        request: &DenoiseRequest,
        cost: Option<Self::Cost>,
        elapsed_ms: f64,
        held_bytes: u64,
        attempts: u32,
    ) -> DenoiseOutcome {
        let step = milliseconds(elapsed_ms);
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes).min(held_bytes);
        DenoiseOutcome {
            elapsed: step.saturating_mul(request.steps),
            step,
            peak_bytes: held_bytes - weights_bytes,
            weights_bytes,
            moved_bytes: cost.map_or(0, |cost| cost.moved_bytes.saturating_mul(u64::from(request.steps))),
            attempts,
            ..DenoiseOutcome::default()
        }
    }
}
