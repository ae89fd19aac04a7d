//! A video autoencoder's file: opened and understood, its networks loaded when a plan says in which type.

use std::{path::Path, time::Duration};

use tch::Device;
use tilewright_models::{
    Checkpoint, ComputeFormat, Identity, Scaling,
    wan::{Config, Decoder, Encoder, EncoderConfig},
};
use tilewright_plan::Model;
use tilewright_torch::probe;

use crate::{
    Result,
    weights::{Budget, Lease, Part, WeightKey, WeightStore},
};

/// A video autoencoder whose decoder can be run.
#[derive(Debug)]
pub struct VideoVae {
    file: Checkpoint,
    identity: Identity,
    /// The architecture.
    pub config: Config,
    /// What policies are told of it.
    pub model: Model,
    /// The store that loaded weights are leased from.
    weights: WeightStore,
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
        Ok(Self { file, identity, config, model, weights: WeightStore::new(Budget::Last) })
    }

    /// Leases weights from this store, which other models may share, instead of from one of its own.
    pub fn sharing(self, weights: &WeightStore) -> Self {
        Self { weights: weights.clone(), ..self }
    }

    /// The decoder in a format on a device, and the time that loading it took: none if its weights were there.
    pub(crate) fn decoder(&self, format: ComputeFormat, device: Device) -> Result<(Lease<Decoder>, Duration)> {
        self.lease(Part::Decoder, format, device, self.model.parameter_bytes, || {
            Ok(Decoder::load(&self.file, &self.identity, &self.config, format, device)?)
        })
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

    /// The encoder, as [`Self::decoder`].
    pub(crate) fn encoder(
        &self,
        config: &EncoderConfig,
        format: ComputeFormat,
        device: Device,
    ) -> Result<(Lease<Encoder>, Duration)> {
        let stored = config.model(self.config.family, &self.file, &self.identity).parameter_bytes;
        self.lease(Part::Encoder, format, device, stored, || {
            Ok(Encoder::load(&self.file, &self.identity, config, format, device)?)
        })
    }

    fn lease<N: Send + 'static>(
        &self,
        part: Part,
        format: ComputeFormat,
        device: Device,
        stored_bytes: u64,
        load: impl FnOnce() -> Result<N>,
    ) -> Result<(Lease<N>, Duration)> {
        let key = WeightKey { file: self.file.id().clone(), part, device, format };
        let bytes = format.weight_bytes(stored_bytes, self.model.stored, device);
        self.weights.lease(&key, bytes, || {
            let network = load()?;
            probe::synchronize(device);
            Ok(network)
        })
    }

    /// Frees the weights that no task uses.
    pub fn release(&self) {
        self.weights.forget(self.file.id());
    }

    /// How latents saved by diffusers are brought into the autoencoder's own space, where the family tells.
    pub fn scaling(&self) -> Option<Scaling> {
        self.config.scaling()
    }

    /// Checks that the decoder's weights can be loaded, by their names, shapes and types.
    ///
    /// # Errors
    /// The first tensor that is missing or can't be computed from.
    pub fn check_weights(&self) -> Result<()> {
        Ok(self.config.check_weights(&self.file, &self.identity)?)
    }
}
