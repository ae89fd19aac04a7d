//! Conversions between the types of contract 0.2.0's `text` and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::{Text, exchange::nanoseconds};

use super::{
    bindings::tilewright::policy::{text, types},
    conversions::{Facts, lower_options, options, plans},
};
use crate::contract::conversions::alike;

alike!(text::Place, Place, Device, Host);
plans!(text, TextPlan, precision, place, weights, kept);

/// A question about a text encoder's run in the contract's form: the parts that can't be lent as
/// they are.
pub(super) struct EncoderRequest<'a> {
    question: &'a plan::Question<'a, Text>,
    pub facts: Facts<'a>,
    places: Vec<text::Place>,
    weights: Vec<types::WeightForm>,
}

impl<'a> EncoderRequest<'a> {
    /// Nothing of a run is under way.
    pub fn new(question: &'a plan::Question<'a, Text>, _: Option<&plan::UnderWay<Text>>) -> Self {
        let plan::TextCapabilities { dtypes, places, weights, .. } = question.capabilities;
        let stored = question.request.model.stored_types.iter().map(Into::into);
        Self {
            question,
            facts: Facts::new(question, dtypes, stored),
            places: places.iter().copied().map(Into::into).collect(),
            weights: weights.iter().copied().map(Into::into).collect(),
        }
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend<'b>(&'b self, options: &'b [types::PlanOption<'b>]) -> text::Request<'b> {
        let plan::Question { request, capabilities, .. } = *self.question;
        let model = &request.model;
        text::Request {
            model: text::Model {
                kind: &model.kind,
                weights: self.facts.weights(model.parameter_bytes),
                blocks: model.blocks,
                width: model.width,
                head_width: model.head_width,
            },
            device: self.facts.device(),
            host: request.host.into(),
            limit_bytes: request.memory_limit,
            objective: request.objective.into(),
            tokens: &request.tokens,
            capabilities: text::Capabilities {
                dtypes: &self.facts.dtypes,
                places: &self.places,
                weights: &self.weights,
                kept: capabilities.kept,
                options,
            },
            hints: &[],
        }
    }
}

impl From<plan::TextCost> for text::Cost {
    fn from(cost: plan::TextCost) -> Self {
        let plan::TextCost { elapsed, load, peak_bytes, weights_bytes, host_bytes } = cost;
        let [elapsed_ns, load_ns] = [elapsed, load].map(nanoseconds);
        Self { memory: types::Memory { peak_bytes, weights_bytes }, elapsed_ns, load_ns, host_bytes }
    }
}

impl From<&plan::TextOutcome> for text::Outcome {
    fn from(outcome: &plan::TextOutcome) -> Self {
        let &plan::TextOutcome { elapsed, load, peak_bytes, weights_bytes, host_bytes, attempts, .. } = outcome;
        let [elapsed_ns, load_ns] = [elapsed, load].map(nanoseconds);
        Self { memory: types::Memory { peak_bytes, weights_bytes }, elapsed_ns, load_ns, host_bytes, attempts }
    }
}
