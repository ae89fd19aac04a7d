//! Conversions between the types of contract 0.2.0's `text` and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::Text;

use super::bindings::tilewright::policy::{denoise, text, types};
use crate::contract::conversions::{alike, nanoseconds};

alike!(text::Place, plan::Place, Device = Device, Host = Host);

/// A question about a text encoder's run in the contract's form: the parts that can't be lent as
/// they are.
pub(super) struct EncoderRequest<'a> {
    question: &'a plan::Question<'a, Text>,
    fast_dtypes: Vec<types::Dtype>,
    stored_types: Vec<denoise::StoredType<'a>>,
    dtypes: Vec<types::Dtype>,
    places: Vec<text::Place>,
    weights: Vec<denoise::WeightForm>,
}

impl<'a> EncoderRequest<'a> {
    pub fn new(question: &'a plan::Question<'a, Text>) -> Self {
        let dtypes = |dtypes: &[plan::Dtype]| dtypes.iter().copied().map(Into::into).collect();
        let plan::TextCapabilities { places, weights, .. } = question.capabilities;
        let stored = question.request.model.stored_types.iter();
        Self {
            question,
            fast_dtypes: dtypes(&question.device.fast_dtypes),
            stored_types: stored
                .map(|stored| denoise::StoredType { name: &stored.name, bytes: stored.bytes })
                .collect(),
            dtypes: dtypes(&question.capabilities.dtypes),
            places: places.iter().copied().map(Into::into).collect(),
            weights: weights.iter().copied().map(Into::into).collect(),
        }
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend(&self) -> text::Request<'_> {
        let plan::Question { request, device, capabilities, .. } = *self.question;
        let model = &request.model;
        text::Request {
            model: text::Model {
                kind: &model.kind,
                stored_types: &self.stored_types,
                parameter_bytes: model.parameter_bytes,
                blocks: model.blocks,
                width: model.width,
                head_width: model.head_width,
            },
            device: types::Device {
                backend: device.backend.into(),
                name: &device.name,
                arch: &device.arch,
                compute_units: device.compute_units,
                total_bytes: device.total_bytes,
                free_bytes: device.free_bytes,
                unified: device.unified,
                fast_dtypes: &self.fast_dtypes,
            },
            host: denoise::HostMemory {
                total_bytes: request.host_total_bytes,
                free_bytes: request.host_free_bytes,
                transfer_rate: request.transfer_rate,
            },
            memory: types::Memory { limit_bytes: request.memory_limit, counts_weights: true },
            objective: request.objective.into(),
            tokens: &request.tokens,
            capabilities: text::Capabilities {
                dtypes: &self.dtypes,
                places: &self.places,
                weights: &self.weights,
                kept: capabilities.kept,
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
            reason: plan.reason.clone(),
        }
    }
}

impl From<plan::TextCost> for text::Cost {
    fn from(cost: plan::TextCost) -> Self {
        let plan::TextCost { elapsed, load, peak_bytes, weights_bytes, host_bytes } = cost;
        let [elapsed_ns, load_ns] = [elapsed, load].map(nanoseconds);
        Self { elapsed_ns, load_ns, peak_bytes, weights_bytes, host_bytes }
    }
}

impl From<&plan::TextOutcome> for text::Outcome {
    fn from(outcome: &plan::TextOutcome) -> Self {
        Self {
            elapsed_ns: nanoseconds(outcome.elapsed),
            load_ns: nanoseconds(outcome.load),
            peak_bytes: outcome.peak_bytes,
            weights_bytes: outcome.weights_bytes,
            host_bytes: outcome.host_bytes,
            attempts: outcome.attempts,
        }
    }
}

impl From<plan::Trial<Text>> for text::Trial {
    fn from(trial: plan::Trial<Text>) -> Self {
        Self { plan: (&trial.plan).into(), outcome: (&trial.outcome).into() }
    }
}
