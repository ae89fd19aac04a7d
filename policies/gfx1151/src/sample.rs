//! The published settings for samples.

use tilewright_sdk::{
    Dtype, Precision,
    denoise::{self, Attempt, Attention, Guidance, Plan, Request, Residency},
};

/// The factor on what attention is expected to hold.
const ATTENTION: f64 = 1.5;

/// Queries at once, where attention in one piece would not fit.
const QUERIES: [u32; 3] = [4096, 1024, 256];

pub fn decide(request: &Request, attempts: &[Attempt], share: f64) -> Result<Plan, String> {
    if attempts.last().is_some_and(Attempt::is_hopeless) {
        return Err("not finite in f32".into());
    }
    let overflowed = attempts.iter().any(Attempt::overflowed);
    let limit = request.limit_bytes.min((request.device.total_bytes as f64 * share) as u64);
    let fits = |plan: &Plan| {
        let is_new = !attempts.iter().any(|attempt| plan.repeats(attempt));
        is_new && denoise::estimate_one(plan).is_ok_and(|cost| held(&cost, plan) <= limit)
    };
    let plan = candidates(request, overflowed).find(fits);
    let reason = if attempts.is_empty() { "the published settings" } else { "smaller after the failure" };
    plan.map(|plan| plan.because(reason)).ok_or_else(|| "nothing fits into its share of memory".into())
}

/// Bytes that a plan holds, where attention in products takes half as much again as expected.
fn held(cost: &denoise::Cost, plan: &Plan) -> u64 {
    let factor = if matches!(plan.attention, Attention::Pieces(_)) { ATTENTION } else { 1.0 };
    (cost.memory.peak_bytes as f64 * factor) as u64 + cost.memory.weights_bytes
}

/// Plans in the order in which they are tried: types, then residencies, then attention and passes.
fn candidates(request: &Request, overflowed: bool) -> impl Iterator<Item = Plan> + '_ {
    let compatible = request.is_quantized();
    let narrow = Some(Dtype::Bf16).filter(|dtype| !overflowed && request.offers(*dtype));
    let types = std::iter::once(Dtype::F32).chain(narrow);
    let fused = Some(Attention::Fused).filter(|_| request.capabilities.fused_attention);
    let ways: Vec<Attention> = fused.into_iter().chain(QUERIES.map(Attention::Pieces)).collect();
    let together: &[Guidance] = match request.passes > 1 && !compatible {
        true => &[Guidance::Together, Guidance::InTurn],
        false => &[Guidance::InTurn],
    };
    let plans = types.flat_map(|dtype| {
        let plain = Plan::plain(Precision::Uniform(dtype)).reusing(request);
        [Residency::Resident, Residency::Streamed(1), Residency::Host]
            .map(|residency| Plan { residency, ..plain.clone() })
    });
    plans.flat_map(move |plan| {
        let ways = ways.clone().into_iter();
        let plans = ways.flat_map(move |attention| together.iter().map(move |guidance| (attention, *guidance)));
        plans.map(move |(attention, guidance)| Plan { attention, guidance, ..plan.clone() }).collect::<Vec<_>>()
    })
}
