//! Latents as ComfyUI and diffusers save them. A [`LatentFile`] has only its header read; a
//! [`Latent`] has its values.

#[cfg(feature = "torch")]
mod doubt;
#[cfg(feature = "torch")]
mod values;

use std::path::{Path, PathBuf};

use tilewright_checkpoint::Shape;
use tilewright_plan::bytes;

#[cfg(feature = "torch")]
pub use self::values::Latent;
use crate::{Checkpoint, DecoderConfig, Error, Identity, Kind, Part, Result, wan_vae};

/// ComfyUI's name of the latent in its files.
const COMFYUI: &str = "latent_tensor";

/// ComfyUI's empty marker that says that the values need no scaling (comfyanonymous/ComfyUI,
/// nodes.py, `LoadLatent`).
const COMFYUI_MARKER: &str = "latent_format_version_0";

/// ComfyUI's factor for every model if the marker is missing.
const COMFYUI_LEGACY: f64 = 1.0 / 0.18215;

/// Longest side of a picture in pixels; past this a latent is hostile rather than large.
const MOST_PIXELS: u64 = 1 << 17;

/// Most frames of a clip, and most samples.
const MOST_FRAMES: u64 = 1 << 16;

/// Most values of a latent, 2 GiB as f32: those of a picture of 46,000 by 46,000 pixels, or of half
/// an hour of small video.
const MOST_VALUES: u64 = 1 << 29;

/// The program that saved a latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// ComfyUI's `.latent` with its marker: in the autoencoder's own space.
    ComfyUi,
    /// ComfyUI's `.latent` from before the marker: its values have been multiplied by 1/0.18215.
    ComfyUiLegacy,
    /// Any other safetensors file.
    Plain,
}

/// The scaling of a model's latents against its autoencoder's.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// One for all channels: z / factor + shift.
    Factor {
        /// Divided by.
        factor: f64,
        /// Then added.
        shift: f64,
    },
    /// One for each channel: z · std + mean.
    PerChannel {
        /// Added at last.
        mean: Vec<f64>,
        /// Multiplied by.
        std: Vec<f64>,
    },
}

/// The extents of a latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Pictures or clips.
    pub samples: u32,
    /// Latent frames; 1 in a picture.
    pub frames: u32,
    /// Latent pixels.
    pub height: u32,
    /// Latent pixels.
    pub width: u32,
}

impl Scaling {
    /// The published scaling of WAN's latents of `channels` channels, if there is one.
    pub fn of_wan(channels: usize) -> Option<Self> {
        let (mean, std) = wan_vae::PUBLISHED.iter().find(|(mean, _)| mean.len() == channels)?;
        Some(Scaling::PerChannel { mean: mean.to_vec(), std: std.to_vec() })
    }
}

/// A latent's file of which only the header has been read: a model can refuse it before its values
/// cost anything.
#[derive(Debug)]
pub struct LatentFile {
    file: Checkpoint,
    tensor: String,
    origin: Origin,
    form: Form,
}

/// A latent's file and its extents [N, C, T, h, w].
#[derive(Clone, Debug)]
struct Form {
    path: PathBuf,
    size: [u64; 5],
}

