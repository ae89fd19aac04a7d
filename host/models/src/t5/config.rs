//! A T5 encoder's architecture, read off the shapes of its weights.

use serde::{Deserialize, Serialize};
use tilewright_nn::Needed;

use super::names::block_start;
use crate::{
    Result, config_json,
    network_file::{NetworkConfig, table},
    transformer::TransformerFile,
};

/// The published distance from which on all keys are equally far.
const FARTHEST: i64 = 128;

/// The published epsilon of norms.
const EPSILON: f64 = 1e-6;

/// The architecture of a T5 encoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Width of tokens.
    pub hidden: i64,
    /// Heads side by side in the width of attention.
    pub heads: i64,
    /// Width of all heads together.
    pub attention: i64,
    /// Blocks.
    pub blocks: usize,
    /// Width between the two layers of a feed-forward.
    pub feed_forward: i64,
    /// Tokens of the vocabulary.
    pub vocabulary: i64,
    /// Distances from key to query that are distinguished.
    pub distances: i64,
    /// The distance from which on all keys are equally far.
    pub farthest: i64,
    /// Each block has a table of distances (UMT5), not the first alone (T5).
    pub own_distances: bool,
    /// The epsilon of every norm.
    pub epsilon: f64,
}

/// config.json of transformers as far as it is of use here.
#[derive(Default, Deserialize)]
struct ConfigFile {
    relative_attention_max_distance: Option<i64>,
    layer_norm_epsilon: Option<f64>,
    feed_forward_proj: Option<String>,
}

impl Config {
    /// Reads the architecture off a file.
    ///
    /// # Errors
    /// A tensor that the architecture is read from is missing, or the shapes are of no such
    /// network.
    pub(crate) fn read(file: &TransformerFile, _is_vision: bool) -> Result<Self> {
        let refused = |reason| file.refuse("T5 encoder of version 1.1", reason);
        let written: ConfigFile = config_json::beside(file.file(), &[])?;
        if let Some(other) = written.feed_forward_proj.filter(|written| written != "gated-gelu") {
            return Err(refused(format!("feed_forward_proj is {other}: gated-gelu is known")));
        }
        let (attention, heads) =
            (file.extent("blocks.0.attention.out.weight", 1)?, file.extent("blocks.0.attention.distances.weight", 1)?);
        let distances = file.extent("blocks.0.attention.distances.weight", 0)?;
        let farthest = written.relative_attention_max_distance.unwrap_or(FARTHEST);
        let epsilon = written.layer_norm_epsilon.unwrap_or(EPSILON);
        if attention % heads != 0 {
            return Err(refused(format!("{heads} heads in a width of {attention}")));
        }
        if distances % 4 != 0 || farthest <= distances / 4 || farthest > 1 << 20 {
            return Err(refused(format!("{distances} distances up to {farthest}")));
        }
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(refused(format!("layer_norm_epsilon is {epsilon}")));
        }
        Ok(Self {
            hidden: file.extent("tokens.weight", 1)?,
            heads,
            attention,
            blocks: file.blocks(block_start(file.layout))?,
            feed_forward: file.extent("blocks.0.feed_forward.narrow.weight", 1)?,
            vocabulary: file.extent("tokens.weight", 0)?,
            distances,
            farthest,
            own_distances: file.shape("blocks.1.attention.distances.weight").is_some(),
            epsilon,
        })
    }

    /// The row of the table of distances for a key that is so far behind its query: half of the
    /// rows are for each direction, and half of these for single distances, the others for ranges
    /// that grow geometrically (Raffel et al., "Exploring the Limits of Transfer Learning", 2020;
    /// `_relative_position_bucket` of transformers, in f32 as there).
    pub(super) fn row(&self, distance: i64) -> i64 {
        let one_way = self.distances / 2;
        let single = one_way / 2;
        let (start, far) = (if distance > 0 { one_way } else { 0 }, distance.abs());
        if far < single {
            return start + far;
        }
        let growth = (far as f32 / single as f32).ln() / ((self.farthest as f64 / single as f64).ln() as f32);
        start + (single + (growth * (one_way - single) as f32) as i64).min(one_way - 1)
    }
}

impl NetworkConfig for Config {
    fn tables(&self) -> Vec<Needed> {
        vec![table("tokens.weight", &[self.vocabulary, self.hidden])]
    }

    fn head_width(&self) -> i64 {
        self.attention / self.heads
    }

    fn block_names(&self) -> Vec<(&'static str, usize)> {
        vec![("blocks", self.blocks)]
    }
}
