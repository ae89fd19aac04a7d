//! An autoencoder's file: opened and understood, its weights loaded when a plan says in which type.

use std::{ops::Deref, path::Path, time::Duration};

use serde::Serialize;
use tch::Device;
use tilewright_models::{
    ComputeFormat, Destination, HalfConfig, Latent, LoadStep, Loaded, kl, transformer::Residency, wan_vae,
};
use tilewright_plan::Outcome;
use tilewright_torch::{device::synchronize, kernels, memory};

use crate::{
    Autoencoder, Overrides, Result, pause,
    task::{Allowance, Attempted, measure},
    weights::{Budget, Lease, Part, WeightKey, WeightStore},
};

/// The file of an autoencoder, and the store of its weights.
#[derive(Debug)]
pub struct VaeFile<A: Autoencoder = kl::Config> {
    file: tilewright_prices::VaeFile<A>,
    /// The store that loaded weights are leased from.
    weights: WeightStore,
}

/// The file of an autoencoder of clips.
pub type VideoVaeFile = VaeFile<wan_vae::Config>;

/// All that the file is known to be.
impl<A: Autoencoder> Deref for VaeFile<A> {
    type Target = tilewright_prices::VaeFile<A>;

    fn deref(&self) -> &Self::Target {
        &self.file
    }
}

impl<A: Autoencoder> VaeFile<A> {
    /// Opens a file, as [`tilewright_prices::VaeFile::open`].
    ///
    /// # Errors
    /// The same.
    pub fn open(path: &Path, overrides: Overrides) -> Result<Self> {
        let file = tilewright_prices::VaeFile::open(path, overrides)?;
        Ok(Self { file, weights: WeightStore::new(Budget::Last) })
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
        let (file, residency) = (self.checkpoint().id().clone(), Residency::Expanded);
        let key = WeightKey { file, part, device, format, residency };
        let mut step = |share| {
            pause::pause(pause::LOAD);
            step(share)
        };
        let leased = self.weights.lease(&key, bytes, || {
            let destination = Destination::with_steps(device, &mut step);
            let network = Loaded::load(self.checkpoint(), self.identity(), config, format, destination)?;
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
        Facts { vae: self.checkpoint().path(), family: self.identity().family.to_string() }
    }

    /// Frees the weights that no task uses.
    pub fn release(&self) {
        self.weights.forget(self.checkpoint().id());
    }

    /// Checks that a latent is of this model.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check(&self, latent: &Latent) -> Result<()> {
        Ok(latent.check(&self.config)?)
    }
}
