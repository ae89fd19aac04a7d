//! An autoencoder's file: opened and understood, its weights loaded when a plan says in which type.

use std::{path::Path, time::Duration};

use serde::Serialize;
use tch::Device;
use tilewright_models::{
    Checkpoint, ComputeFormat, Destination, Family, HalfConfig, Identity, Latent, LatentFile, LoadStep, Loaded,
    Scaling, kl, transformer::Residency, wan_vae,
};
use tilewright_plan::{Model, Outcome};
use tilewright_torch::{device::synchronize, kernels, memory};

use crate::{
    Autoencoder, Overrides, Result, pause,
    task::{Allowance, Attempted, measure},
    weights::{Budget, Lease, Part, WeightKey, WeightStore},
};

/// The file of an autoencoder whose decoder can be run.
#[derive(Debug)]
pub struct VaeFile<A: Autoencoder = kl::Config> {
    file: Checkpoint,
    identity: Identity,
    /// The architecture.
    pub config: A,
    /// The facts about the decoder that policies receive.
    pub model: Model,
    /// The store that loaded weights are leased from.
    weights: WeightStore,
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
        Ok(Self { file, identity, config, model, weights: WeightStore::new(Budget::Last) })
    }

    /// Leases weights from this store, which other models may share, instead of from one of its
    /// own.
    #[must_use]
    pub fn sharing(self, weights: &WeightStore) -> Self {
        Self { weights: weights.clone(), ..self }
    }

    /// The decoder in a format on a device, and the time that loading it took: none if its weights
    /// were there. `step` is called with the share of a load that is done; an error from it ends
    /// the load and leaves nothing of it.
    pub(crate) fn decoder(
        &self,
        format: ComputeFormat,
        device: Device,
        step: LoadStep<'_>,
    ) -> Result<(Lease<Loaded<A>>, Duration)> {
        self.lease(Part::Decoder, &self.config, format, device, step)
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

    /// The encoder, as [`Self::decoder`].
    pub(crate) fn encoder(
        &self,
        config: &A::Encoder,
        format: ComputeFormat,
        device: Device,
        step: LoadStep<'_>,
    ) -> Result<(Lease<Loaded<A::Encoder>>, Duration)> {
        self.lease(Part::Encoder, config, format, device, step)
    }

    fn lease<C: HalfConfig>(
        &self,
        part: Part,
        config: &C,
        format: ComputeFormat,
        device: Device,
        step: LoadStep<'_>,
    ) -> Result<(Lease<Loaded<C>>, Duration)> {
        let bytes = config.weight_bytes(format, &kernels(device))?;
        let (file, residency) = (self.file.id().clone(), Residency::Expanded);
        let key = WeightKey { file, part, device, format, residency };
        let mut step = |share| {
            pause::pause(pause::LOAD);
            step(share)
        };
        let leased = self.weights.lease(&key, bytes, || {
            let destination = Destination::with_steps(device, &mut step);
            let network = Loaded::load(&self.file, &self.identity, config, format, destination)?;
            synchronize(device)?;
            Ok(network)
        });
        if leased.is_err() {
            // The tensors that were loaded until then don't stay in the pool.
            memory::trim(device)?;
        }
        leased
    }

    /// Carries out what `attempt` says, as [`measure`] does; idle weights make room for it.
    pub(crate) fn measure<T>(
        &self,
        device: Device,
        allowance: Allowance,
        attempt: impl FnOnce() -> Attempted<T>,
    ) -> Attempted<(T, Outcome)> {
        let _reserved = self.weights.reserve(device, allowance.rest(), None)?;
        measure(device, allowance, attempt)
    }

    /// The facts of the file that running a stage again takes.
    pub(crate) fn capture_facts(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Facts<'a> {
            vae: &'a Path,
            family: String,
        }
        Facts { vae: self.file.path(), family: self.identity.family.to_string() }
    }

    /// Checks that the file is as it was when it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        Ok(self.file.check_unchanged().map_err(tilewright_models::Error::from)?)
    }

    /// True if the file is as it was, and is still in its place.
    pub fn is_current(&self) -> bool {
        self.file.is_current()
    }

    /// Frees the weights that no task uses.
    pub fn release(&self) {
        self.weights.forget(self.file.id());
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

    /// Checks that a latent is of this model.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check(&self, latent: &Latent) -> Result<()> {
        Ok(latent.check(&self.config)?)
    }
}

impl VaeFile<kl::Config> {
    /// The family, and another one that the file may be of as far as its names and shapes tell.
    pub fn families(&self) -> (Family, Option<Family>) {
        (self.config.family, self.identity.or_family.filter(|_| self.config.family == self.identity.family))
    }
}
