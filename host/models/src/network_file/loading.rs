//! A network's weights, loaded to a device.

use std::sync::Arc;

use tch::Device;
use tilewright_nn::{ComputeFormat, TokenScope, Torch};
use tilewright_torch::streamed::Streamed;

use super::{NetworkConfig, NetworkFile};
use crate::{LoadStep, Result, transformer::Residency};

/// A network with its weights, the operations that it computes with, and the matrices of each block
/// that are copied to the device for their turns.
pub(crate) type Loaded<N> = (N, Torch, Vec<Vec<Arc<Streamed>>>);

impl<C: NetworkConfig> NetworkFile<C> {
    /// Loads the weights of a network that `build` makes. `step` is called before each weight, with
    /// the share of the load that is done.
    pub(crate) fn load_network<N>(
        &self,
        (format, device, residency): (ComputeFormat, Device, Residency),
        step: LoadStep<'_>,
        build: impl FnOnce(&C, &TokenScope<'_, Torch>) -> Result<N>,
    ) -> Result<Loaded<N>> {
        let ops = Torch::new(format, device, Some(self.config.head_width()));
        let source = self.file.on((format, device, residency), self.stored_bytes, &self.blocks, step);
        let network = build(&self.config, &TokenScope::new(&source, &ops))?;
        Ok((network, ops, source.into_streams()))
    }
}
