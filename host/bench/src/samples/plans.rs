//! The plans of a sweep, and their spelling for the `fixed` policy.

use tilewright_plan::{
    Attention, DenoiseCapabilities, DenoisePlan, DenoiseRequest, Dtype, GuidanceOrder, LEAST_QUERIES, Precision,
    Products, Release, StepReuse, WeightForm,
};

use crate::Spelling;

/// The residencies that are measured: the form of weights, and blocks that are read ahead.
const RESIDENCIES: [(WeightForm, Option<u32>); 4] = [
    (WeightForm::Packed, None),
    (WeightForm::Packed, Some(1)),
    (WeightForm::Packed, Some(0)),
    (WeightForm::Expanded, None),
];

/// The parts of a feed-forward layer that are measured.
const FEED_FORWARD: [u32; 3] = [1, 4, 16];

/// The queries of a piece of attention that are measured.
const QUERIES: u32 = 256;

/// Every plan of the list that a request has a use for: what matters most first. On a CPU, plans in
/// narrow types only if `any_precision`.
pub fn list(request: &DenoiseRequest, capabilities: &DenoiseCapabilities, any_precision: bool) -> Vec<DenoisePlan> {
    let mut dtypes = vec![Dtype::F32];
    if any_precision {
        dtypes.extend(capabilities.dtypes.iter().filter(|dtype| **dtype == Dtype::Bf16));
    }
    let pieces = Attention::Pieces { queries: QUERIES.max(LEAST_QUERIES).max(capabilities.queries_least) };
    let attentions =
        if request.image_tokens > QUERIES { vec![Attention::Fused, pieces] } else { vec![Attention::Fused] };
    let orders = match request.passes {
        2 => vec![GuidanceOrder::InTurn, GuidanceOrder::Together],
        _ => vec![GuidanceOrder::InTurn],
    };
    let samples = if request.batch > 1 { vec![None, Some(1)] } else { vec![None] };
    let mut plans = Vec::new();
    for dtype in dtypes {
        for guidance in &orders {
            for samples in &samples {
                for (weights, ahead) in RESIDENCIES {
                    for feed_forward in FEED_FORWARD {
                        for attention in &attentions {
                            plans.push(DenoisePlan {
                                precision: Precision::Uniform(dtype),
                                guidance: *guidance,
                                samples: *samples,
                                weights,
                                ahead,
                                feed_forward,
                                attention: *attention,
                                ..DenoisePlan::plain()
                            });
                        }
                    }
                }
            }
        }
    }
    plans
}

/// The `fixed` policy's settings that make exactly this plan.
pub fn spelling(plan: &DenoisePlan) -> Spelling {
    let mut settings = Vec::new();
    let mut set = |key: &str, value: String| settings.push((key.to_owned(), value));
    set(
        "precision",
        match plan.precision {
            Precision::Uniform(dtype) => dtype.to_string(),
            Precision::Mixed(dtype) => format!("mixed-{dtype}"),
        },
    );
    if plan.products != Products::Precision {
        set("products", plan.products.to_string());
    }
    set("weights", if plan.weights == WeightForm::Packed { "packed" } else { "expanded" }.into());
    set("ahead", plan.ahead.map_or_else(|| "all".into(), |blocks| blocks.to_string()));
    if let Attention::Pieces { queries } = plan.attention {
        set("attention", queries.to_string());
    }
    set("guidance", if plan.guidance == GuidanceOrder::Together { "together" } else { "in-turn" }.into());
    if let Some(samples) = plan.samples {
        set("samples", samples.to_string());
    }
    set("feed-forward", plan.feed_forward.to_string());
    let reuse = match plan.reuse {
        StepReuse::Off => "off",
        StepReuse::Output { .. } => "output",
        StepReuse::FirstBlock { .. } => "first-block",
    };
    set("reuse", reuse.into());
    match plan.release {
        Release::Keep => {}
        Release::AtEnd => set("release", "at-end".into()),
        Release::EachStep => set("release", "each-step".into()),
    }
    Spelling { policy: "fixed".into(), settings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_spelled_for_the_fixed_policy() {
        let plan = DenoisePlan {
            weights: WeightForm::Packed,
            ahead: Some(1),
            attention: Attention::Pieces { queries: 256 },
            samples: Some(2),
            feed_forward: 4,
            release: Release::AtEnd,
            ..DenoisePlan::plain()
        };
        assert_eq!(
            spelling(&plan).to_string(),
            "fixed:precision=f32,weights=packed,ahead=1,attention=256,guidance=in-turn,samples=2,feed-forward=4,reuse=off,release=at-end"
        );
    }
}
