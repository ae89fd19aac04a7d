//! Conversions between the types of contract 0.2.0's `denoise` and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::Denoise;

use super::{
    bindings::tilewright::policy::{denoise, types},
    conversions::{Facts, lower_options, options},
};
use crate::contract::conversions::{alike, nanoseconds};

alike!(denoise::Products, plan::Products, Precision = Precision, Fp8 = Fp8, Int8 = Int8);
alike!(denoise::Guidance, plan::GuidanceOrder, Together = Together, InTurn = InTurn);

/// A question about a sample in the contract's form: the parts that can't be lent as they are.
pub(super) struct SampleRequest<'a> {
    question: &'a plan::Question<'a, Denoise>,
    facts: Facts<'a>,
    /// The steps that are finished, and their plan.
    under_way: Option<(u32, denoise::Plan)>,
}

impl<'a> SampleRequest<'a> {
    pub fn new(question: &'a plan::Question<'a, Denoise>, under_way: Option<&plan::UnderWay<Denoise>>) -> Self {
        let stored = question.request.model.stored_types.iter();
        let stored = stored.map(|stored| (stored.name.as_str(), stored.bytes));
        Self {
            question,
            facts: Facts::new(question, &question.capabilities.dtypes, stored),
            under_way: under_way.map(|under_way| (under_way.done, (&under_way.plan).into())),
        }
    }

    /// The options that are offered.
    pub fn options(&self) -> Vec<types::PlanOption<'_>> {
        self.facts.options()
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend<'b>(&'b self, options: &'b [types::PlanOption<'b>]) -> denoise::Request<'b> {
        let plan::Question { request, capabilities, .. } = *self.question;
        let model = &request.model;
        denoise::Request {
            model: denoise::Model {
                family: &model.family,
                weights: self.facts.weights(model.stored_bytes),
                parameters: model.parameters,
                blocks: model.blocks,
                largest_block_bytes: model.largest_block_bytes,
                experts: model.experts,
            },
            device: self.facts.device(),
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
                dtypes: &self.facts.dtypes,
                fp8_products: capabilities.fp8_products,
                int8_products: capabilities.int8_products,
                fused_attention: capabilities.fused_attention,
                queries_least: capabilities.queries_least,
                ahead_most: capabilities.ahead_most,
                parts_most: capabilities.parts_most,
                reuse_most: capabilities.reuse_most,
                options,
            },
            under_way: self
                .under_way
                .as_ref()
                .map(|(steps_done, plan)| denoise::UnderWay { steps_done: *steps_done, plan }),
            hints: &[],
        }
    }
}

impl From<denoise::Plan> for plan::DenoisePlan {
    fn from(answer: denoise::Plan) -> Self {
        Self {
            precision: answer.precision.into(),
            products: answer.products.into(),
            weights: answer.weights.into(),
            ahead: match answer.residency {
                denoise::Residency::Resident => None,
                denoise::Residency::Streamed(blocks) => Some(blocks),
                denoise::Residency::Host => Some(0),
            },
            attention: match answer.attention {
                denoise::Attention::Fused => plan::Attention::Fused,
                denoise::Attention::Pieces(queries) => plan::Attention::Pieces { queries },
            },
            guidance: answer.guidance.into(),
            samples: answer.samples,
            feed_forward: answer.feed_forward,
            reuse: match answer.reuse {
                denoise::Reuse::Off => plan::StepReuse::Off,
                denoise::Reuse::Output(threshold) => plan::StepReuse::Output { threshold },
                denoise::Reuse::FirstBlock(threshold) => plan::StepReuse::FirstBlock { threshold },
            },
            release: answer.release.into(),
            options: options(answer.options),
            reason: answer.reason,
        }
    }
}

impl From<&plan::DenoisePlan> for denoise::Plan {
    fn from(plan: &plan::DenoisePlan) -> Self {
        Self {
            precision: plan.precision.into(),
            products: plan.products.into(),
            weights: plan.weights.into(),
            residency: match plan.ahead {
                None => denoise::Residency::Resident,
                Some(0) => denoise::Residency::Host,
                Some(blocks) => denoise::Residency::Streamed(blocks),
            },
            attention: match plan.attention {
                plan::Attention::Fused => denoise::Attention::Fused,
                plan::Attention::Pieces { queries } => denoise::Attention::Pieces(queries),
            },
            guidance: plan.guidance.into(),
            samples: plan.samples,
            feed_forward: plan.feed_forward,
            reuse: match plan.reuse {
                plan::StepReuse::Off => denoise::Reuse::Off,
                plan::StepReuse::Output { threshold } => denoise::Reuse::Output(threshold),
                plan::StepReuse::FirstBlock { threshold } => denoise::Reuse::FirstBlock(threshold),
            },
            release: plan.release.into(),
            options: lower_options(&plan.options),
            reason: plan.reason.clone(),
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

impl From<plan::Trial<Denoise>> for denoise::Trial {
    fn from(trial: plan::Trial<Denoise>) -> Self {
        Self { plan: (&trial.plan).into(), outcome: (&trial.outcome).into() }
    }
}
