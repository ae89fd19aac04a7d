//! The ways between the types of contract 0.1.0 and [`tilewright_plan`]'s.

use std::time::Duration;

use tilewright_plan as plan;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{decoding, host, types},
};
use crate::{contract::Case, host::Description, settings::Setting};

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

/// What a request is put together from, beyond what can be lent as it is.
pub(super) struct Told<'a> {
    case: Case<'a>,
    fast_dtypes: Vec<types::Dtype>,
    /// What is offered and the request's own hints don't say.
    offered: Vec<plan::Hint>,
}

impl<'a> Told<'a> {
    pub fn new(case: Case<'a>) -> Self {
        let Case { request, device, offer } = case;
        let fast_dtypes = device.fast_dtypes.iter().copied().map(Into::into).collect();
        let offered = offer.map(|offer| offer.hints_beyond(&request.hints)).unwrap_or_default();
        Self { case, fast_dtypes, offered }
    }

    /// All hints: the request's, then what is offered.
    pub fn hints(&self) -> Vec<types::Hint<'_>> {
        let hints = self.case.request.hints.iter().chain(&self.offered);
        hints.map(|plan::Hint { name, value }| types::Hint { name, value }).collect()
    }

    /// The request as the contract has it: the device goes inside, what is offered goes along as hints.
    pub fn request<'b>(&'b self, hints: &'b [types::Hint<'b>]) -> decoding::Request<'b> {
        let Case { request, device, .. } = self.case;
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
