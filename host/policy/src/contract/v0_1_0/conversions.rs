//! The ways between the types of contract 0.1.0 and [`tilewright_plan`]'s.

use std::time::Duration;

use tilewright_plan as plan;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{decoding, host, types},
};
use crate::{host::Description, settings::Setting};

/// Writes both directions of a conversion between enums whose variants bear the same names.
macro_rules! alike {
    ($contract:ty, $plan:ty, $($contract_name:ident = $plan_name:ident),+) => {
        impl From<$contract> for $plan {
            fn from(value: $contract) -> Self {
                match value { $(<$contract>::$contract_name => <$plan>::$plan_name,)+ }
            }
        }
        impl From<$plan> for $contract {
            fn from(value: $plan) -> Self {
                match value { $(<$plan>::$plan_name => <$contract>::$contract_name,)+ }
            }
        }
    };
}

alike!(types::Backend, plan::Backend, Cpu = Cpu, Cuda = Cuda, Rocm = Rocm, Metal = Metal);
alike!(
    types::Dtype,
    plan::Dtype,
    F32 = F32,
    Bf16 = Bf16,
    F16 = F16,
    F8E4m3 = F8E4m3,
    F8E5m2 = F8E5m2,
    I8 = I8,
    I4 = I4
);
alike!(types::Objective, plan::Objective, Fastest = Fastest, Balanced = Balanced, Leanest = Leanest);
alike!(decoding::Layout, plan::Layout, ChannelsFirst = ChannelsFirst, ChannelsLast = ChannelsLast);
alike!(decoding::Release, plan::Release, Keep = Keep, AtEnd = AtEnd, EachStep = EachStep);
alike!(host::Level, plan::LogLevel, Debug = Debug, Info = Info, Warn = Warn);

impl From<decoding::Tile> for plan::Tile {
    fn from(tile: decoding::Tile) -> Self {
        Self { height: tile.height, width: tile.width, overlap: tile.overlap }
    }
}

impl From<plan::Tile> for decoding::Tile {
    fn from(tile: plan::Tile) -> Self {
        Self { height: tile.height, width: tile.width, overlap: tile.overlap }
    }
}

impl From<decoding::Space> for plan::Space {
    fn from(space: decoding::Space) -> Self {
        match space {
            decoding::Space::Whole => Self::Whole,
            decoding::Space::Blended(tile) => Self::Blended(tile.into()),
            decoding::Space::Exact(tile) => Self::Exact(tile.into()),
        }
    }
}

impl From<plan::Space> for decoding::Space {
    fn from(space: plan::Space) -> Self {
        match space {
            plan::Space::Whole => Self::Whole,
            plan::Space::Blended(tile) => Self::Blended(tile.into()),
            plan::Space::Exact(tile) => Self::Exact(tile.into()),
        }
    }
}

impl From<decoding::Time> for plan::Time {
    fn from(time: decoding::Time) -> Self {
        match time {
            decoding::Time::Whole => Self::Whole,
            decoding::Time::Carried(frames) => Self::Carried { frames },
            decoding::Time::Blended(decoding::Overlapped { frames, overlap }) => Self::Blended { frames, overlap },
        }
    }
}

impl From<plan::Time> for decoding::Time {
    fn from(time: plan::Time) -> Self {
        match time {
            plan::Time::Whole => Self::Whole,
            plan::Time::Carried { frames } => Self::Carried(frames),
            plan::Time::Blended { frames, overlap } => Self::Blended(decoding::Overlapped { frames, overlap }),
        }
    }
}

impl From<decoding::Precision> for plan::Precision {
    fn from(precision: decoding::Precision) -> Self {
        match precision {
            decoding::Precision::Uniform(dtype) => Self::Uniform(dtype.into()),
            decoding::Precision::Mixed(dtype) => Self::Mixed(dtype.into()),
        }
    }
}

impl From<plan::Precision> for decoding::Precision {
    fn from(precision: plan::Precision) -> Self {
        match precision {
            plan::Precision::Uniform(dtype) => Self::Uniform(dtype.into()),
            plan::Precision::Mixed(dtype) => Self::Mixed(dtype.into()),
        }
    }
}

impl From<decoding::Plan> for plan::Plan {
    fn from(answer: decoding::Plan) -> Self {
        Self {
            space: answer.space.into(),
            time: answer.time.into(),
            batch: answer.batch,
            precision: answer.precision.into(),
            layout: answer.layout.into(),
            release: answer.release.into(),
            offload: answer.offload,
            prefetch: answer.prefetch,
            reason: answer.reason,
        }
    }
}

impl From<&plan::Plan> for decoding::Plan {
    fn from(plan: &plan::Plan) -> Self {
        Self {
            space: plan.space.into(),
            time: plan.time.into(),
            batch: plan.batch,
            precision: plan.precision.into(),
            layout: plan.layout.into(),
            release: plan.release.into(),
            offload: plan.offload,
            prefetch: plan.prefetch,
            reason: plan.reason.clone(),
        }
    }
}

impl From<plan::Cost> for decoding::Cost {
    fn from(cost: plan::Cost) -> Self {
        Self {
            peak_bytes: cost.peak_bytes,
            elapsed_ns: nanoseconds(cost.elapsed),
            tiles: cost.tiles,
            shapes: cost.shapes,
            rework: cost.rework,
        }
    }
}

impl From<&plan::Outcome> for decoding::Outcome {
    fn from(outcome: &plan::Outcome) -> Self {
        Self { elapsed_ns: nanoseconds(outcome.elapsed), peak_bytes: outcome.peak_bytes, attempts: outcome.attempts }
    }
}

impl From<plan::Trial> for decoding::Trial {
    fn from(trial: plan::Trial) -> Self {
        Self { plan: (&trial.plan).into(), outcome: (&trial.outcome).into() }
    }
}

impl From<plan::Failure> for decoding::Failure {
    fn from(failure: plan::Failure) -> Self {
        match failure {
            plan::Failure::OutOfMemory { bytes } => Self::OutOfMemory(bytes),
            plan::Failure::NonFinite { values } => Self::NonFinite(values),
            plan::Failure::OverLimit { bytes } => Self::OverLimit(bytes),
        }
    }
}

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

impl From<plan::Value> for lifecycle::Value {
    fn from(value: plan::Value) -> Self {
        match value {
            plan::Value::Flag(flag) => Self::Flag(flag),
            plan::Value::Integer(integer) => Self::Integer(integer),
            plan::Value::Number(number) => Self::Number(number),
            plan::Value::Text(text) => Self::Text(text),
        }
    }
}

impl From<lifecycle::Value> for plan::Value {
    fn from(value: lifecycle::Value) -> Self {
        match value {
            lifecycle::Value::Flag(flag) => Self::Flag(flag),
            lifecycle::Value::Integer(integer) => Self::Integer(integer),
            lifecycle::Value::Number(number) => Self::Number(number),
            lifecycle::Value::Text(text) => Self::Text(text),
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
            settings: said.settings.into_iter().map(setting).collect(),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
