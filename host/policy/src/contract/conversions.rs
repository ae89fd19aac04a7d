//! Conversions that all versions share: the parts of their plans, and their settings, have the same
//! shape.

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
/// interface that holds plans of decodes and encodes, `$shared` the one that holds their types and
/// failures; they, `host`, `types` and `lifecycle` have to be in scope, and [`tilewright_plan`] as
/// `plan`. `$known` gives the precision that comes nearest to one, of those that the version has a
/// name for.
macro_rules! conversions {
    ($decisions:ident, $shared:ident, $known:path) => {
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
            $shared::Release,
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

        impl From<$shared::Precision> for plan::Precision {
            fn from(precision: $shared::Precision) -> Self {
                match precision {
                    $shared::Precision::Uniform(dtype) => Self::Uniform(dtype.into()),
                    $shared::Precision::Mixed(dtype) => Self::Mixed(dtype.into()),
                }
            }
        }

        impl From<plan::Precision> for $shared::Precision {
            fn from(precision: plan::Precision) -> Self {
                match $known(precision) {
                    plan::Precision::Uniform(dtype) => Self::Uniform(dtype.into()),
                    plan::Precision::Mixed(dtype) => Self::Mixed(dtype.into()),
                }
            }
        }

        impl From<plan::Failure> for $shared::Failure {
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
