//! Flux.1's architecture, read off the shapes of its weights.

use serde::{Deserialize, Serialize};

use crate::{
    Result, config_json,
    network_file::NetworkConfig,
    transformer::{Layout, TransformerFile},
};

/// The width of a time's embedding.
pub(super) const TIME_WIDTH: i64 = 256;

/// Pixels of a latent along the side of a token.
pub(super) const PATCH: i64 = 2;

/// The published widths of a head's values that belong to image, row and column, for heads 128
/// wide.
const AXES: [i64; 3] = [16, 56, 56];

/// The architecture of a transformer of Flux.1's kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Width of tokens.
    pub hidden: i64,
    /// Heads side by side in it.
    pub heads: i64,
    /// Values of a head that the rotary embedding turns by image (always 0), row and column.
    pub axes: [i64; 3],
    /// Blocks with image and text apart.
    pub double_blocks: usize,
    /// Blocks with both together.
    pub single_blocks: usize,
    /// Width between the two layers of a feed-forward.
    pub feed_forward: i64,
    /// Width of the text's tokens.
    pub text: i64,
    /// Width of the text's vector.
    pub pooled: i64,
    /// Channels of a latent.
    pub latent_channels: i64,
    /// The guidance is an input (dev); else it is not (schnell).
    pub guidance: bool,
}

/// config.json as far as it is of use here.
#[derive(Default, Deserialize)]
struct ConfigFile {
    axes_dims_rope: Option<Vec<i64>>,
}

impl Config {
    /// Reads the architecture off a file.
    ///
    /// # Errors
    /// A tensor that the architecture is read from is missing, or the shapes are of no such
    /// network.
    pub fn read(file: &TransformerFile) -> Result<Self> {
        let hidden = file.extent("img_in.weight", 0)?;
        let (double_blocks, single_blocks) = match file.layout {
            Layout::Original | Layout::ComfyUi | Layout::LlamaCpp => {
                (file.blocks("double_blocks")?, file.blocks("single_blocks")?)
            }
            Layout::Diffusers => (file.blocks("transformer_blocks")?, file.blocks("single_transformer_blocks")?),
        };
        let refused = |reason| file.refuse("Flux.1 transformer", reason);
        let (each, feed_forward) = match double_blocks {
            0 => (
                file.extent("single_blocks.0.norm.query_norm.scale", 0)?,
                file.extent("single_blocks.0.linear2.weight", 1)? - hidden,
            ),
            _ => (
                file.extent("double_blocks.0.img_attn.norm.query_norm.scale", 0)?,
                file.extent("double_blocks.0.img_mlp.0.bias", 0)?,
            ),
        };
        let token = file.extent("img_in.weight", 1)?;
        let written: ConfigFile = config_json::beside(file.file(), &["FluxTransformer2DModel"])?;
        let axes = match written.axes_dims_rope.as_deref() {
            Some(&[image, row, column]) => [image, row, column],
            Some(other) => return Err(refused(format!("axes_dims_rope has {} numbers, 3 were expected", other.len()))),
            None if each == AXES.iter().sum::<i64>() => AXES,
            None => {
                return Err(refused(format!("heads are {each} wide, and no config.json beside it tells their axes")));
            }
        };
        let even = axes.iter().all(|axis| (0..=each).contains(axis) && axis % 2 == 0);
        if !even || each < 1 || hidden % each != 0 || axes.iter().sum::<i64>() != each {
            return Err(refused(format!("heads of {each} in a width of {hidden}, with axes {axes:?}")));
        }
        if token % (PATCH * PATCH) != 0 || feed_forward < 1 {
            return Err(refused(format!("tokens of {token} values and feed-forwards {feed_forward} wide")));
        }
        Ok(Self {
            hidden,
            heads: hidden / each,
            axes,
            double_blocks,
            single_blocks,
            feed_forward,
            text: file.extent("txt_in.weight", 1)?,
            pooled: file.extent("vector_in.in_layer.weight", 1)?,
            latent_channels: token / (PATCH * PATCH),
            guidance: file.shape("guidance_in.in_layer.weight").is_some(),
        })
    }
}

impl NetworkConfig for Config {
    fn head_width(&self) -> i64 {
        self.axes.iter().sum()
    }

    fn block_names(&self) -> Vec<(&'static str, usize)> {
        vec![("double_blocks", self.double_blocks), ("single_blocks", self.single_blocks)]
    }
}
