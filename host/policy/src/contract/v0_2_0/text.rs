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

/// A question about a text encoder's run, with the places and the forms of weights that are
/// offered.
pub(super) type EncoderRequest<'a> = Facts<'a, Text, text::Plan, (Vec<text::Place>, Vec<types::WeightForm>)>;

impl<'a> EncoderRequest<'a> {
    pub fn of(question: &'a plan::Question<'a, Text>, under_way: Option<&plan::UnderWay<Text>>) -> Self {
        let plan::TextCapabilities { dtypes, places, weights, .. } = question.capabilities;
        let places = places.iter().copied().map(Into::into).collect();
        let weights = weights.iter().copied().map(Into::into).collect();
        let stored = question.request.model.stored_types.iter().map(Into::into);
        Self::new(question, under_way, dtypes, stored, std::iter::empty(), (places, weights))
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend<'b>(&'b self, options: &'b [types::PlanOption<'b>]) -> text::Request<'b> {
        let plan::Question { request, capabilities, .. } = *self.question;
        let model = &request.model;
        text::Request {
            model: text::Model {
                kind: &model.kind,
                weights: self.weights(model.parameter_bytes),
                blocks: model.blocks,
                width: model.width,
                head_width: model.head_width,
            },
            device: self.device(),
            host: request.host.into(),
            limit_bytes: request.memory_limit,
            objective: request.objective.into(),
            tokens: &request.tokens,
            capabilities: text::Capabilities {
                dtypes: &self.dtypes,
                places: &self.own.0,
                weights: &self.own.1,
                kept: capabilities.kept,
                options,
            },
            hints: &self.hints,
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
