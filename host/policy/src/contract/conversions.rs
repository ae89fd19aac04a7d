//! Conversions that all versions share: their plans, costs and settings have the same shape.

use std::time::Duration;

/// Writes both directions of a conversion between enums whose variants have the same names.
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

/// Writes the conversions between a version's types and [`tilewright_plan`]'s. `$decisions` is the
/// interface that holds plans; it, `host`, `types` and `lifecycle` have to be in scope, and
/// [`tilewright_plan`] as `plan`. `$known` gives the precision that comes nearest to one, of those
/// that the version has a name for.
macro_rules! conversions {
    ($decisions:ident, $known:path) => {
        $crate::contract::conversions::alike!(
            types::Backend,
            plan::Backend,
            Cpu = Cpu,
            Cuda = Cuda,
            Rocm = Rocm,
            Metal = Metal
        );
        $crate::contract::conversions::alike!(
            types::Objective,
            plan::Objective,
            Fastest = Fastest,
            Balanced = Balanced,
            Leanest = Leanest
        );
        $crate::contract::conversions::alike!(
            $decisions::Layout,
            plan::Layout,
            ChannelsFirst = ChannelsFirst,
            ChannelsLast = ChannelsLast
        );
        $crate::contract::conversions::alike!(
            $decisions::Release,
            plan::Release,
            Keep = Keep,
            AtEnd = AtEnd,
            EachStep = EachStep
        );
        $crate::contract::conversions::alike!(host::Level, plan::LogLevel, Debug = Debug, Info = Info, Warn = Warn);

        impl From<$decisions::Tile> for plan::Tile {
            fn from(tile: $decisions::Tile) -> Self {
                Self { height: tile.height, width: tile.width, overlap: tile.overlap }
            }
        }

        impl From<plan::Tile> for $decisions::Tile {
            fn from(tile: plan::Tile) -> Self {
                Self { height: tile.height, width: tile.width, overlap: tile.overlap }
            }
        }

        impl From<$decisions::Space> for plan::Space {
            fn from(space: $decisions::Space) -> Self {
                match space {
                    $decisions::Space::Whole => Self::Whole,
                    $decisions::Space::Blended(tile) => Self::Blended(tile.into()),
                    $decisions::Space::Exact(tile) => Self::Exact(tile.into()),
                }
            }
        }

        impl From<plan::Space> for $decisions::Space {
            fn from(space: plan::Space) -> Self {
                match space {
                    plan::Space::Whole => Self::Whole,
                    plan::Space::Blended(tile) => Self::Blended(tile.into()),
                    plan::Space::Exact(tile) => Self::Exact(tile.into()),
                }
            }
        }

        impl From<$decisions::Time> for plan::Time {
            fn from(time: $decisions::Time) -> Self {
                match time {
                    $decisions::Time::Whole => Self::Whole,
                    $decisions::Time::Carried(frames) => Self::Carried { frames },
                    $decisions::Time::Blended($decisions::Overlapped { frames, overlap }) => {
                        Self::Blended { frames, overlap }
                    }
                }
            }
        }

        impl From<plan::Time> for $decisions::Time {
            fn from(time: plan::Time) -> Self {
                match time {
                    plan::Time::Whole => Self::Whole,
                    plan::Time::Carried { frames } => Self::Carried(frames),
                    plan::Time::Blended { frames, overlap } => {
                        Self::Blended($decisions::Overlapped { frames, overlap })
                    }
                }
            }
        }

        impl From<$decisions::Precision> for plan::Precision {
            fn from(precision: $decisions::Precision) -> Self {
                match precision {
                    $decisions::Precision::Uniform(dtype) => Self::Uniform(dtype.into()),
                    $decisions::Precision::Mixed(dtype) => Self::Mixed(dtype.into()),
                }
            }
        }

        impl From<plan::Precision> for $decisions::Precision {
            fn from(precision: plan::Precision) -> Self {
                match $known(precision) {
                    plan::Precision::Uniform(dtype) => Self::Uniform(dtype.into()),
                    plan::Precision::Mixed(dtype) => Self::Mixed(dtype.into()),
                }
            }
        }

        impl From<$decisions::Plan> for plan::Plan {
            fn from(answer: $decisions::Plan) -> Self {
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

        impl From<&plan::Plan> for $decisions::Plan {
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

        impl From<plan::Cost> for $decisions::Cost {
            fn from(cost: plan::Cost) -> Self {
                Self {
                    peak_bytes: cost.peak_bytes,
                    elapsed_ns: $crate::contract::conversions::nanoseconds(cost.elapsed),
                    tiles: cost.tiles,
                    shapes: cost.shapes,
                    rework: cost.rework,
                }
            }
        }

        impl From<&plan::Outcome> for $decisions::Outcome {
            fn from(outcome: &plan::Outcome) -> Self {
                Self {
                    elapsed_ns: $crate::contract::conversions::nanoseconds(outcome.elapsed),
                    peak_bytes: outcome.peak_bytes,
                    attempts: outcome.attempts,
                }
            }
        }

        impl From<plan::Trial> for $decisions::Trial {
            fn from(trial: plan::Trial) -> Self {
                Self { plan: (&trial.plan).into(), outcome: (&trial.outcome).into() }
            }
        }

        impl From<plan::Failure> for $decisions::Failure {
            fn from(failure: plan::Failure) -> Self {
                match failure {
                    plan::Failure::OutOfMemory { bytes } => Self::OutOfMemory(bytes),
                    plan::Failure::NonFinite { values } => Self::NonFinite(values),
                    plan::Failure::OverLimit { bytes } => Self::OverLimit(bytes),
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
    };
}

pub(super) use {alike, conversions};

/// Saturates after 584 years.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
