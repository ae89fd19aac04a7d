//! A text encoder with its weights on a device, and the tables that its input is made of.

use tch::Tensor;
use tilewright_nn::{Ops, TokenOps};
use tilewright_plan::Dtype;
use tilewright_torch::{conv2d, packed};

use super::{EncoderConfig, EncoderFile, EncoderStates};
use crate::{Error, Result, clip, network_file::LoadedNetwork};

impl EncoderFile {
    /// The vectors of tokens of the vocabulary, [tokens, width] in f32: rows of a table that stays
    /// in its file.
    ///
    /// # Errors
    /// A number is beyond the vocabulary; the table can't be read.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        self.file.rows_of("tokens.weight", tokens.iter().map(|token| *token as usize))
    }

    /// Adds the vectors of positions to a text's [N, tokens, width], of an encoder that has them.
    ///
    /// # Errors
    /// The text has more tokens than there are positions.
    pub fn add_positions(&self, embedded: &Tensor) -> Result<Tensor> {
        if self.config.positions().is_none() {
            return Ok(embedded.shallow_clone());
        }
        let count = embedded.size().get(1).copied().unwrap_or_default().max(0) as usize;
        Ok(embedded.f_add(&self.file.rows_of("positions.weight", 0..count)?)?)
    }

    /// The tokens of pictures [N, 3, side, side], [N, tokens, width] with positions: a class, and
    /// then patch by patch.
    ///
    /// # Errors
    /// The encoder is one of text, or the pictures have other extents.
    pub fn embed_pictures(&self, pixels: &Tensor) -> Result<Tensor> {
        let (Some(picture), Some(positions)) = (self.config.picture(), self.config.positions()) else {
            let reason = "an encoder of text, and a picture is given".into();
            return Err(Error::Unknown { path: self.file.file().path().to_owned(), reason });
        };
        let hidden = self.config.hidden();
        let patches = self.file.rows_of("patches.weight", 0..hidden as usize)?;
        let patches = patches.f_reshape([hidden, clip::CHANNELS, picture.patch, picture.patch])?;
        let tokens = conv2d(pixels, &patches, None, picture.patch, [0, 0], false)?.f_flatten(2, -1)?;
        let class = self.file.values_of("class")?.f_reshape([1, 1, hidden])?;
        let class = class.f_expand([pixels.size()[0], 1, hidden], false)?;
        let tokens = Tensor::f_cat(&[class, tokens.f_transpose(1, 2)?], 1)?;
        Ok(tokens.f_add(&self.file.rows_of("positions.weight", 0..positions as usize)?)?)
    }

    /// Pooled states [N, width], projected, of an encoder that has a projection.
    ///
    /// # Errors
    /// The projection can't be read.
    pub fn project(&self, pooled: &Tensor) -> Result<Option<Tensor>> {
        let Some((name, is_transposed)) = self.projection() else { return Ok(None) };
        let packed = self.file.file().matrix(&name)?;
        let weight = packed::expand(&packed, 0..packed.shape()[0], pooled.f_kind()?)?.f_to_device(pooled.device())?;
        let weight = if is_transposed { weight } else { weight.f_transpose(0, 1)? };
        Ok(Some(pooled.f_matmul(&weight)?))
    }
}

/// A text encoder with its weights on a device.
pub type LoadedEncoder = LoadedNetwork<EncoderConfig>;

impl LoadedEncoder {
    /// The states of embedded texts [N, tokens, width], with positions. `left_out` blocks of an
    /// encoder of CLIP's kind come after its inner states.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn states(&self, embedded: &Tensor, left_out: usize) -> Result<EncoderStates<Tensor>> {
        // The network writes over its input.
        let own = self.ops.unset(&embedded.size(), Dtype::F32)?;
        self.ops.copy_onto(&own, embedded)?;
        self.network.forward(&self.ops, own, left_out)
    }
}
