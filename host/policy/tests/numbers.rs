//! Answers whose numbers mean harm: each numeric field of each stage's plan, at the ends of its
//! type and where it has no meaning. The host refuses the answer and takes its own plan, or brings
//! it into bounds with a note; the same plan in a question for prices is priced or refused
//! likewise.

mod by_hand;

use std::{sync::Arc, time::Duration};

use by_hand::{DECODE, DENOISE, Interface, device, put_to_work};
use tilewright_plan::{
    Capabilities, Cost, CostModel, Decision, Denoise, DenoiseCapabilities, DenoiseCost, DenoisePlan, DenoiseRequest,
    DenoiserModel, Dtype, FallbackReason, HostMemory, Model, Objective, Plan, Planner, Question, Request, Stage, Vae,
    Work,
};
use tilewright_policy::{Policy, oracle};

/// Whole numbers at the ends of their type, and of the signed one.
const WHOLE: [u32; 7] = [0, 1, 3, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX];

/// Fractions that are no numbers, have no end, are below zero, or the smallest and largest.
const FRACTIONS: [f64; 11] = [
    f64::NAN,
    -f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::MIN,
    -1.0,
    -0.0,
    0.0,
    5e-324,
    f64::MIN_POSITIVE,
    f64::MAX,
];

/// A numeric field: its name, the bytes that choose its case of a variant, and its offset.
type Field = (&'static str, &'static [(u32, u8)], u32);

const OF_SAMPLES: [Field; 4] = [
    ("residency.streamed", &[(4, 1)], 8),
    ("attention.pieces", &[(12, 1)], 16),
    ("samples", &[(24, 1)], 28),
    ("feed-forward", &[], 32),
];

const REUSES: [Field; 2] = [("reuse.output", &[(40, 1)], 48), ("reuse.first-block", &[(40, 2)], 48)];

/// Other extents of the same tile or chunk are 64.
const OF_DECODES: [Field; 11] = [
    ("space.blended.height", &[(0, 1), (8, 64), (12, 8)], 4),
    ("space.blended.width", &[(0, 1), (4, 64), (12, 8)], 8),
    ("space.blended.overlap", &[(0, 1), (4, 64), (8, 64)], 12),
    ("space.exact.height", &[(0, 2), (8, 64)], 4),
    ("space.exact.width", &[(0, 2), (4, 64)], 8),
    ("space.exact.overlap", &[(0, 2), (4, 64), (8, 64)], 12),
    ("time.carried", &[(16, 1)], 20),
    ("time.blended.frames", &[(16, 2), (24, 1)], 20),
    ("time.blended.overlap", &[(16, 2), (20, 8)], 24),
    ("batch", &[], 28),
    ("prefetch", &[], 40),
];

/// One price for all plans.
struct Prices;

impl CostModel<Denoise> for Prices {
    fn estimate_one(&self, _: &DenoisePlan) -> Result<DenoiseCost, String> {
        Ok(DenoiseCost { peak_bytes: 1, weights_bytes: 1, moved_bytes: 0, step: Duration::from_millis(9) })
    }
}

impl CostModel<Vae> for Prices {
    fn estimate_one(&self, _: &Plan) -> Result<Cost, String> {
        Ok(Cost {
            peak_bytes: 1,
            elapsed: Duration::from_millis(9),
            tiles: 1,
            shapes: 1,
            rework: 1.0,
            weights_bytes: 0,
        })
    }
}

fn sample() -> DenoiseRequest {
    DenoiseRequest {
        model: DenoiserModel {
            family: "flux".into(),
            parameters: 1 << 30,
            stored_bytes: 2 << 30,
            stored: "bf16".into(),
            blocks: 57,
            largest_block_bytes: 1 << 26,
            experts: 1,
            stored_types: Vec::new(),
        },
        batch: 4,
        frames: 1,
        height: 128,
        width: 128,
        text_tokens: 512,
        image_tokens: 4096,
        steps: 8,
        passes: 2,
        sampler: "euler".into(),
        sigmas: (0..=8).map(|step| 1.0 - f64::from(step) / 8.0).collect(),
        reuse: None,
        memory_limit: 1 << 36,
        objective: Objective::Balanced,
        host: HostMemory { total_bytes: 1 << 36, free_bytes: 1 << 35, transfer_rate: 0 },
    }
}

