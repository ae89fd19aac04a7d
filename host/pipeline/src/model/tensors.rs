//! The latents of an autoencoder's file, and the store of its weights.

use std::path::Path;

use tch::Tensor;
use tilewright_engine::WeightStore;
use tilewright_media::Shape;
use tilewright_models::{Latent, Scaling};

use super::{Model, check_scaling};
use crate::{Error, Result};

impl Model {
    /// Leases weights from this store, which other models may share, instead of from one of its
    /// own.
    #[must_use]
    pub fn sharing(self, weights: &WeightStore) -> Self {
        match self {
            Model::Picture(vae) => Model::Picture(Box::new(vae.sharing(weights))),
            Model::Clip(vae) => Model::Clip(Box::new(vae.sharing(weights))),
        }
    }

    /// Frees the weights that no task uses.
    pub fn release(&self) {
        of_vae!(self, vae => vae.release())
    }

    /// Checks that a latent is of this model.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check(&self, latent: &Latent) -> Result<()> {
        Ok(of_vae!(self, vae => vae.check(latent))?)
    }

    /// Reads a latent of this model: its header is compared with the model, then the model's
    /// weights are checked, then the values are read. A dry run refuses what the decode would.
    ///
    /// # Errors
    /// The file is unsound or of another model, or the model's weights can't be loaded.
    pub fn read_latent(&self, path: &Path, tensor: Option<&str>) -> Result<Latent> {
        let file = self.open_latent(path, tensor)?;
        self.check_weights()?;
        Ok(file.read()?)
    }

    /// The values of a latent of this model, as a [`crate::Decode`] takes them: [N, C, h, w] of
    /// pictures, [N, C, T, h, w] of clips.
    ///
    /// # Errors
    /// The latent is a clip, and the model one of pictures.
    pub fn tensor(&self, latent: &Latent) -> Result<Tensor> {
        Ok(match self {
            Model::Picture(_) => latent.pictures()?,
            Model::Clip(_) => latent.values.shallow_clone(),
        })
    }

    /// The shape of a latent's output.
    pub fn shape(&self, latent: &Latent) -> Shape {
        self.shape_of_extents(latent.extents())
    }

    /// The scaling of a latent that carries one; `path` is the model's, for errors.
    ///
    /// # Errors
    /// The latent carries no scaling, or the model's scaling is unknown.
    pub fn known_scaling(&self, latent: &Latent, path: &Path) -> Result<Scaling> {
        Error::check_carries_scaling(latent.origin, &latent.path)?;
        check_scaling(self.scaling(), self.is_video(), path)
    }

    /// Undoes the scaling that a latent carries, as diffusers saves it; `path` is the model's, for
    /// errors.
    ///
    /// # Errors
    /// The latent carries no scaling, or the model's scaling is unknown.
    pub fn unscale(&self, latent: &mut Latent, path: &Path) -> Result<()> {
        let scaling = self.known_scaling(latent, path)?;
        Ok(latent.unscale(&scaling)?)
    }
}
