//! A CLIP encoder's architecture, of text or of pictures, read off the shapes of its weights.

use serde::{Deserialize, Serialize};
use tilewright_nn::{Gelu, Needed};

use crate::{
    Result, config_json,
    network_file::{NetworkConfig, table},
    text_encoder::EncoderArchitecture,
    transformer::{Layout, TransformerFile},
};

/// The published width of a head.
const HEAD: i64 = 64;

/// The widths of OpenCLIP's published encoders (ViT-H, bigG), whose gelu is exact; OpenAI's is the
/// quick one.
const OPEN_CLIP: [i64; 2] = [1024, 1280];

/// The heads of published encoders of pictures: 12 of the base's width, 16 of every larger one.
const BASE: i64 = 768;
const HEADS: [i64; 2] = [12, 16];

/// Channels of a picture, and the most patches along a side.
pub(crate) const CHANNELS: i64 = 3;
const MOST_ALONG: i64 = 256;

/// The widths of OpenCLIP's published encoders of pictures (ViT-H, ViT-g, bigG).
const OPEN_CLIP_PICTURES: [i64; 3] = [1280, 1408, 1664];

/// The input of an encoder of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Picture {
    /// Pixels along a side.
    pub side: i64,
    /// Pixels along a side of a token.
    pub patch: i64,
}

/// The architecture of a CLIP encoder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Width of tokens.
    pub hidden: i64,
    /// Heads side by side in it.
    pub heads: i64,
    /// Blocks.
    pub blocks: usize,
    /// Width between the two layers of a feed-forward.
    pub feed_forward: i64,
    /// Tokens of the vocabulary, of which the last one ends a text; none for pictures.
    pub vocabulary: i64,
    /// The most tokens of a text; the tokens of a picture.
    pub positions: i64,
    /// The gelu is OpenAI's.
    pub quick_gelu: bool,
    /// The input, if it encodes pictures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<Picture>,
}

/// config.json of transformers as far as it is of use here.
#[derive(Default, Deserialize)]
struct ConfigFile {
    num_attention_heads: Option<i64>,
    hidden_act: Option<String>,
}

impl Config {
    /// Reads the architecture of an encoder, of text or of pictures, off a file.
    ///
    /// # Errors
    /// A tensor that the architecture is read from is missing, or the shapes are of no such
    /// network.
    pub(crate) fn read(file: &TransformerFile, is_vision: bool) -> Result<Self> {
        if is_vision { Self::read_picture(file) } else { Self::read_text(file) }
    }

    fn read_text(file: &TransformerFile) -> Result<Self> {
        let (vocabulary, hidden) = (file.extent("tokens.weight", 0)?, file.extent("tokens.weight", 1)?);
        let heads = hidden / HEAD;
        let quick_gelu = file.layout != Layout::Original && !OPEN_CLIP.contains(&hidden);
        Self::read_blocks(file, Self { heads, quick_gelu, vocabulary, hidden, ..Self::default() })
    }

    fn read_picture(file: &TransformerFile) -> Result<Self> {
        let hidden = file.extent("patches.weight", 0)?;
        let heads = if hidden == BASE { HEADS[0] } else { HEADS[1] };
        let quick_gelu = file.layout != Layout::Original && !OPEN_CLIP_PICTURES.contains(&hidden);
        let config = Self::read_blocks(file, Self { heads, quick_gelu, hidden, ..Self::default() })?;
        let patch = file.extent("patches.weight", 2)?;
        let along = (1..=MOST_ALONG).find(|along| along * along + 1 == config.positions);
        match (along, patch) {
            (Some(along), 1..) => Ok(Self { picture: Some(Picture { side: along * patch, patch }), ..config }),
            _ => Err(file.refuse(
                "CLIP encoder",
                format!("{} positions are no square of patches and a class", config.positions),
            )),
        }
    }

    /// Extents that both kinds have, with the heads and the gelu that config.json names, if it is
    /// there.
    fn read_blocks(file: &TransformerFile, usual: Self) -> Result<Self> {
        let written: ConfigFile = config_json::beside(file.file(), &[])?;
        let (heads, hidden) = (written.num_attention_heads.unwrap_or(usual.heads), usual.hidden);
        if heads < 1 || hidden % heads != 0 {
            return Err(file.refuse("CLIP encoder", format!("{heads} heads in a width of {hidden}")));
        }
        let quick_gelu = match written.hidden_act.as_deref() {
            Some("quick_gelu") => true,
            Some("gelu") => false,
            None => usual.quick_gelu,
            Some(other) => {
                return Err(
                    file.refuse("CLIP encoder", format!("hidden_act is {other}: gelu and quick_gelu are known"))
                );
            }
        };
        Ok(Self {
            heads,
            blocks: file.blocks(usual.block_start(file.layout))?,
            quick_gelu,
            feed_forward: file.extent("blocks.0.widen.bias", 0)?,
            positions: file.extent("positions.weight", 0)?,
            ..usual
        })
    }

    /// The gelu of feed-forward layers.
    pub(super) fn gelu(&self) -> Gelu {
        if self.quick_gelu { Gelu::Quick } else { Gelu::Exact }
    }
}

impl NetworkConfig for Config {
    fn tables(&self) -> Vec<Needed> {
        let mut tables = vec![table("positions.weight", &[self.positions, self.hidden])];
        match self.picture {
            None => tables.push(table("tokens.weight", &[self.vocabulary, self.hidden])),
            Some(Picture { patch, .. }) => {
                tables.push(table("class", &[self.hidden]));
                tables.push(table("patches.weight", &[self.hidden, CHANNELS * patch * patch]));
            }
        }
        tables
    }

    fn head_width(&self) -> i64 {
        self.hidden / self.heads
    }

    fn block_names(&self) -> Vec<(&'static str, usize)> {
        vec![("blocks", self.blocks)]
    }
}
