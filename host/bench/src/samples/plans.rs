//! The plans of a sweep.

use tilewright_plan::{
    Attention, DenoiseCapabilities, DenoisePlan, DenoiseRequest, Dtype, GuidanceOrder, LEAST_QUERIES, Precision,
    WeightForm,
};

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
