//! WAN's architecture, read off the shapes of its weights.

use serde::{Deserialize, Serialize};

use crate::{
    Result, config_json,
    network_file::NetworkConfig,
    transformer::{MOST_WIDTH, TransformerFile},
};

/// Pixels of a latent along the side of a token; in time there is one.
pub(super) const PATCH: i64 = 2;

/// The width of a head in every published network.
const HEAD: i64 = 128;

/// The architecture of a transformer of WAN's kind.
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
    /// Width of a time's embedding.
    pub time: i64,
    /// Width of the text's tokens.
    pub text: i64,
    /// Width of the tokens of a picture to begin from, if there are such.
    pub image: Option<i64>,
    /// Channels of the input.
    pub input_channels: i64,
    /// Channels of a latent.
    pub latent_channels: i64,
}

/// config.json as far as it is of use here.
#[derive(Default, Deserialize)]
struct ConfigFile {
    num_attention_heads: Option<i64>,
    num_heads: Option<i64>,
}

impl Config {
    /// Reads the architecture off a file.
    ///
    /// # Errors
    /// A tensor that the architecture is read from is missing, or the shapes are of no such
    /// network.
    pub fn read(file: &TransformerFile) -> Result<Self> {
        let refused = |reason| file.refuse("WAN transformer", reason);
        let hidden = file.extent("patch_embedding.weight", 0)?;
        let written: ConfigFile = config_json::beside(file.file(), &["WanTransformer3DModel", "WanModel"])?;
        let heads = written.num_attention_heads.or(written.num_heads).unwrap_or(hidden / HEAD);
        if heads < 1 || hidden % heads != 0 || hidden / heads % 2 != 0 {
            return Err(refused(format!(
                "{heads} heads in a width of {hidden}, and no config.json beside it tells others"
            )));
        }
        let shape = file.shape("patch_embedding.weight").unwrap_or_default();
        let token: i64 = shape.iter().skip(1).map(|&extent| extent as i64).product();
        let out = file.extent("head.head.bias", 0)?;
        let area = PATCH * PATCH;
        if token < 1 || token > MOST_WIDTH as i64 || token % area != 0 || out % area != 0 || token < out {
            return Err(refused(format!("tokens of {token} values in and {out} out")));
        }
        let image = file.shape("img_emb.proj.1.weight").map(|_| file.extent("img_emb.proj.1.weight", 1)).transpose()?;
        Ok(Self {
            hidden,
            heads,
            blocks: file.blocks("blocks")?,
            feed_forward: file.extent("blocks.0.ffn.0.bias", 0)?,
            time: file.extent("time_embedding.0.weight", 1)?,
            text: file.extent("text_embedding.0.weight", 1)?,
            image,
            input_channels: token / area,
            latent_channels: out / area,
        })
    }

    /// The values of a head that belong to frame, row and column.
    pub(super) fn axes(&self) -> [i64; 3] {
        let each = self.hidden / self.heads;
        let side = 2 * (each / 6);
        [each - 2 * side, side, side]
    }
}

impl NetworkConfig for Config {
    fn head_width(&self) -> i64 {
        self.hidden / self.heads
    }

    fn block_names(&self) -> Vec<(&'static str, usize)> {
        vec![("blocks", self.blocks)]
    }
}
