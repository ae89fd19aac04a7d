//! Conversions that all versions share: the parts of their plans, and their settings, have the same
//! shape.

/// Writes both directions of a conversion between enums of the contract and of [`tilewright_plan`],
/// which is in scope as `plan`. Their variants have the same names, and values that convert. A
/// value with a name in braces has one in [`tilewright_plan`] alone.
macro_rules! alike {
    ($module:ident::$contract:ident, $plan:ident, $($name:ident $(($value:ident))? $({ $field:ident })?),+) => {
        impl From<$module::$contract> for plan::$plan {
            fn from(value: $module::$contract) -> Self {
                match value {
                    $($module::$contract::$name $(($value))? $(($field))? => {
                        Self::$name $(($value.into()))? $({ $field: $field.into() })?
                    })+
                }
            }
        }
        impl From<plan::$plan> for $module::$contract {
            fn from(value: plan::$plan) -> Self {
                match value {
                    $(plan::$plan::$name $(($value))? $({ $field })? => {
                        Self::$name $(($value.into()))? $(($field.into()))?
                    })+
                }
            }
        }
    };
}

/// Writes the conversions between a version's types and [`tilewright_plan`]'s. `$decisions` is the
/// interface that holds plans of decodes and encodes, `$shared` the one that holds their types and
/// failures; they, `host`, `types`, `lifecycle` and [`alike`] have to be in scope, and
/// [`tilewright_plan`] as `plan`.
macro_rules! conversions {
    ($decisions:ident, $shared:ident) => {
        alike!(types::Backend, Backend, Cpu, Cuda, Rocm, Metal);
        alike!(types::Objective, Objective, Fastest, Balanced, Leanest);
        alike!($decisions::Layout, Layout, ChannelsFirst, ChannelsLast);
        alike!($decisions::Space, Space, Whole, Blended(tile), Exact(tile));
        alike!($shared::Release, Release, Keep, AtEnd, EachStep);
        alike!($shared::Precision, Precision, Uniform(dtype), Mixed(dtype));
        alike!($shared::Failure, Failure, OutOfMemory { bytes }, NonFinite { values }, OverLimit { bytes });
        alike!(host::Level, LogLevel, Debug, Info, Warn);
        alike!(lifecycle::Value, Value, Flag(flag), Integer(integer), Number(number), Text(text));

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

        /// A device in the contract's form; `fast_dtypes` are its own.
        fn lend_device<'a>(device: &'a plan::Device, fast_dtypes: &'a [types::Dtype]) -> types::Device<'a> {
            types::Device {
                backend: device.backend.into(),
                name: &device.name,
                arch: &device.arch,
                compute_units: device.compute_units,
                total_bytes: device.total_bytes,
                free_bytes: device.free_bytes,
                unified: device.unified,
                fast_dtypes,
            }
        }
    };
}

/// Writes an instance's own functions: `$lifecycle` and `$parts` of an instance `$policy`, and
/// `$stages` of what it has `$said` of itself. `lifecycle` and `contract` have to be in scope.
macro_rules! lifecycle {
    ($instance:ty, |$policy:ident| $lifecycle:expr, |$own:ident| $parts:expr, |$said:ident| $stages:expr) => {
        impl $crate::contract::Instance for $instance {
            fn parts(&self) -> $crate::contract::Parts<'_> {
                let $own = self;
                $parts
            }

            fn describe(&self, store: &mut Store<Guest>) -> Result<Description> {
                let $policy = self;
                let $said = $lifecycle.call_describe(store)?;
                let stages = $stages;
                let setting =
                    |lifecycle::Setting { name, summary, default }| Setting { name, summary, default: default.into() };
                let settings = $said.settings.into_iter().map(setting).collect();
                let (name, version, summary) = ($said.name, $said.version, $said.summary);
                Ok(Description { name, version, summary, stages, settings })
            }

            fn configure(
                &self,
                store: &mut Store<Guest>,
                settings: &[(String, Value)],
            ) -> Result<std::result::Result<(), String>> {
                let values: Vec<_> = settings.iter().map(|(_, value)| lifecycle::Value::from(value.clone())).collect();
                let settings: Vec<_> =
                    settings.iter().zip(&values).map(|((name, _), value)| (&**name, value)).collect();
                let $policy = self;
                $lifecycle.call_configure(store, &settings)
            }
        }

        impl contract::types::Host for Guest {}

        impl contract::host::Host for Guest {
            fn log(&mut self, level: contract::host::Level, message: String) -> Result<()> {
                Guest::log(self, level.into(), message)
            }
        }
    };
}

pub(super) use {alike, conversions, lifecycle};