impl LatentFile {
    /// Opens a file and finds its latent: the tensor named, or else ComfyUI's, or else the only
    /// one.
    ///
    /// # Errors
    /// The file is unsound, or the tensor is missing, ambiguous, of the wrong rank or type, empty,
    /// or larger than any latent.
    pub fn open(path: &Path, tensor: Option<&str>) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let refused = |reason: String| Error::Latent { path: path.to_owned(), reason };
        let candidates: Vec<&str> = file.names().filter(|name| *name != COMFYUI_MARKER).collect();
        // A tensor without values beside others is a marker.
        let of_values = candidates.iter().copied().filter(|name| !file.is_empty(name));
        let candidates: Vec<&str> = if candidates.len() > 1 { of_values.collect() } else { candidates };
        let name = match tensor {
            Some(name) if file.shape(name).is_none() => {
                return Err(refused(format!("no tensor {name} in it: there is {}", list(&candidates))));
            }
            Some(name) => name,
            None if file.shape(COMFYUI).is_some() => COMFYUI,
            None => match candidates[..] {
                [] => return Err(refused("no tensors in it: nothing to decode".into())),
                [only] => only,
                _ => return Err(refused(ambiguous(&file, &candidates))),
            },
        };
        let found = file.shape(name).unwrap_or_default().to_vec();
        let size = match found[..] {
            [batch, channels, height, width] => [batch, channels, 1, height, width],
            [batch, channels, frames, height, width] => [batch, channels, frames, height, width],
            _ => {
                return Err(refused(format!(
                    "tensor {name} has shape {}: a latent is [N, C, H, W], or [N, C, T, H, W] for video",
                    Shape(found.clone())
                )));
            }
        };
        if size.contains(&0) {
            return Err(refused(format!("tensor {name} has shape {}: nothing to decode", Shape(found))));
        }
        let size = size.map(|extent| extent as u64);
        let values = size.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent));
        if values.is_none_or(|values| values > MOST_VALUES) {
            let most = bytes::display(MOST_VALUES * 4);
            return Err(refused(format!(
                "tensor {name} has shape {}: a latent of over {most} as f32 is out of reach: split the file",
                Shape(found)
            )));
        }
        if !file.can_load(name) {
            return Err(Error::stored(&file, name));
        }
        let origin = match name {
            COMFYUI if file.shape(COMFYUI_MARKER).is_some() => Origin::ComfyUi,
            COMFYUI => Origin::ComfyUiLegacy,
            _ => Origin::Plain,
        };
        let tensor = name.to_owned();
        Ok(Self { file, tensor, origin, form: Form { path: path.to_owned(), size } })
    }

    /// The latent's extents, in samples, latent frames and latent pixels.
    pub fn extents(&self) -> Extents {
        self.form.extents()
    }

    /// Channels of the latent.
    pub fn channels(&self) -> u64 {
        self.form.size[1]
    }

    /// As [`Latent::check`].
    ///
    /// # Errors
    /// The same.
    pub fn check(&self, config: &impl DecoderConfig) -> Result<()> {
        self.form.check(config)
    }
}

/// The message for a file of several tensors of which none is a latent's by name.
fn ambiguous(file: &Checkpoint, candidates: &[&str]) -> String {
    let what = match Identity::of(file).kind {
        Kind::KlAutoencoder | Kind::VideoAutoencoder => Some("a VAE".to_owned()),
        _ => Some(Part::list_names(&Part::of(file))).filter(|named| !named.is_empty()),
    };
    match what {
        Some(what) => format!("{what}, not a latent: the latent comes first, the VAE after --vae"),
        None => format!("{} tensors in it: choose the latent with --tensor: {}", candidates.len(), list(candidates)),
    }
}

impl Form {
    fn extents(&self) -> Extents {
        let extent = |axis: usize| u32::try_from(self.size[axis]).unwrap_or(u32::MAX);
        Extents { samples: extent(0), frames: extent(2), height: extent(3), width: extent(4) }
    }

    fn refuse(&self, reason: String) -> Error {
        Error::Latent { path: self.path.clone(), reason }
    }

    fn check<C: DecoderConfig>(&self, config: &C) -> Result<()> {
        let (size, family, channels) = (self.size, config.family(), config.latent_channels());
        if C::KIND == Kind::KlAutoencoder && size[2] > 1 {
            return Err(self.refuse(format!(
                "this VAE ({family}) decodes pictures and the latent has {} frames: it is a video model's",
                size[2]
            )));
        }
        if size[1] != channels as u64 {
            return Err(self.refuse(format!(
                "the latent has {} channels, the VAE ({family}) takes {channels}: they are of different models",
                size[1]
            )));
        }
        let [scale, temporal] = config.scales().map(u64::from);
        let sides = [size[3], size[4]].map(|side| side.saturating_mul(scale));
        if sides.iter().any(|side| *side > MOST_PIXELS) {
            return Err(self.refuse(format!("a picture of {}×{} pixels is out of reach", sides[1], sides[0])));
        }
        if size[0] > MOST_FRAMES {
            return Err(self.refuse(format!("{} samples are out of reach: split the file", size[0])));
        }
        let frames = 1 + (size[2] - 1).saturating_mul(temporal);
        if frames > MOST_FRAMES {
            return Err(self.refuse(format!("a clip of {frames} frames is out of reach: split the file")));
        }
        Ok(())
    }
}

/// Names for a message, cut short if there are many.
fn list(names: &[&str]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "none".into(),
        count if count > MOST => format!("{shown} and {} more", count - MOST),
        _ => shown,
    }
}
