//! An autoencoder's file, of pictures or of clips.

use std::path::Path;

use tilewright_engine::{Overrides, Vae, VideoVae};
use tilewright_models::{Checkpoint, Identity, Kind, Latent, Origin, Scaling};

use crate::{Error, Result};

/// Frames per second that the video models were trained on.
const RATES: [(&str, u32); 2] = [("wan-2.1", 16), ("wan-2.2", 24)];

/// Frames per second that a family's clips are played with where nobody says.
pub fn published_rate(family: &str) -> u32 {
    RATES.iter().find(|(known, _)| *known == family).map_or(16, |(_, rate)| *rate)
}

/// An autoencoder whose decoder can be run.
#[derive(Debug)]
pub enum Model {
    /// Of pictures.
    Picture(Box<Vae>),
    /// Of clips, and of single frames.
    Clip(Box<VideoVae>),
}

/// The output of a decode, in samples, frames and pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pictures or clips.
    pub samples: u32,
    /// Of each.
    pub frames: u32,
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
    /// 3, or 4 with transparency.
    pub channels: usize,
}

impl Model {
    /// Opens a file and reads what it is off its tensors' names and shapes.
    ///
    /// # Errors
    /// The file is unsound, or holds no decoder that can be run; overrides that a clip's autoencoder has no use for.
    pub fn open(path: &Path, overrides: Overrides) -> Result<Self> {
        if Identity::of(&Checkpoint::open(path)?).kind != Kind::VideoAutoencoder {
            return Ok(Model::Picture(Box::new(Vae::open(path, overrides)?)));
        }
        if overrides != Overrides::default() {
            return Err(Error::ForPictures(path.to_owned()));
        }
        Ok(Model::Clip(Box::new(VideoVae::open(path, Overrides::default())?)))
    }

    /// What policies are told of it.
    pub fn facts(&self) -> &tilewright_plan::Model {
        match self {
            Model::Picture(vae) => &vae.model,
            Model::Clip(vae) => &vae.model,
        }
    }

    /// Reads a latent of this model; the match is checked before the values are read.
    ///
    /// # Errors
    /// The file is unsound or of another model, or the model's weights can't be loaded.
    pub fn latent(&self, path: &Path, tensor: Option<&str>) -> Result<Latent> {
        Ok(match self {
            Model::Picture(vae) => vae.latent(path, tensor),
            Model::Clip(vae) => vae.latent(path, tensor),
        }?)
    }

    /// Checks that a latent is of this model.
    ///
    /// # Errors
    /// Where it is not.
    pub fn check(&self, latent: &Latent) -> Result<()> {
        Ok(match self {
            Model::Picture(vae) => vae.check(latent),
            Model::Clip(vae) => vae.check(latent),
        }?)
    }

    /// What a latent that was checked decodes to.
    pub fn size(&self, latent: &Latent) -> Size {
        let extents = latent.extents();
        let (scale, frames, channels) = match self {
            Model::Picture(vae) => (vae.config.spatial_scale(), 1, vae.config.image_channels),
            Model::Clip(vae) => {
                (vae.config.spatial_scale(), vae.config.frames(extents.frames), vae.config.image_channels)
            }
        };
        Size {
            samples: extents.samples,
            frames,
            height: extents.height * scale,
            width: extents.width * scale,
            channels,
        }
    }

    fn scaling(&self) -> (Option<Scaling>, &'static str) {
        match self {
            Model::Picture(vae) => (vae.scaling(), "give its family, or its scaling factor"),
            Model::Clip(vae) => (vae.scaling(), "put its config.json beside it"),
        }
    }

    /// Whether [`Model::unscale`] will do.
    ///
    /// # Errors
    /// Why not.
    pub fn can_unscale(&self, latent: &Latent, path: &Path) -> Result<()> {
        self.known_scaling(latent, path).map(drop)
    }

    fn known_scaling(&self, latent: &Latent, path: &Path) -> Result<Scaling> {
        let (scaling, advice) = self.scaling();
        known_scaling(latent, scaling, path, advice)
    }

    /// Undoes the scaling that a latent carries, as diffusers saves it; `path` is the model's, for errors.
    ///
    /// # Errors
    /// The latent carries none, or nobody knows it.
    pub fn unscale(&self, latent: &mut Latent, path: &Path) -> Result<()> {
        let (scaling, advice) = self.scaling();
        unscale(latent, scaling, path, advice)
    }
}

/// Undoes the scaling that a latent carries; `path` is the model's, and `advice` what to do where no scaling is known, for errors.
///
/// # Errors
/// The latent carries none, or nobody knows it.
pub fn unscale(latent: &mut Latent, scaling: Option<Scaling>, path: &Path, advice: &'static str) -> Result<()> {
    let scaling = known_scaling(latent, scaling, path, advice)?;
    Ok(latent.unscale(&scaling)?)
}

fn known_scaling(latent: &Latent, scaling: Option<Scaling>, path: &Path, advice: &'static str) -> Result<Scaling> {
    if latent.origin != Origin::Plain {
        return Err(Error::Unscaled(latent.path.clone()));
    }
    scaling.ok_or_else(|| Error::NoScaling { path: path.to_owned(), advice })
}
