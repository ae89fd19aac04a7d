//! The way in which work is run. Mirrors the contract's `vae.plan`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Dtype, Options};

/// A tile, in pixels of the frames' side (a decode's output, an encode's input).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Tile {
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
    /// Pixels that neighbouring tiles share, along either axis.
    pub overlap: u32,
}

/// The division of the picture's area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Space {
    /// No division.
    Whole,
    /// Tiles that run alone and are cross-faded where they overlap.
    Blended(Tile),
    /// Tiles that share borders and norm statistics: the whole picture's output, in less memory.
    Exact(Tile),
}

impl Space {
    /// The tile, if the area is divided.
    pub const fn tile(&self) -> Option<Tile> {
        match self {
            Space::Whole => None,
            Space::Blended(tile) | Space::Exact(tile) => Some(*tile),
        }
    }
}

/// The division of a clip's frames; counts are frames of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Time {
    /// No division.
    Whole,
    /// Chunks that carry the causal cache.
    Carried {
        /// Frames of a chunk.
        frames: u32,
    },
    /// Chunks that run alone and are cross-faded.
    Blended {
        /// Frames of a chunk.
        frames: u32,
        /// Frames that neighbouring chunks share.
        overlap: u32,
    },
}

/// The element types that the work is done in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "dtype", rename_all = "kebab-case")]
pub enum Precision {
    /// Everything in this type.
    Uniform(Dtype),
    /// Convolutions and matrix products in this type; norms, softmax and sums in f32.
    Mixed(Dtype),
}

impl Precision {
    /// The type that convolutions and matrix products run in.
    pub const fn dtype(&self) -> Dtype {
        match self {
            Precision::Uniform(dtype) | Precision::Mixed(dtype) => *dtype,
        }
    }

    /// The name in settings: `bf16`, `mixed-bf16`.
    pub fn setting(&self) -> String {
        match self {
            Precision::Uniform(dtype) => dtype.to_string(),
            Precision::Mixed(dtype) => format!("mixed-{dtype}"),
        }
    }

    /// The precisions that a transformer or a text encoder can be asked to compute in, by their
    /// names in settings: `f32`, `bf16`, `f16`, `mixed-bf16`, `mixed-f16`.
    pub fn of_tokens(name: &str) -> Option<Self> {
        let types = [Dtype::F32, Dtype::Bf16, Dtype::F16];
        let uniform = types.into_iter().map(Precision::Uniform);
        let mixed = types.into_iter().skip(1).map(Precision::Mixed);
        uniform.chain(mixed).find(|precision| precision.setting() == name)
    }
}

crate::names! {
    /// The order of a tensor's elements in memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Layout {
        /// [N, C, H, W] in memory.
        ChannelsFirst = "channels-first",
        /// [N, H, W, C] in memory.
        ChannelsLast = "channels-last",
    }
}

crate::names! {
    /// The time at which memory that the pool holds but nothing uses is freed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Release {
        /// Never.
        Keep = "keep",
        /// When the work ends.
        AtEnd = "at-end",
        /// After each tile or chunk.
        EachStep = "each-step",
    }
}

/// The way in which work will be run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// The division of the area.
    pub space: Space,
    /// The division of the frames.
    pub time: Time,
    /// Samples, or tiles of one shape, that run together.
    pub batch: u32,
    /// Element types.
    pub precision: Precision,
    /// Memory order.
    pub layout: Layout,
    /// The time at which unused memory is freed.
    pub release: Release,
    /// Activations that wait are kept in host memory.
    pub offload: bool,
    /// Inputs copied to the device ahead of their turn.
    pub prefetch: u32,
    /// The options that are set beside these fields.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub options: Options,
    /// The policy's reason in a few words, for the person who reads the decision.
    pub reason: String,
}

impl Plan {
    /// The plan that changes least: whole, in f32, one after the other, and nothing is freed.
    pub const fn plain() -> Self {
        Self {
            space: Space::Whole,
            time: Time::Whole,
            batch: 1,
            precision: Precision::Uniform(Dtype::F32),
            layout: Layout::ChannelsFirst,
            release: Release::Keep,
            offload: false,
            prefetch: 0,
            options: Options::none(),
            reason: String::new(),
        }
    }

    /// True if parts of the output are cross-faded, in space or in time: it is not quite the whole
    /// picture's or clip's.
    pub const fn is_blended(&self) -> bool {
        matches!(self.space, Space::Blended(_)) || matches!(self.time, Time::Blended { .. })
    }
}

/// The division and the types: `exact 512x1024 tiles bf16`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time {
            Time::Whole => write!(f, "{} {}{}", self.space, self.precision, self.options),
            time => write!(f, "{} {time} {}{}", self.space, self.precision, self.options),
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, tile) = match self {
            Space::Whole => return f.write_str("whole"),
            Space::Blended(tile) => ("blended", tile),
            Space::Exact(tile) => ("exact", tile),
        };
        write!(f, "{kind} {}×{}/{}", tile.width, tile.height, tile.overlap)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Time::Whole => f.write_str("whole"),
            Time::Carried { frames } => write!(f, "carried {frames}"),
            Time::Blended { frames, overlap } => write!(f, "blended {frames}/{overlap}"),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The only one that makes sense has the short name.
            Precision::Mixed(dtype @ Dtype::Tf32) => write!(f, "{dtype}"),
            Precision::Uniform(dtype @ Dtype::Tf32) => write!(f, "uniform {dtype}"),
            Precision::Uniform(dtype) => write!(f, "{dtype}"),
            Precision::Mixed(dtype) => write!(f, "mixed {dtype}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vae, Work};

    #[test]
    fn a_reason_makes_no_other_plan() {
        let plan = Plan { reason: "as set".into(), ..Plan::plain() };
        assert!(Vae::is_same_work(&plan, &Plan { reason: "other".into(), ..plan.clone() }));
        assert!(!Vae::is_same_work(&plan, &Plan { release: Release::AtEnd, ..plan.clone() }));
        assert_eq!(Vae::without_reason(&plan), Plan { reason: String::new(), ..plan });
    }
}
