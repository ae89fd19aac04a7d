//! One half of an autoencoder, its decoder or its encoder: the architecture, the network that is
//! built of it, and the weights that the network needs.

#[cfg(feature = "torch")]
mod loaded;
mod metered;

use std::{fmt, hash::Hash, sync::OnceLock};

use tilewright_kernels::Kernels;
use tilewright_nn::{CausalOps, Costs, Meter, Scope};
use tilewright_plan::Model;

#[cfg(feature = "torch")]
pub use self::loaded::Loaded;
pub use self::metered::{Metered, Pass};
use crate::{
    Checkpoint, ComputeFormat, Family, Identity, Kind, Result, Scaling,
    known::{Half, Known, Weights},
    metered::{build, list_weights},
};

/// The architecture of a half, read off the tensors' names and shapes.
pub trait HalfConfig: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The half that it is of.
    const HALF: Half;
    /// The kind of autoencoder that it is of.
    const KIND: Kind;

    /// The network with its weights.
    type Network<O: CausalOps>: fmt::Debug + Send;
    /// The facts that a pass needs of the architecture and that a meter has to find out.
    type Course: Clone + fmt::Debug + Default + Send + Sync;
    /// The extents of a pass.
    type Extent: Copy + fmt::Debug + Eq + Hash + Send;

    /// Reads the architecture, and config.json beside the file if the layout is diffusers'.
    ///
    /// # Errors
    /// [`crate::Error::Unknown`] if the file has no such half; a tensor that the architecture is
    /// read from is missing or misshapen; widths are nonsense; config.json is broken or asks for an
    /// unsupported layer.
    fn read(file: &Checkpoint, identity: &Identity) -> Result<Self>;

    /// Pixels per latent pixel, and frames per latent frame, the first aside, which gives one.
    fn scales(&self) -> [u32; 2];

    /// The width of its attention, if it has one.
    fn attention_width(&self) -> Option<usize>;

    /// Builds the network, which asks for each weight by diffusers' name.
    ///
    /// # Errors
    /// A weight can't be had.
    fn build<O: CausalOps>(&self, scope: &Scope<'_, O>) -> Result<Self::Network<O>>;

    /// Works out the facts that a pass needs.
    ///
    /// # Errors
    /// The architecture's widths don't go together.
    fn course(&self) -> Result<Self::Course>;

    /// Runs a pass on the meter that the network counts on.
    ///
    /// # Errors
    /// The architecture's widths don't go together.
    fn pass(
        &self,
        network: &Self::Network<Meter>,
        meter: &Meter,
        extent: &Self::Extent,
        course: &OnceLock<Self::Course>,
    ) -> Result<Pass>;

    /// The description of the model that policies are given.
    fn model(&self, family: Family, file: &Checkpoint, identity: &Identity) -> Model {
        Self::HALF.model(file, identity, family, self.scales())
    }

    /// Bytes of the weights, as they are laid out in a format with the kernels of a device.
    ///
    /// # Errors
    /// The architecture's widths don't go together.
    fn weight_bytes(&self, format: ComputeFormat, kernels: &Kernels) -> Result<u64> {
        let meter = Meter::new(format, Costs { kernels: *kernels, ..Costs::default() });
        Ok(build(&meter, |scope| self.build(scope))?.weight_bytes)
    }

    /// The half's part of a file, beside the weights that the network needs.
    ///
    /// # Errors
    /// The file holds no autoencoder of this kind.
    fn weights<'a>(&self, file: &'a Checkpoint, identity: &'a Identity) -> Result<Weights<'a>> {
        let (_, needed) = list_weights(|scope| self.build(scope))?;
        Ok(Weights::new(Known::of(file, identity, Self::KIND)?, Self::HALF, needed))
    }

    /// Checks, before anything is decided or loaded, that the weights can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over, or of a type that can't be computed from, such as
    /// FP8.
    fn check_weights(&self, file: &Checkpoint, identity: &Identity) -> Result<()> {
        self.weights(file, identity)?.check()
    }
}

/// The architecture of a decoder, which also stands for the whole autoencoder.
pub trait DecoderConfig: HalfConfig {
    /// The architecture of the autoencoder's encoder.
    type Encoder: HalfConfig;

    /// The family.
    fn family(&self) -> Family;

    /// Channels of the latent.
    fn latent_channels(&self) -> usize;

    /// The way from latents saved by diffusers into the autoencoder's own space, if it is known.
    fn scaling(&self) -> Option<Scaling>;
}
