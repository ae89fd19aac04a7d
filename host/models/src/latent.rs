//! Latents as ComfyUI and diffusers save them.

use std::path::{Path, PathBuf};

use tch::{Device, Tensor};

use crate::{
    Checkpoint, Error, Result,
    checkpoint::{Stored, computable},
    error::Shape,
    kl::Config,
};

/// ComfyUI's name of the latent in its files.
const COMFYUI: &str = "latent_tensor";

/// ComfyUI's empty marker that says that the values need no scaling (comfyanonymous/ComfyUI, nodes.py, `LoadLatent`).
const COMFYUI_MARKER: &str = "latent_format_version_0";

/// What ComfyUI multiplies by where the marker is missing, whatever the model.
const COMFYUI_LEGACY: f64 = 1.0 / 0.18215;

/// Longest side of a picture in pixels; past this a latent is hostile rather than large.
const MOST_PIXELS: u64 = 1 << 17;

/// Where a latent came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// ComfyUI's `.latent` with its marker: in the autoencoder's own space.
    ComfyUi,
    /// ComfyUI's `.latent` from before the marker: its values have been multiplied by 1/0.18215.
    ComfyUiLegacy,
    /// Any other safetensors file.
    Plain,
}

/// How a model's latents are scaled against its autoencoder's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Divided by.
    pub factor: f64,
    /// Then added.
    pub shift: f64,
}

/// A latent that can be decoded.
#[derive(Debug)]
pub struct Latent {
    /// Where it came from.
    pub path: PathBuf,
    /// What saved it.
    pub origin: Origin,
    /// [N, C, h, w] in f32, finite.
    pub values: Tensor,
    /// ComfyUI's `prompt`, `workflow` and whatever else the file carries, by name, sorted.
    pub texts: Vec<(String, String)>,
}

impl Latent {
    /// Reads a latent: ComfyUI's tensor where there is one, the only tensor of the file, or the one named.
    ///
    /// # Errors
    /// The file is unsound, or the tensor is missing, ambiguous, of the wrong rank or type, empty, or not finite.
    pub fn read(path: &Path, tensor: Option<&str>) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let refused = |reason: String| Error::Latent { path: path.to_owned(), reason };
        let candidates: Vec<&str> = file.names().filter(|name| *name != COMFYUI_MARKER).collect();
        let name = match tensor {
            Some(name) if file.shape(name).is_none() => {
                return Err(refused(format!("no tensor {name} in it: there is {}", list(&candidates))));
            }
            Some(name) => name,
            None if file.shape(COMFYUI).is_some() => COMFYUI,
            None => match candidates[..] {
                [] => return Err(refused("no tensors in it: nothing to decode".into())),
                [only] => only,
                _ => {
                    return Err(refused(format!(
                        "{} tensors in it: choose the latent with --tensor: {}",
                        candidates.len(),
                        list(&candidates)
                    )));
                }
            },
        };
        let found = file.shape(name).unwrap_or_default().to_vec();
        let shape = match found[..] {
            [_, _, _, _] => found.clone(),
            // One frame is a picture.
            [batch, channels, 1, height, width] => vec![batch, channels, height, width],
            [_, _, frames, _, _] => {
                return Err(refused(format!("tensor {name} has {frames} frames: video can't be decoded yet")));
            }
            _ => {
                return Err(refused(format!(
                    "tensor {name} has shape {}: a latent is [N, C, H, W], or [N, C, T, H, W] for video",
                    Shape(found.clone())
                )));
            }
        };
        if shape.contains(&0) {
            return Err(refused(format!("tensor {name} has shape {}: nothing to decode", Shape(found))));
        }
        let stored = file.stored(name).unwrap_or(Stored::F32);
        if computable(stored).is_none() {
            return Err(Error::Stored { path: path.to_owned(), name: name.to_owned(), found: format!("{stored:?}") });
        }
        let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let mut values = file.load(name, &found, tch::Kind::Float, Device::Cpu)?.f_reshape(&extents)?;
        let bad = tilewright_torch::non_finite(&values)?;
        if bad > 0 {
            return Err(refused(format!(
                "{bad} of {} values of tensor {name} are NaN or infinite: the sampler that made it failed, sample again (perhaps in bf16 or f32)",
                values.numel()
            )));
        }
        let origin = match name {
            COMFYUI if file.shape(COMFYUI_MARKER).is_some() => Origin::ComfyUi,
            COMFYUI => Origin::ComfyUiLegacy,
            _ => Origin::Plain,
        };
        if origin == Origin::ComfyUiLegacy {
            values = values.f_mul_scalar(COMFYUI_LEGACY)?;
        }
        let mut texts: Vec<_> =
            file.texts().into_iter().flatten().map(|(name, text)| (name.clone(), text.clone())).collect();
        texts.sort();
        Ok(Self { path: path.to_owned(), origin, values, texts })
    }

    /// Samples, height and width in latent pixels.
    pub fn extents(&self) -> (u32, u32, u32) {
        let size = self.values.size();
        (size[0] as u32, size[2] as u32, size[3] as u32)
    }

    /// Checks that a decoder can take it.
    ///
    /// # Errors
    /// Where the channels differ, or the picture would be absurdly large.
    pub fn check(&self, config: &Config) -> Result<()> {
        let refused = |reason: String| Err(Error::Latent { path: self.path.clone(), reason });
        let size = self.values.size();
        if size[1] as usize != config.latent_channels {
            return refused(format!(
                "the latent has {} channels, the VAE ({}) takes {}: they are of different models",
                size[1], config.family, config.latent_channels
            ));
        }
        let scale = u64::from(config.spatial_scale());
        if size[2..].iter().any(|side| *side as u64 * scale > MOST_PIXELS) {
            return refused(format!(
                "a picture of {}×{} pixels is out of reach",
                size[3] as u64 * scale,
                size[2] as u64 * scale
            ));
        }
        if size[0] > 1 << 16 {
            return refused(format!("{} samples are out of reach: split the file", size[0]));
        }
        Ok(())
    }

    /// Undoes a model's scaling: z / factor + shift (diffusers' `AutoencoderKL` pipelines).
    ///
    /// # Errors
    /// Where memory is out.
    pub fn unscale(&mut self, scaling: Scaling) -> Result<()> {
        self.values = self.values.f_div_scalar(scaling.factor)?.f_add_scalar(scaling.shift)?;
        Ok(())
    }
}

/// Names for a message, cut short where there are many.
fn list(names: &[&str]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "none".into(),
        count if count > MOST => format!("{shown} and {} more", count - MOST),
        _ => shown,
    }
}
