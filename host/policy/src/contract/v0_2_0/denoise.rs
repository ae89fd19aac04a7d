//! Conversions between the types of contract 0.2.0's `denoise` and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::{Denoise, exchange::nanoseconds};

use super::{
    bindings::tilewright::policy::{denoise, types},
    conversions::{Facts, lower_options, options, plans},
};
use crate::contract::conversions::alike;

alike!(denoise::Products, Products, Precision, Fp8, Int8);
alike!(denoise::Guidance, GuidanceOrder, Together, InTurn);
alike!(denoise::Attention, Attention, Fused, Pieces { queries });
alike!(denoise::Reuse, StepReuse, Off, Output { threshold }, FirstBlock { threshold });
plans!(
    denoise, DenoisePlan, precision, products, weights, attention, guidance, samples, feed_forward, reuse, release;
    residency = ahead
);

impl From<denoise::Residency> for Option<u32> {
    fn from(residency: denoise::Residency) -> Self {
        match residency {
            denoise::Residency::Resident => None,
            denoise::Residency::Streamed(blocks) => Some(blocks),
            denoise::Residency::Host => Some(0),
        }
    }
}

impl From<Option<u32>> for denoise::Residency {
    fn from(ahead: Option<u32>) -> Self {
        match ahead {
            None => Self::Resident,
            Some(0) => Self::Host,
            Some(blocks) => Self::Streamed(blocks),
        }
    }
}

/// A question about a sample.
pub(super) type SampleRequest<'a> = Facts<'a, Denoise, denoise::Plan>;

impl<'a> SampleRequest<'a> {
    pub fn of(question: &'a plan::Question<'a, Denoise>, under_way: Option<&plan::UnderWay<Denoise>>) -> Self {
        let stored = question.request.model.stored_types.iter().map(Into::into);
        Self::new(question, under_way, &question.capabilities.dtypes, stored, std::iter::empty(), ())
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend<'b>(&'b self, options: &'b [types::PlanOption<'b>]) -> denoise::Request<'b> {
        let plan::Question { request, capabilities, .. } = *self.question;
        let model = &request.model;
        denoise::Request {
            model: denoise::Model {
                family: &model.family,
                weights: self.weights(model.stored_bytes),
                parameters: model.parameters,
                blocks: model.blocks,
                largest_block_bytes: model.largest_block_bytes,
                experts: model.experts,
            },
            device: self.device(),
            host: request.host.into(),
            limit_bytes: request.memory_limit,
            objective: request.objective.into(),
            batch: request.batch,
            frames: request.frames,
            height: request.height,
            width: request.width,
            text_tokens: request.text_tokens,
            image_tokens: request.image_tokens,
            steps: request.steps,
            passes: request.passes,
            sampler: &request.sampler,
            capabilities: denoise::Capabilities {
                dtypes: &self.dtypes,
                fp8_products: capabilities.fp8_products,
                int8_products: capabilities.int8_products,
                fused_attention: capabilities.fused_attention,
                queries_least: capabilities.queries_least,
                ahead_most: capabilities.ahead_most,
                parts_most: capabilities.parts_most,
                reuse_most: capabilities.reuse_most,
                options,
            },
            under_way: self.under_way.as_ref().map(|&(steps_done, ref plan)| denoise::UnderWay { steps_done, plan }),
            hints: &self.hints,
        }
    }
}

impl From<plan::DenoiseCost> for denoise::Cost {
    fn from(cost: plan::DenoiseCost) -> Self {
        let plan::DenoiseCost { peak_bytes, weights_bytes, moved_bytes, step } = cost;
        let memory = types::Memory { peak_bytes, weights_bytes };
        Self { memory, moved_bytes, step_ns: nanoseconds(step) }
    }
}

impl From<&plan::DenoiseOutcome> for denoise::Outcome {
    fn from(outcome: &plan::DenoiseOutcome) -> Self {
        let &plan::DenoiseOutcome { elapsed, load, step, peak_bytes, weights_bytes, moved_bytes, attempts, .. } =
            outcome;
        let memory = types::Memory { peak_bytes, weights_bytes };
        let [elapsed_ns, step_ns, load_ns] = [elapsed, step, load].map(nanoseconds);
        Self { memory, elapsed_ns, step_ns, load_ns, moved_bytes, attempts }
    }
}
