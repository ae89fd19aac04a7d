//! Conditioning, and its file.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use tch::Tensor;
use tilewright_media::{self as media, Format, Options, Output};
use tilewright_outputs::destination;

use crate::{
    Error, PartIdentity, Result,
    latent_output::{Cause, raw, serialize, write},
    sample::{CONDITION, IMAGE, POOLED, TEXT, read},
};

/// The key of the encoders' identities among a conditioning's texts.
pub(super) const IDENTITIES: &str = "encoder_identities";

/// The tensors that text encoders hand to a transformer, in f32.
#[derive(Debug)]
pub struct Conditioning {
    /// [N, tokens, width]
    pub text: Tensor,
    /// [N, width], for a transformer that has it.
    pub pooled: Option<Tensor>,
    /// A vision encoder's states of a picture, [N, tokens, width], for a transformer that has it.
    pub image: Option<Tensor>,
    /// Channels behind the latents', [N, C, T, h, w], for a transformer that has them.
    pub condition: Option<Tensor>,
    /// The prompts, and the encoders that read them.
    pub texts: Vec<(String, String)>,
}

/// The place of a conditioning; found writable.
#[derive(Debug)]
pub struct ConditioningOutput(Output);

impl ConditioningOutput {
    /// Checks the ending and that the file can be written, before any work is done.
    ///
    /// # Errors
    /// The ending is another than `.safetensors`, or no file can be made there.
    pub fn new(path: &Path, no_clobber: bool) -> Result<Self> {
        destination(path).map_err(media::Error::from)?;
        if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("safetensors")) {
            return Err(Error::input(path, "unknown output ending: conditioning is written to .safetensors"));
        }
        let options = Options { format: Some(Format::Safetensors), no_clobber, ..Options::default() };
        Ok(Self(Output::with(path, media::Kind::Picture, options)?))
    }

    /// Writes a conditioning, and returns the file's name. A half-written file never has it.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, conditioning: &Conditioning) -> Result<PathBuf> {
        let path = self.0.names(1).pop().unwrap_or_else(|| self.0.path().to_owned());
        write(&self.0, path, conditioning.bytes())
    }
}

impl Conditioning {
    /// The text of a conditioning's file; the rest is left out.
    ///
    /// # Errors
    /// The file can't be read, or has none.
    pub fn text_of(path: &Path) -> Result<Self> {
        let text = read(path, TEXT)?.tensor;
        Ok(Self { text, pooled: None, image: None, condition: None, texts: Vec::new() })
    }

    /// The text encoders that made a conditioning's file, if it names them.
    pub fn encoders_of(path: &Path) -> Option<Vec<PartIdentity>> {
        let texts = media::read_texts(path);
        let (_, text) = texts.iter().find(|(name, _)| name == IDENTITIES)?;
        serde_json::from_str(text).ok()
    }

    /// The bytes of its file.
    ///
    /// # Errors
    /// A value is not finite, which no reader would take; memory is out.
    pub(crate) fn bytes(&self) -> std::result::Result<Vec<u8>, Cause> {
        let all = [
            (TEXT, Some(&self.text)),
            (POOLED, self.pooled.as_ref()),
            (IMAGE, self.image.as_ref()),
            (CONDITION, self.condition.as_ref()),
        ];
        let mut tensors = Vec::new();
        for (name, tensor) in all {
            let Some(tensor) = tensor else { continue };
            let values = tilewright_torch::non_finite(tensor)?;
            if values > 0 {
                return Err(format!("{values} values of {name} are NaN or infinite").into());
            }
            tensors.push((name, raw(tensor)?));
        }
        let texts: HashMap<String, String> = self.texts.iter().cloned().collect();
        Ok(serialize(&tensors, Some(texts))?)
    }
}
