//! How a piece of work is run. Mirrors the contract's `decoding.plan`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Dtype;

/// A tile of the decoded picture, in output pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Tile {
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
    /// Pixels that neighbouring tiles share, along either axis.
    pub overlap: u32,
}

/// How the picture's area is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Space {
    /// Not at all.
    Whole,
    /// Tiles decoded alone and cross-faded where they overlap.
    Blended(Tile),
    /// Tiles that share borders and norm statistics: the whole picture's output, in less memory.
    Exact(Tile),
}

impl Space {
    /// The tile, where there is one.
    pub const fn tile(&self) -> Option<Tile> {
        match self {
            Space::Whole => None,
            Space::Blended(tile) | Space::Exact(tile) => Some(*tile),
        }
    }
}

/// How a clip's frames are divided; counts are output frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Time {
    /// Not at all.
    Whole,
    /// Chunks, the causal state carried across.
    Carried {
        /// Frames of a chunk.
        frames: u32,
    },
    /// Chunks decoded alone and cross-faded.
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
}

/// The order of a tensor's elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// [N, C, H, W] in memory.
    ChannelsFirst,
    /// [N, H, W, C] in memory.
    ChannelsLast,
}

/// When memory that the pool holds but nothing uses is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// Never.
    Keep,
    /// When the decode ends.
    AtEnd,
    /// After each tile or chunk.
    EachStep,
}

/// How a decode will be run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// How the area is divided.
    pub space: Space,
    /// How the frames are divided.
    pub time: Time,
    /// Samples, or tiles of one shape, that run together.
    pub batch: u32,
    /// Element types.
    pub precision: Precision,
    /// Memory order.
    pub layout: Layout,
    /// When unused memory is handed back.
    pub release: Release,
    /// Keep activations that wait in host memory.
    pub offload: bool,
    /// Inputs copied to the device ahead of their turn.
    pub prefetch: u32,
    /// Why, in a few words, for the person who reads the decision.
    pub reason: String,
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
            Precision::Uniform(dtype) => write!(f, "{dtype}"),
            Precision::Mixed(dtype) => write!(f, "mixed {dtype}"),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Release::Keep => "keep",
            Release::AtEnd => "at-end",
            Release::EachStep => "each-step",
        })
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::ChannelsFirst => "channels-first",
            Layout::ChannelsLast => "channels-last",
        })
    }
}
