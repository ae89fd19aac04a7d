//! The decoder: a clip's latents in, frames out, as they are ready.

use tch::Tensor;
use tilewright_nn::{Ops, Scope, Torch};

use super::{Config, Spread, clip::Clip, cost::step_products, network::Network};
use crate::{Checkpoint, ComputeFormat, Destination, Identity, Result};

/// A WAN autoencoder's decoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    ops: Torch,
    network: Network<Torch>,
}

impl Decoder {
    /// Loads the weights, each copied once from the mapped file.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be read, by name;
    /// libtorch's failures, out of memory included; what a listener to the load returns.
    pub fn load<'d>(
        file: &Checkpoint,
        identity: &Identity,
        config: &Config,
        format: ComputeFormat,
        destination: impl Into<Destination<'d>>,
    ) -> Result<Self> {
        let destination = destination.into();
        let weights = config.weights(file, identity)?;
        weights.check()?;
        let ops = Torch::new(format, destination.device(), Some(config.middle_channels as i64));
        let mut network = Network::build(&Scope::new(&weights.on(destination), &ops), config)?;
        network.products = step_products(config)?;
        Ok(Self { config: config.clone(), ops, network })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.ops.format()
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Decodes the next latent frames of a clip, [1, C, T, h, w] in the autoencoder's own space,
    /// or, without any, the frames that an earlier push left under way. `emit` is called with
    /// frames [T, C, H, W] in −1…1, f32, on the device, in their order; `step` with the share of
    /// this push that is done. The clip's first latent frame gives one frame, each later one
    /// [`super::Config::temporal_scale`] of them.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included, and errors of `step` and `emit`. Frames that
    /// were not through are still in the clip: call again without latents to go on, perhaps with
    /// another spread.
    pub fn push(
        &self,
        clip: &mut Clip<Tensor>,
        latents: Option<&Tensor>,
        spread: &Spread,
        step: &mut dyn FnMut(f64) -> Result<()>,
        emit: &mut dyn FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        self.network.push(&self.ops, clip, latents, spread, step, emit)
    }
}
