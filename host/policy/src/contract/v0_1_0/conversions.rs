//! The ways between the types of contract 0.1.0 and [`tilewright_plan`]'s.

use tilewright_plan as plan;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{decoding, host, types},
};
use crate::{contract::conversions::conversions, host::Description, settings::Setting};

conversions!(decoding);

/// A request as the contract tells it: the parts that can't be lent as they are.
pub(super) struct GuestRequest<'a> {
    question: &'a plan::Question<'a>,
    fast_dtypes: Vec<types::Dtype>,
    /// The hints that go before and after the request's own.
    before: Vec<plan::Hint>,
    after: Vec<plan::Hint>,
}

/// A hint that tells a capability, and its value.
type Told = (&'static str, fn(&plan::Capabilities) -> String);

/// The capabilities, since the contract's request has no fields for them.
const CAPABILITIES: [Told; 8] = [
    ("offer.dtypes", |of| of.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",")),
    ("offer.tile-unit", |of| of.tile_unit.to_string()),
    ("offer.tile-least", |of| of.tile_least.to_string()),
    ("offer.batch-most", |of| of.batch_most.to_string()),
    ("offer.exact", |of| of.exact.to_string()),
    ("offer.carried", |of| of.carried.to_string()),
    ("offer.offload", |of| of.offload.to_string()),
    ("offer.prefetch-most", |of| of.prefetch_most.to_string()),
];

/// Output frames of a clip that are delivered.
const FRAMES_DONE: &str = "clip.done";

impl<'a> GuestRequest<'a> {
    /// The request of a decision: with the clip that is under way.
    pub fn decide(question: &'a plan::Question<'a>) -> Self {
        Self::new(question, question.under_way)
    }

    /// The request of an outcome, which is told of the clip as a whole.
    pub fn learn(question: &'a plan::Question<'a>) -> Self {
        Self::new(question, None)
    }

    /// Hints in the order that guests of this version have always had them: capabilities, the request's own, the stage,
    /// frames that are delivered.
    ///
    /// A record of an earlier program has these hints in its request. A replay has to tell the guest the same to the
    /// byte, or fuel and answers differ. So a request with any of them keeps its own as they are, and only capabilities
    /// that it lacks follow, as they did then; an outcome got none.
    fn new(question: &'a plan::Question<'a>, under_way: Option<&plan::UnderWay>) -> Self {
        let plan::Question { stage, request, device, capabilities, .. } = *question;
        let fast_dtypes = device.fast_dtypes.iter().copied().map(Into::into).collect();
        let hint = |name: &str, value: String| plan::Hint { name: name.into(), value };
        let is_told = |name: &str| request.hints.iter().any(|hint| hint.name == name);
        let is_unknown = *capabilities == plan::Capabilities::default();
        let told = |(name, value): &Told| hint(name, value(capabilities));
        let is_old = CAPABILITIES.iter().any(|(name, _)| is_told(name))
            || [plan::Stage::HINT, FRAMES_DONE].into_iter().any(is_told);
        let (before, after) = if is_unknown {
            (Vec::new(), Vec::new())
        } else if is_old {
            (Vec::new(), CAPABILITIES.iter().filter(|(name, _)| !is_told(name)).map(told).collect())
        } else {
            let done = under_way.map(|under_way| hint(FRAMES_DONE, under_way.frames_done.to_string()));
            let after = [hint(plan::Stage::HINT, stage.name().into())].into_iter().chain(done).collect();
            (CAPABILITIES.iter().map(told).collect(), after)
        };
        Self { question, fast_dtypes, before, after }
    }

    /// All hints, in their order.
    pub fn hints(&self) -> Vec<types::Hint<'_>> {
        let hints = self.before.iter().chain(&self.question.request.hints).chain(&self.after);
        hints.map(|plan::Hint { name, value }| types::Hint { name, value }).collect()
    }

    /// The request as the contract has it: the device goes inside, capabilities, stage and frames go along as hints.
    pub fn request<'b>(&'b self, hints: &'b [types::Hint<'b>]) -> decoding::Request<'b> {
        let plan::Question { request, device, .. } = *self.question;
        decoding::Request {
            model: types::Model {
                family: &request.model.family,
                stored: request.model.stored.into(),
                quantized: request.model.quantized,
                parameter_bytes: request.model.parameter_bytes,
                spatial_scale: request.model.spatial_scale,
                temporal_scale: request.model.temporal_scale,
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
            batch: request.batch,
            frames: request.frames,
            height: request.height,
            width: request.width,
            memory_limit: request.memory_limit,
            objective: request.objective.into(),
            hints,
        }
    }
}

impl From<lifecycle::Description> for Description {
    fn from(said: lifecycle::Description) -> Self {
        let setting =
            |lifecycle::Setting { name, summary, default }| Setting { name, summary, default: default.into() };
        Self {
            name: said.name,
            version: said.version,
            summary: said.summary,
            // This version has no way to leave one out.
            stages: vec![plan::Stage::Decode, plan::Stage::Encode],
            settings: said.settings.into_iter().map(setting).collect(),
        }
    }
}
