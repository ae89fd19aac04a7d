//! The shapes of a conditioning, by the header of its file or by what a prompt's stages will make.

use std::path::Path;

use tilewright_models::{Checkpoint, DenoiserConfig, Error as ModelError, Widths};

use super::{SampleModel, Size};
use crate::{Error, Result};

/// Channels of a condition's mask, before those of its latent.
pub(super) const MASK_CHANNELS: i64 = 4;

/// The names of tensors in conditioning files.
pub(crate) const TEXT: &str = "prompt_embeds";
pub(crate) const POOLED: &str = "pooled_prompt_embeds";
pub(crate) const IMAGE: &str = "image_embeds";
pub(crate) const CONDITION: &str = "condition";

/// Tokens of a picture's embedding (CLIP ViT-H/14 at 224 pixels, with the class).
const IMAGE_TOKENS: i64 = 257;

/// The name of the tensor in mask files.
pub const MASK: &str = "mask";

/// Latents that still have noise, as the sampler left them, in a latent's file, and the sigma of
/// that noise: the latent itself is divided by what the noise leaves of it, and scaled for the VAE,
/// which costs bits.
pub const NOISY: &str = "noisy_latent";
/// See [`NOISY`].
pub const NOISY_SIGMA: &str = "noisy_sigma";

/// The shapes of a conditioning.
#[derive(Debug)]
pub(super) struct ConditioningShape {
    pub text: Vec<i64>,
    pub pooled: Option<Vec<i64>>,
    pub image: Option<Vec<i64>>,
    /// The picture is that of the positive conditioning.
    pub shares_image: bool,
    /// Channels behind the latents'.
    pub condition: Option<Vec<i64>>,
}

impl ConditioningShape {
    /// Reads a file's header and compares its widths with a transformer's. The picture and the
    /// condition of a negative conditioning, which changes the text alone, may be those of the
    /// `positive` one.
    pub fn open(path: &Path, config: &DenoiserConfig, positive: Option<&Self>) -> Result<Self> {
        let file = Checkpoint::open(path).map_err(ModelError::from)?;
        let refused = |reason: String| Error::input(path, reason);
        let text = shape_in(&file, TEXT)?.ok_or_else(|| missing(&file, TEXT))?;
        let Widths { text: text_width, pooled: pooled_width, image: image_width } = config.facts().widths;
        let check = |name: &str, shape: &[i64], axes: usize, width: i64| match shape.len() == axes
            && shape[axes - 1] == width
        {
            true => Ok(()),
            false => Err(refused(format!(
                "tensor {name} has shape {shape:?}: {axes} axes were expected, the last {width} wide, by this transformer; it is another model's conditioning"
            ))),
        };
        check(TEXT, &text, 3, text_width)?;
        let needs = |name: &'static str, width: Option<i64>, axes: usize| -> Result<Option<Vec<i64>>> {
            let Some(width) = width else { return Ok(None) };
            let shape = shape_in(&file, name)?.ok_or_else(|| {
                refused(format!("no tensor {name} in it, which this transformer needs beside {TEXT}"))
            })?;
            check(name, &shape, axes, width)?;
            Ok(Some(shape))
        };
        let pooled = needs(POOLED, pooled_width, 2)?;
        let samples = text[0];
        let shared = positive.and_then(|positive| positive.image.as_ref());
        let shared = shared.filter(|image| file.shape(IMAGE).is_none() && image[0] == samples);
        let image = match shared {
            Some(image) => Some(image.clone()),
            None => needs(IMAGE, image_width, 3)?,
        };
        for (name, shape) in [(POOLED, &pooled), (IMAGE, &image)] {
            if let Some(shape) = shape.as_ref().filter(|shape| shape[0] != samples) {
                return Err(refused(format!("{samples} rows in {TEXT} and {} in {name}", shape[0])));
            }
        }
        let condition = match config.facts().condition_channels {
            0 => None,
            _ if positive.is_some() => None,
            channels => {
                let shape = shape_in(&file, CONDITION)?.ok_or_else(|| {
                    refused(format!("no tensor {CONDITION} in it, which a transformer from image to video needs"))
                })?;
                if shape.len() != 5 || shape[1] != channels {
                    return Err(refused(format!(
                        "tensor {CONDITION} has shape {shape:?}: [N, {channels}, T, h, w] was expected, {MASK_CHANNELS} of a mask first"
                    )));
                }
                Some(shape)
            }
        };
        Ok(Self { text, pooled, image, shares_image: shared.is_some(), condition })
    }

    /// The shapes of a conditioning that a prompt's stages will make for a size.
    pub fn foreseen(model: &SampleModel, tokens: u32, size: Size) -> Result<Self> {
        let Widths { text, pooled, image } = model.config().facts().widths;
        let condition = match model.config().facts().condition_channels {
            0 => None,
            channels => {
                let mut shape = model.shape_of(size)?;
                shape[1] = channels;
                Some(shape)
            }
        };
        Ok(Self {
            text: vec![1, i64::from(tokens), text],
            pooled: pooled.map(|width| vec![1, width]),
            image: image.map(|width| vec![1, IMAGE_TOKENS, width]),
            shares_image: false,
            condition,
        })
    }

    /// The named shapes, as its file has them.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &Vec<i64>)> {
        let all = [(POOLED, &self.pooled), (IMAGE, &self.image), (CONDITION, &self.condition)];
        let further = all.into_iter().filter_map(|(name, shape)| Some((name, shape.as_ref()?)));
        std::iter::once((TEXT, &self.text)).chain(further)
    }

    pub fn samples(&self) -> i64 {
        self.text[0]
    }

    /// Checks that it serves a batch.
    pub fn check_batch(&self, path: &Path, shape: &[i64]) -> Result<()> {
        let samples = self.samples();
        if samples == 1 || samples == shape[0] {
            return Ok(());
        }
        let reason =
            format!("conditioning of {samples} samples for a batch of {}: one, or as many, were expected", shape[0]);
        Err(Error::input(path, reason))
    }

    /// Checks that the channels behind the latents' have the latents' extents.
    pub fn check_condition(&self, path: &Path, shape: &[i64]) -> Result<()> {
        let Some(found) = &self.condition else { return Ok(()) };
        let mut expected = shape.to_vec();
        expected[1] = found[1];
        if found[1..] != expected[1..] || found[0] != 1 && found[0] != expected[0] {
            let reason = format!("tensor {CONDITION} has shape {found:?}: {expected:?} was expected");
            return Err(Error::input(path, reason));
        }
        Ok(())
    }
}

/// Refuses a file's tensor of another shape.
pub(super) fn check_shape((path, name): (&Path, &str), found: &[i64], expected: &[i64]) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::input(path, format!("tensor {name} has shape {found:?}: {expected:?} was expected")))
}

pub(super) fn missing(file: &Checkpoint, name: &str) -> Error {
    let names: Vec<&str> = file.names().take(3).collect();
    let found = if names.is_empty() { "no tensor at all".into() } else { names.join(", ") };
    Error::input(file.path(), format!("no tensor {name} in it: there is {found}"))
}

/// The shape of a file's tensor, if the file has it: only its header is read.
pub(super) fn shape_in(file: &Checkpoint, name: &str) -> Result<Option<Vec<i64>>> {
    let Some(shape) = file.shape(name) else { return Ok(None) };
    if file.is_empty(name) {
        return Err(Error::input(file.path(), format!("tensor {name} is empty")));
    }
    file.check_loads(name).map_err(ModelError::from)?;
    Ok(Some(shape.iter().map(|extent| *extent as i64).collect()))
}
