//! A half of an autoencoder with its weights on a device.

use tilewright_nn::{Ops, Scope, Torch};

use super::HalfConfig;
use crate::{Checkpoint, ComputeFormat, Destination, Identity, Result};

/// A decoder or an encoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Loaded<C: HalfConfig> {
    pub(crate) config: C,
    pub(crate) ops: Torch,
    pub(crate) network: C::Network<Torch>,
    pub(crate) course: C::Course,
}

impl<C: HalfConfig> Loaded<C> {
    /// Loads the weights, each copied once from the mapped file.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be read, by name;
    /// libtorch's failures, out of memory included; what a listener to the load returns.
    pub fn load<'d>(
        file: &Checkpoint,
        identity: &Identity,
        config: &C,
        format: ComputeFormat,
        destination: impl Into<Destination<'d>>,
    ) -> Result<Self> {
        let destination = destination.into();
        let weights = config.weights(file, identity)?;
        weights.check()?;
        let width = config.attention_width().map(|width| width as i64);
        let ops = Torch::new(format, destination.device(), width);
        let network = config.build(&Scope::new(&weights.on(destination), &ops))?;
        Ok(Self { course: config.course()?, config: config.clone(), ops, network })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.ops.format()
    }

    /// The architecture.
    pub fn config(&self) -> &C {
        &self.config
    }
}
