//! A network with its weights on a device.

use std::sync::Arc;

use tch::Device;
use tilewright_nn::{ComputeFormat, TokenScope, Torch};
use tilewright_torch::streamed::Streamed;

use super::{AnyConfig, NetworkFile};
use crate::{LoadStep, NetworkConfig, Result, transformer::Residency};

impl<C: AnyConfig> NetworkFile<C> {
    /// Loads the network. `step` is called before each weight, with the share of the load that is
    /// done.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included; an error of `step`, which ends the load.
    pub fn load(
        &self,
        format: ComputeFormat,
        device: Device,
        residency: Residency,
        step: LoadStep<'_>,
    ) -> Result<LoadedNetwork<C>> {
        let ops = Torch::new(format, device, Some(self.config.head_width()));
        let source = self.file.on((format, device, residency), self.stored_bytes, &self.blocks, step);
        let network = self.config.build(&TokenScope::new(&source, &ops))?;
        Ok(LoadedNetwork { ops, network, streams: source.into_streams() })
    }
}

/// A network with its weights, and the operations that it computes with.
#[derive(Debug)]
pub struct LoadedNetwork<C: AnyConfig> {
    pub(crate) ops: Torch,
    pub(crate) network: C::Network<Torch>,
    /// The matrices of each block that are copied to the device for their turns.
    streams: Vec<Vec<Arc<Streamed>>>,
}

impl<C: AnyConfig> LoadedNetwork<C> {
    /// Queues the copies of a block's weights to the device, if they are streamed. Returns the
    /// bytes that are copied.
    ///
    /// # Errors
    /// Memory is out; a fault of the device.
    pub fn fetch(&self, block: usize) -> Result<u64> {
        let streams = self.streams.get(block).map(Vec::as_slice).unwrap_or_default();
        streams.iter().try_for_each(|streamed| streamed.fetch())?;
        Ok(streams.iter().map(|streamed| streamed.bytes()).sum())
    }

    /// Gives the device's memory of a block's streamed weights back.
    pub fn release(&self, block: usize) {
        self.streams.get(block).into_iter().flatten().for_each(|streamed| streamed.release());
    }

    /// Divides attention and feed-forward layers as a format says, of which nothing else differs
    /// from that of the load.
    pub fn divide_as(&mut self, format: &ComputeFormat) {
        self.ops.divide_as(format);
    }

    /// True if weights are copied to the device for their turns.
    pub fn is_streamed(&self) -> bool {
        self.streams.iter().any(|block| !block.is_empty())
    }
}
