//! An autoencoder's file, of pictures or of clips.

/// The same expression for the autoencoder of either kind.
macro_rules! of_vae {
    ($model:expr, $vae:ident => $value:expr) => {
        match $model {
            Model::Picture($vae) => $value,
            Model::Clip($vae) => $value,
        }
    };
}

#[cfg(feature = "torch")]
mod tensors;

use std::path::Path;

use tilewright_media::{Kind, Shape};
use tilewright_models::{Checkpoint, Extents, Family, Identity, LatentFile, Scaling};
use tilewright_prices::{Overrides, extents};

use crate::{
    Error, Result,
    files::{VaeFile, VideoVaeFile},
};

/// Frames per second that the video models were trained on.
const RATES: [(&str, u32); 2] = [("wan-2.1", 16), ("wan-2.2", 24)];

/// Frames per second that a family's clips are played with if nobody says.
pub fn published_rate(family: &str) -> u32 {
    RATES.iter().find(|(known, _)| *known == family).map_or(16, |(_, rate)| *rate)
}

/// An autoencoder whose decoder can be run.
#[derive(Debug)]
pub enum Model {
    /// An autoencoder of pictures.
    Picture(Box<VaeFile>),
    /// An autoencoder of clips, and of single frames.
    Clip(Box<VideoVaeFile>),
}

impl Model {
    /// True if a file is a video VAE, by the names and shapes of its tensors.
    ///
    /// # Errors
    /// The file is unsound.
    pub fn is_video_file(path: &Path) -> Result<bool> {
        Ok(Identity::of(&Checkpoint::open(path).map_err(tilewright_models::Error::from)?).kind
            == tilewright_models::Kind::VideoAutoencoder)
    }

    /// Opens a file and reads its architecture off its tensors' names and shapes.
    ///
    /// # Errors
    /// The file is unsound, or holds no decoder that can be run; a video VAE has nothing to
    /// override.
    pub fn open(path: &Path, overrides: Overrides) -> Result<Self> {
        Ok(match Self::is_video_file(path)? {
            true => Model::Clip(Box::new(VideoVaeFile::open(path, overrides)?)),
            false => Model::Picture(Box::new(VaeFile::open(path, overrides)?)),
        })
    }

    /// True if its file is as it was when it was opened, and is still in its place.
    pub fn is_current(&self) -> bool {
        of_vae!(self, vae => vae.is_current())
    }

    /// The facts that policies receive.
    pub fn facts(&self) -> &tilewright_plan::Model {
        of_vae!(self, vae => &vae.model)
    }

    /// True for a video VAE.
    pub const fn is_video(&self) -> bool {
        matches!(self, Model::Clip(_))
    }

    /// The kind of its outputs.
    pub const fn kind(&self) -> Kind {
        if self.is_video() { Kind::Clip } else { Kind::Picture }
    }

    /// Pixels per latent pixel, along one side.
    pub fn spatial_scale(&self) -> u32 {
        of_vae!(self, vae => vae.config.spatial_scale())
    }

    /// Pixels of a picture to be encoded per latent pixel, along one side: those of a decoder that
    /// makes larger ones are more.
    ///
    /// # Errors
    /// The file has no encoder.
    pub fn encoded_scale(&self) -> Result<u32> {
        Ok(of_vae!(self, vae => vae.encoding()?.0.spatial_scale()))
    }

    /// Frames per latent frame after the first; 1 for pictures.
    pub fn temporal_scale(&self) -> u32 {
        match self {
            Model::Picture(_) => 1,
            Model::Clip(vae) => vae.config.temporal_scale(),
        }
    }

    /// Channels of its latents.
    pub fn latent_channels(&self) -> usize {
        of_vae!(self, vae => vae.config.latent_channels)
    }

    /// The family, and another one that the file may be of as far as its names and shapes tell.
    pub fn families(&self) -> (Family, Option<Family>) {
        match self {
            Model::Picture(vae) => vae.families(),
            Model::Clip(vae) => (vae.config.family, None),
        }
    }

    /// Opens a latent and compares its header with the model, before its values are read.
    ///
    /// # Errors
    /// The file is unsound or of another model.
    pub fn open_latent(&self, path: &Path, tensor: Option<&str>) -> Result<LatentFile> {
        Ok(of_vae!(self, vae => vae.open_latent(path, tensor)?))
    }

    /// Checks that the decoder's weights can be loaded, by their names, shapes and types.
    ///
    /// # Errors
    /// The first tensor that is missing or can't be computed from.
    pub fn check_weights(&self) -> Result<()> {
        Ok(of_vae!(self, vae => vae.check_weights())?)
    }

    /// The shape of a file's latents, as a [`crate::Decode`] takes them.
    pub fn latents_shape(&self, file: &LatentFile) -> Vec<i64> {
        let Extents { samples, frames, height, width } = file.extents();
        let channels = self.latent_channels() as i64;
        let [samples, frames, height, width] = [samples, frames, height, width].map(i64::from);
        match self {
            Model::Picture(_) => vec![samples, channels, height, width],
            Model::Clip(_) => vec![samples, channels, frames, height, width],
        }
    }

    /// The shape of the output of latents [N, C, (T,) h, w].
    pub fn shape_of_latents(&self, latents: &[i64]) -> Shape {
        let of = |extent: i64| u32::try_from(extent).unwrap_or(u32::MAX);
        let [frames, height, width] = extents(latents).map(of);
        let samples = latents.first().map_or(0, |samples| of(*samples));
        self.shape_of_extents(Extents { samples, frames, height, width })
    }

    fn shape_of_extents(&self, extents: Extents) -> Shape {
        let scale = self.spatial_scale();
        let (frames, channels) = match self {
            Model::Picture(vae) => (1, vae.config.image_channels),
            Model::Clip(vae) => (vae.config.frames(extents.frames), vae.config.image_channels),
        };
        Shape {
            samples: extents.samples as usize,
            frames: frames as usize,
            width: extents.width * scale,
            height: extents.height * scale,
            channels,
        }
    }

    /// The conversion between the autoencoder's own space and that of diffusers' latents, if it is
    /// known.
    pub fn scaling(&self) -> Option<Scaling> {
        of_vae!(self, vae => vae.scaling())
    }
}

/// A scaling that has to be known; `path` is the model's, for errors.
///
/// # Errors
/// [`Error::NoScaling`] if it is not.
pub fn check_scaling(scaling: Option<Scaling>, is_video: bool, path: &Path) -> Result<Scaling> {
    scaling.ok_or_else(|| Error::NoScaling { path: path.to_owned(), is_video })
}
