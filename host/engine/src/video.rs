//! A video autoencoder's file: opened and understood, its networks loaded when a plan says in which type.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tch::Device;
use tilewright_models::{
    Checkpoint, ComputeFormat, Identity, Latent, LatentFile, Scaling,
    wan::{Config, Decoder, Encoder, EncoderConfig},
};
use tilewright_plan::Model;
use tilewright_torch::probe;

use crate::Result;

/// A video autoencoder whose decoder can be run.
#[derive(Debug)]
pub struct VideoVae {
    file: Checkpoint,
    identity: Identity,
    /// The architecture.
    pub config: Config,
    /// What policies are told of it.
    pub model: Model,
    /// The weights as the last decode had them: another one in the same types need not load them again.
    loaded: Mutex<Option<(Device, Decoder)>>,
    /// The same of the last encode.
    encoder: Mutex<Option<(Device, Encoder)>>,
}

impl VideoVae {
    /// Opens a file and reads the architecture off its tensors' names and shapes.
    ///
    /// # Errors
    /// The file is unsound, holds no video decoder, or lacks tensors that tell the architecture.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let identity = Identity::of_decoder(&file)?;
        let config = Config::read(&file, &identity)?;
        let model = config.model(&file, &identity);
        Ok(Self { file, identity, config, model, loaded: Mutex::new(None), encoder: Mutex::new(None) })
    }

    /// The weights in these types and this order on a device, and the time that loading them took: none for those of the last decode. Whoever
    /// takes them gives them back with [`Self::keep`].
    pub(crate) fn decoder(&self, format: ComputeFormat, device: Device) -> Result<(Decoder, Duration)> {
        // The old weights go first where they are others: both at once may not fit.
        let last = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
        match last.filter(|(place, decoder)| *place == device && decoder.format() == format) {
            Some((_, decoder)) => Ok((decoder, Duration::ZERO)),
            None => {
                let start = Instant::now();
                let decoder = Decoder::load(&self.file, &self.identity, &self.config, format, device)?;
                probe::synchronize(device);
                Ok((decoder, start.elapsed()))
            }
        }
    }

    /// Keeps weights for the next decode.
    pub(crate) fn keep(&self, decoder: Decoder, device: Device) {
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some((device, decoder));
    }

    /// The encoder's architecture, and what policies are told of it.
    ///
    /// # Errors
    /// The file holds no encoder, lacks tensors of it, or has them in a type that can't be computed from.
    pub fn encoding(&self) -> Result<(EncoderConfig, Model)> {
        let config = EncoderConfig::read(&self.file, &self.identity)?;
        config.check_weights(&self.file, &self.identity)?;
        let model = config.model(self.config.family, &self.file, &self.identity);
        Ok((config, model))
    }

    /// As [`Self::decoder`], of the encoder; given back with [`Self::keep_encoder`].
    pub(crate) fn encoder(
        &self,
        config: &EncoderConfig,
        format: ComputeFormat,
        device: Device,
    ) -> Result<(Encoder, Duration)> {
        let last = self.encoder.lock().unwrap_or_else(PoisonError::into_inner).take();
        match last.filter(|(place, encoder)| *place == device && encoder.format() == format) {
            Some((_, encoder)) => Ok((encoder, Duration::ZERO)),
            None => {
                let start = Instant::now();
                let encoder = Encoder::load(&self.file, &self.identity, config, format, device)?;
                probe::synchronize(device);
                Ok((encoder, start.elapsed()))
            }
        }
    }

    /// Keeps weights for the next encode.
    pub(crate) fn keep_encoder(&self, encoder: Encoder, device: Device) {
        *self.encoder.lock().unwrap_or_else(PoisonError::into_inner) = Some((device, encoder));
    }

    /// Gives back the weights that are kept for the next decode or encode.
    pub fn release(&self) {
        self.encoder.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// How latents saved by diffusers are brought into the autoencoder's own space, where the family tells.
    pub fn scaling(&self) -> Option<Scaling> {
        self.config.scaling()
    }

    /// Reads a latent that this model can decode. Before its values are read, its header is compared with the model,
    /// and the model's own weights are checked: a dry run refuses what the decode would.
    ///
    /// # Errors
    /// The file is unsound or of another model, or the weights can't be loaded.
    pub fn latent(&self, path: &Path, tensor: Option<&str>) -> Result<Latent> {
        let file = LatentFile::open(path, tensor)?;
        file.check_wan(&self.config)?;
        self.config.check_weights(&self.file, &self.identity)?;
        Ok(file.read()?)
    }

    /// Checks that a latent is of this model.
    ///
    /// # Errors
    /// Where it is not.
    pub fn check(&self, latent: &Latent) -> Result<()> {
        Ok(latent.check_wan(&self.config)?)
    }
}
