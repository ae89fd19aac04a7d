//! Samples: everything on the device if that fits into memory, streamed and divided if it doesn't.

use tilewright_sdk::{
    Dtype, Objective, Precision,
    denoise::{self, Attempt, Cost, Guidance, Plan, Request, Residency},
};

/// A plan for a sample after its attempts failed, the latest last; at first there are none.
pub fn decide(request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
    // The device: half the bytes if a probe found bf16 no slower. Elsewhere a narrow type is for
    // what fits in no other way, since it alone changes the result.
    let is_narrow = request.has_gpu() && request.is_fast(Dtype::Bf16);
    let mut dtypes = if is_narrow { vec![Dtype::Bf16] } else { vec![Dtype::F32, Dtype::Bf16] };
    let mut budget = request.limit_bytes;
    for attempt in attempts {
        if attempt.overflowed() {
            // NaN or infinity: a type with a wider range.
            if attempt.plan.precision.dtype() == Dtype::F32 {
                return Err("not finite in f32".into());
            }
            dtypes = vec![Dtype::F32];
        } else if let Ok(cost) = denoise::estimate_one(&attempt.plan) {
            // Too much memory: the next plan has to be expected to hold less.
            budget = budget.min(cost.held().saturating_sub(1));
        }
    }
    let best = dtypes.into_iter().find_map(|dtype| best(request, dtype, budget));
    // An error is an honest answer: the host then uses its own plan.
    best.ok_or_else(|| "nothing smaller is expected to fit".into())
}

/// The plan in a dtype that serves the user's objective best, of those that hold no more than the
/// budget, in bytes.
fn best(request: &Request, dtype: Dtype, budget: u64) -> Option<Plan> {
    let plans = candidates(request, dtype);
    // A plan that the host can't run has an error instead of a cost, and is left out.
    let costs = denoise::estimate(&plans);
    let priced = plans.into_iter().zip(costs).filter_map(|(plan, cost)| Some((plan, cost.ok()?)));
    let fitting = priced.filter(|(_, cost)| cost.held() <= budget);
    let figure = |cost: &Cost| if request.objective == Objective::Leanest { cost.held() } else { cost.step_ns };
    fitting.min_by_key(|(_, cost)| figure(cost)).map(|(plan, _)| plan.because("the best that fits"))
}

/// Plans that each hold less than the one before.
fn candidates(request: &Request, dtype: Dtype) -> Vec<Plan> {
    let plain = Plan::plain(Precision::Uniform(dtype)).reusing(request);
    let samples = (request.batch > 1).then_some(1);
    let guidance = if request.passes > 1 { Guidance::Together } else { Guidance::InTurn };
    vec![
        // The passes of guidance together, where there are two.
        Plan { guidance, ..plain.clone() },
        plain.clone(),
        // Blocks of weights come while the one before computes.
        Plan { residency: Residency::Streamed(1), ..plain.clone() },
        // Each block comes when its turn does, and samples go one by one.
        Plan { residency: Residency::Host, samples, feed_forward: 8, ..plain },
    ]
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{
        Backend, Device, Failure, HostMemory, Memory, StoredType, Weights,
        denoise::{Capabilities, Model, Stub},
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Two samples of 1024×1024 with guidance and this much memory.
    fn request(limit_bytes: u64) -> Request {
        Request {
            model: Model {
                family: "flux".into(),
                weights: Weights {
                    stored_bytes: 24_000 * MIB,
                    stored_types: vec![StoredType { name: "bf16".into(), bytes: 24_000 * MIB }],
                },
                parameters: 12_000_000_000,
                blocks: 57,
                largest_block_bytes: 512 * MIB,
                experts: 1,
            },
            device: Device {
                backend: Backend::Rocm,
                name: "AMD Radeon 8060S".into(),
                arch: "gfx1151".into(),
                compute_units: 40,
                total_bytes: 65_536 * MIB,
                free_bytes: 65_536 * MIB,
                unified: true,
                fast_dtypes: vec![Dtype::Bf16],
            },
            host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
            limit_bytes,
            objective: Objective::Balanced,
            batch: 2,
            frames: 1,
            height: 128,
            width: 128,
            text_tokens: 512,
            image_tokens: 4096,
            steps: 20,
            passes: 2,
            sampler: "euler".into(),
            capabilities: Capabilities {
                dtypes: vec![Dtype::F32, Dtype::Bf16],
                fp8_products: false,
                int8_products: false,
                fused_attention: true,
                queries_least: 16,
                ahead_most: 64,
                parts_most: 64,
                reuse_most: 0.0,
                options: vec![],
            },
            under_way: None,
            hints: vec![],
        }
    }

    #[test]
    fn weights_are_streamed_if_they_do_not_fit() {
        // A host for which weights take a gigabyte, and work 100 MiB.
        let estimate = |plan: &Plan| {
            let together = plan.guidance == Guidance::Together;
            let (weights, step_ns) = match plan.residency {
                Residency::Resident => (1000, 1000),
                Residency::Streamed(_) => (100, 2000),
                Residency::Host => (50, 3000),
            };
            let one_by_one = plan.samples.is_some();
            let peak = if together { 200 } else if one_by_one { 50 } else { 100 };
            let step_ns = step_ns - u64::from(together);
            let memory = Memory { peak_bytes: peak * MIB, weights_bytes: weights * MIB };
            Ok(Cost { memory, moved_bytes: 0, step_ns })
        };
        Stub { estimate: Box::new(estimate), trials: vec![] }.install();
        let roomy = decide(&request(2048 * MIB), &[]).unwrap();
        assert_eq!((roomy.residency, roomy.guidance), (Residency::Resident, Guidance::Together));
        let tight = decide(&request(300 * MIB), &[]).unwrap();
        assert_eq!(tight.residency, Residency::Streamed(1));
        let failed = |plan: &Plan, failure| [Attempt { plan: plan.clone(), failure }];
        let next = decide(&request(300 * MIB), &failed(&tight, Failure::OutOfMemory(MIB))).unwrap();
        assert_eq!(next.residency, Residency::Host);
        assert!(decide(&request(300 * MIB), &failed(&next, Failure::OutOfMemory(MIB))).is_err());
        let wider = decide(&request(2048 * MIB), &failed(&roomy, Failure::NonFinite(3))).unwrap();
        assert_eq!(wider.precision, Precision::Uniform(Dtype::F32));
    }

    #[test]
    fn a_narrow_type_is_for_what_fits_in_no_other_way() {
        // A host without a fast bf16, where all takes twice the bytes in f32.
        let estimate = |plan: &Plan| {
            let bytes = if plan.precision.dtype() == Dtype::F32 { 4 } else { 2 };
            let memory = Memory { peak_bytes: bytes * MIB, weights_bytes: 0 };
            Ok(Cost { memory, moved_bytes: 0, step_ns: bytes })
        };
        Stub { estimate: Box::new(estimate), trials: vec![] }.install();
        let slow = |limit_bytes| {
            let mut request = request(limit_bytes);
            request.device.fast_dtypes.clear();
            request
        };
        let taken = |limit_bytes| decide(&slow(limit_bytes), &[]).map(|plan| plan.precision.dtype());
        assert_eq!(taken(4 * MIB), Ok(Dtype::F32));
        let narrow = decide(&slow(3 * MIB), &[]).unwrap();
        assert_eq!(narrow.precision.dtype(), Dtype::Bf16);
        let overflowed = Attempt { plan: narrow, failure: Failure::NonFinite(3) };
        assert!(decide(&slow(3 * MIB), &[overflowed]).is_err(), "not after an overflow");
    }
}
