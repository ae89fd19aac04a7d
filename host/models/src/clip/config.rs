//! A CLIP text encoder's architecture, read off the shapes of its weights.

use serde::{Deserialize, Serialize};
use tilewright_checkpoint::Error as FileError;
use tilewright_nn::{ComputeFormat, Costs, Gelu, Meter, Needed, TokenListing, TokenScope};

use super::Network;
use crate::{
    Error, Result, config_json,
    transformer::{Layout, TransformerFile},
};

/// The published width of a head.
const HEAD: i64 = 64;

/// The widths of OpenCLIP's published encoders (ViT-H, bigG), whose gelu is exact; OpenAI's is the
/// quick one.
const OPEN_CLIP: [i64; 2] = [1024, 1280];

/// The architecture of a CLIP text encoder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Width of tokens.
    pub hidden: i64,
    /// Heads side by side in it.
    pub heads: i64,
    /// Blocks.
    pub blocks: usize,
    /// Width between the two layers of a feed-forward.
    pub feed_forward: i64,
    /// Tokens of the vocabulary. The last one ends a text.
    pub vocabulary: i64,
    /// The most tokens of a text.
    pub positions: i64,
    /// The gelu is OpenAI's.
    pub quick_gelu: bool,
}

/// config.json of transformers as far as it is of use here.
#[derive(Default, Deserialize)]
struct ConfigFile {
    num_attention_heads: Option<i64>,
    hidden_act: Option<String>,
}

impl Config {
    /// Reads the architecture off a file.
    ///
    /// # Errors
    /// A tensor that tells it is missing, or the shapes are of no such network.
    pub fn read(file: &TransformerFile) -> Result<Self> {
        let extent = |name: &str, axis| file.extent(name, axis).map(|extent| extent as i64);
        let hidden = extent("tokens.weight", 1)?;
        let blocks = match file.layout {
            Layout::Original => file.blocks("transformer.resblocks")?,
            _ => file.blocks("encoder.layers")?,
        };
        let written: ConfigFile =
            config_json::beside(file.file(), &[])?.map(|(_, written)| written).unwrap_or_default();
        let refused = |reason: String| {
            Error::File(FileError::Format {
                path: file.file().path().to_owned(),
                reason: format!("no CLIP text encoder: {reason}"),
            })
        };
        let heads = written.num_attention_heads.unwrap_or(hidden / HEAD);
        if heads < 1 || hidden % heads != 0 {
            return Err(refused(format!("{heads} heads in a width of {hidden}")));
        }
        let quick_gelu = match (written.hidden_act.as_deref(), file.layout) {
            (Some("quick_gelu"), _) => true,
            (Some("gelu"), _) | (None, Layout::Original) => false,
            (None, _) => !OPEN_CLIP.contains(&hidden),
            (Some(other), _) => {
                return Err(refused(format!("hidden_act is {other}: gelu and quick_gelu are known")));
            }
        };
        Ok(Self {
            hidden,
            heads,
            blocks,
            feed_forward: extent("blocks.0.widen.bias", 0)?,
            vocabulary: extent("tokens.weight", 0)?,
            positions: extent("positions.weight", 0)?,
            quick_gelu,
        })
    }

    /// The gelu of feed-forward layers.
    pub(super) fn gelu(&self) -> Gelu {
        if self.quick_gelu { Gelu::Quick } else { Gelu::Exact }
    }

    /// The weights that the network needs, and the tables that its input is made of.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    pub fn needed(&self) -> Result<Vec<Needed>> {
        let meter = Meter::new(ComputeFormat::single(), Costs::default());
        let listing = TokenListing::default();
        Network::build(self, &TokenScope::new(&listing, &meter))?;
        let table = |name: &str, rows: i64| Needed {
            name: name.into(),
            shapes: vec![vec![rows as usize, self.hidden as usize]],
        };
        let mut needed = listing.into_needed();
        needed.extend([table("tokens.weight", self.vocabulary), table("positions.weight", self.positions)]);
        Ok(needed)
    }
}