fn decode(frames: u32) -> Request {
    Request {
        model: Model {
            family: if frames > 1 { "wan" } else { "flux" }.into(),
            stored: Dtype::F16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: if frames > 1 { 4 } else { 1 },
        },
        batch: 2,
        frames,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 36,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

/// The price of the answer itself is asked for first: a list of one plan.
fn guest(interface: Interface, chosen: &[(u32, u8)], number: &str) -> Policy {
    let chosen: String = chosen.iter().map(|(offset, value)| interface.byte(*offset, *value)).collect();
    let ask = format!("(call $estimate (i32.const {}) (i32.const 1) (i32.const 2048))", interface.plan);
    put_to_work(&interface.guest(&format!("{chosen} {number} {ask}"), ""))
}

/// Fails unless an answer is refused as nonsense or brought into bounds, and its price likewise.
fn check<W: Work>(name: &str, decision: &Decision<W>, breaches: &[&str]) {
    assert!(breaches.is_empty(), "{name}: {breaches:?}: {}", decision.plan);
    let price = &decision.candidates.first().unwrap_or_else(|| panic!("{name}: no price")).cost;
    match &decision.fallback {
        Some(fallback) => {
            assert_eq!(fallback.reason, FallbackReason::Nonsense, "{name}: {}", fallback.detail);
            assert!(price.is_err() && decision.adjusted.is_empty(), "{name}");
        }
        None => {
            assert!(price.is_ok(), "{name}: {price:?}");
            let is_changed = decision.answer.as_ref() != Some(&decision.plan);
            assert_eq!(is_changed, !decision.adjusted.is_empty(), "{name}: {:?}", decision.adjusted);
        }
    }
}

#[test]
fn numbers_of_samples_are_brought_into_bounds_or_refused() {
    let device = device();
    let mut tried = 0;
    for reuse_most in [0.0, 0.2] {
        let request = DenoiseRequest { reuse: (reuse_most > 0.0).then_some(reuse_most), ..sample() };
        let capabilities = DenoiseCapabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            fp8_products: false,
            int8_products: false,
            fused_attention: true,
            queries_least: 16,
            ahead_most: 64,
            parts_most: 64,
            reuse_most,
            options: Vec::new(),
        };
        let question = Question::denoise(&request, &device, &capabilities);
        let whole = OF_SAMPLES
            .iter()
            .flat_map(|field| WHOLE.map(|value| (field, value.to_string(), DENOISE.word(field.2, value.into()))));
        let fractions = REUSES
            .iter()
            .flat_map(|field| FRACTIONS.map(|value| (field, value.to_string(), DENOISE.fraction(field.2, value))));
        for ((field, chosen, _), value, number) in whole.chain(fractions) {
            let decision = guest(DENOISE, chosen, &number).decide(&question, Arc::new(Prices));
            let breaches = oracle::find_breaches(&decision.plan, &question);
            check(&format!("{field} = {value}, reuse up to {reuse_most}"), &decision, &breaches);
            tried += 1;
        }
    }
    assert_eq!(tried, 2 * (OF_SAMPLES.len() * WHOLE.len() + REUSES.len() * FRACTIONS.len()));
}

#[test]
fn numbers_of_decodes_are_brought_into_bounds_or_refused() {
    let device = device();
    for frames in [1, 17] {
        let request = decode(frames);
        let capabilities = Capabilities {
            dtypes: vec![Dtype::F32],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 16,
            exact: true,
            carried: frames > 1,
            offload: false,
            prefetch_most: 0,
            options: Vec::new(),
        };
        let question = Question::new(Stage::Decode, &request, &device, &capabilities);
        for (field, chosen, offset) in OF_DECODES {
            for value in WHOLE {
                let number = DECODE.word(offset, value.into());
                let decision = guest(DECODE, chosen, &number).decide(&question, Arc::new(Prices));
                let breaches = oracle::find_breaches(&decision.plan, &question);
                check(&format!("{field} = {value}, {frames} frames"), &decision, &breaches);
            }
        }
    }
}
