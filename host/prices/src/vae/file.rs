//! An autoencoder's file: opened and understood.

use std::path::Path;

use tilewright_models::{Checkpoint, Family, HalfConfig, Identity, LatentFile, Scaling, kl, wan_vae};
use tilewright_plan::Model;

use crate::{Autoencoder, Overrides, Result};

/// The file of an autoencoder whose decoder can be run.
#[derive(Debug)]
pub struct VaeFile<A: Autoencoder = kl::Config> {
    file: Checkpoint,
    identity: Identity,
    /// The architecture.
    pub config: A,
    /// The facts about the decoder that policies receive.
    pub model: Model,
}

/// The file of an autoencoder of clips.
pub type VideoVaeFile = VaeFile<wan_vae::Config>;

impl<A: Autoencoder> VaeFile<A> {
    /// Opens a file and reads the architecture off its tensors' names and shapes.
    ///
    /// # Errors
    /// The file is unsound, or holds no decoder that can be run; as [`Autoencoder::read_with`].
    pub fn open(path: &Path, overrides: Overrides) -> Result<Self> {
        let file = Checkpoint::open(path).map_err(tilewright_models::Error::from)?;
        let identity = Identity::of_decoder(&file)?;
        let config = A::read_with(&file, &identity, overrides)?;
        let model = config.model(config.family(), &file, &identity);
        Ok(Self { file, identity, config, model })
    }

    /// The file's tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.file
    }

    /// The family of the file and the names of its tensors.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The encoder's architecture, and the facts about it that policies receive.
    ///
    /// # Errors
    /// The file holds no encoder, lacks tensors of it, or has them in a type that can't be computed
    /// from.
    pub fn encoding(&self) -> Result<(A::Encoder, Model)> {
        let encoder = A::Encoder::read(&self.file, &self.identity)?;
        encoder.check_weights(&self.file, &self.identity)?;
        let model = encoder.model(self.config.family(), &self.file, &self.identity);
        Ok((encoder, model))
    }

    /// Checks that the file is as it was when it was opened.
    ///
    /// # Errors
    /// It is another one now.
    pub fn check_unchanged(&self) -> Result<()> {
        Ok(self.file.check_unchanged().map_err(tilewright_models::Error::from)?)
    }

    /// True if the file is as it was, and is still in its place.
    pub fn is_current(&self) -> bool {
        self.file.is_current()
    }

    /// The way from latents saved by diffusers into the autoencoder's own space, if the family
    /// specifies it.
    pub fn scaling(&self) -> Option<Scaling> {
        self.config.scaling()
    }

    /// Opens a latent and compares its header with the model, before its values are read.
    ///
    /// # Errors
    /// The file is unsound or of another model.
    pub fn open_latent(&self, path: &Path, tensor: Option<&str>) -> Result<LatentFile> {
        let file = LatentFile::open(path, tensor)?;
        file.check(&self.config)?;
        Ok(file)
    }

    /// Checks that the decoder's weights can be loaded, by their names, shapes and types.
    ///
    /// # Errors
    /// The first tensor that is missing or can't be computed from.
    pub fn check_weights(&self) -> Result<()> {
        Ok(self.config.check_weights(&self.file, &self.identity)?)
    }
}

impl VaeFile<kl::Config> {
    /// The family, and another one that the file may be of as far as its names and shapes tell.
    pub fn families(&self) -> (Family, Option<Family>) {
        (self.config.family, self.identity.or_family.filter(|_| self.config.family == self.identity.family))
    }
}
