//! Conversions between the types of contract 0.2.0's `text` and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::Text;

use super::{
    bindings::tilewright::policy::{text, types},
    conversions::{Facts, lower_options, options},
};
use crate::contract::conversions::{alike, nanoseconds};

alike!(text::Place, plan::Place, Device = Device, Host = Host);

/// A question about a text encoder's run in the contract's form: the parts that can't be lent as
/// they are.
pub(super) struct EncoderRequest<'a> {
    question: &'a plan::Question<'a, Text>,
    facts: Facts<'a>,
    places: Vec<text::Place>,
    weights: Vec<types::WeightForm>,
}

impl<'a> EncoderRequest<'a> {
    pub fn new(question: &'a plan::Question<'a, Text>) -> Self {
        let plan::TextCapabilities { places, weights, .. } = question.capabilities;
        let stored = question.request.model.stored_types.iter();
        let stored = stored.map(|stored| (stored.name.as_str(), stored.bytes));
        Self {
            question,
            facts: Facts::new(question, &question.capabilities.dtypes, stored),
            places: places.iter().copied().map(Into::into).collect(),
            weights: weights.iter().copied().map(Into::into).collect(),
        }
    }

    /// The options that are offered.
    pub fn options(&self) -> Vec<types::PlanOption<'_>> {
        self.facts.options()
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

impl From<text::Plan> for plan::TextPlan {
    fn from(answer: text::Plan) -> Self {
        Self {
            precision: answer.precision.into(),
            place: answer.place.into(),
            weights: answer.weights.into(),
            kept: answer.kept,
            options: options(answer.options),
            reason: answer.reason,
        }
    }
}

impl From<&plan::TextPlan> for text::Plan {
    fn from(plan: &plan::TextPlan) -> Self {
        Self {
            precision: plan.precision.into(),
            place: plan.place.into(),
            weights: plan.weights.into(),
            kept: plan.kept,
            options: lower_options(&plan.options),
            reason: plan.reason.clone(),
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

impl From<plan::Trial<Text>> for text::Trial {
    fn from(trial: plan::Trial<Text>) -> Self {
        Self { plan: (&trial.plan).into(), outcome: (&trial.outcome).into() }
    }
}
