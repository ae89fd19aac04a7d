//! An autoencoder's file: opened and understood, its weights loaded when a plan says in which type.

use std::{path::Path, time::Duration};

use tch::Device;
use tilewright_models::{
    Checkpoint, ComputeFormat, Family, Identity, Scaling,
    kl::{Config, Decoder, Encoder, EncoderConfig},
};
use tilewright_plan::Model;
use tilewright_torch::probe;

use crate::{
    Result,
    weights::{Budget, Lease, Part, WeightKey, WeightStore},
};

/// What the user knows better than the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// The family, which names the scaling and shift.
    pub family: Option<Family>,
    /// The scaling factor.
    pub scaling: Option<f64>,
    /// The shift.
    pub shift: Option<f64>,
}

/// An autoencoder whose decoder can be run.
#[derive(Debug)]
pub struct Vae {
    file: Checkpoint,
    identity: Identity,
    /// The architecture.
    pub config: Config,
    /// What policies are told of it.
    pub model: Model,
    /// The store that loaded weights are leased from.
    weights: WeightStore,
}

impl Vae {
    /// Opens a file and reads the architecture off its tensors' names and shapes.
    ///
    /// # Errors
    /// The file is unsound, holds no decoder that can be run, lacks tensors that tell the
    /// architecture, or is of another family than `overrides` says.
    pub fn open(path: &Path, overrides: Overrides) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let identity = Identity::of_decoder(&file)?;
        let mut config = Config::read(&file, &identity)?;
        if let Some(family) = overrides.family {
            // The configuration beside the file may say what its tensors don't.
            if family != config.family {
                identity.check_family(&file, family)?;
            }
            config.family = family;
            if let Some((factor, shift)) = family.scaling() {
                config.scaling = Some(factor);
                config.shift = shift;
            }
        }
        config.scaling = overrides.scaling.or(config.scaling);
        config.shift = overrides.shift.unwrap_or(config.shift);
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

    /// The family, and another one that the file may be of as far as its names and shapes tell.
    pub fn families(&self) -> (Family, Option<Family>) {
        (self.config.family, self.identity.or_family.filter(|_| self.config.family == self.identity.family))
    }

    /// How latents saved by diffusers are brought into the autoencoder's own space, where the family tells.
    pub fn scaling(&self) -> Option<Scaling> {
        self.config.scaling.map(|factor| Scaling::Factor { factor, shift: self.config.shift })
    }

    /// Checks that the decoder's weights can be loaded, by their names, shapes and types.
    ///
    /// # Errors
    /// The first tensor that is missing or can't be computed from.
    pub fn check_weights(&self) -> Result<()> {
        Ok(self.config.check_weights(&self.file, &self.identity)?)
    }
}
