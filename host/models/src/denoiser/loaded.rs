//! A denoiser with its weights on a device.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use tilewright_nn::{ComputeFormat, Torch};
use tilewright_torch::streamed::Streamed;

use super::{Context, DenoiserFile, Inputs, Network};
use crate::{BeforeBlock, LoadStep, Result, transformer::Residency};

impl DenoiserFile {
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
    ) -> Result<LoadedDenoiser> {
        let (network, ops, streams) = self.load_network((format, device, residency), step, Network::build)?;
        Ok(LoadedDenoiser { ops, network, streams })
    }
}

/// A denoiser with its weights on a device.
#[derive(Debug)]
pub struct LoadedDenoiser {
    ops: Torch,
    network: Network<Torch>,
    /// The matrices of each block that are copied to the device for their turns.
    streams: Vec<Vec<Arc<Streamed>>>,
}

impl LoadedDenoiser {
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

    /// As [`Network::prepare`].
    ///
    /// # Errors
    /// As [`Network::prepare`].
    pub fn prepare(&self, inputs: &Inputs<'_, Tensor>, size: [i64; 3]) -> Result<Context<Tensor>> {
        self.network.prepare(&self.ops, inputs, size)
    }

    /// As [`Network::forward`].
    ///
    /// # Errors
    /// As [`Network::forward`].
    pub fn velocity(
        &self,
        latents: &Tensor,
        sigmas: &[f32],
        context: &Context<Tensor>,
        before_block: BeforeBlock<'_, Tensor>,
    ) -> Result<Tensor> {
        Ok(self.network.forward(&self.ops, latents, sigmas, context, before_block)?.f_to_kind(Kind::Float)?)
    }
}
