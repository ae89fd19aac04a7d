//! A denoiser with its weights on a device.

use tch::{Kind, Tensor};

use super::{Context, DenoiserConfig, Inputs};
use crate::{BeforeBlock, Result, network_file::LoadedNetwork};

/// A denoiser with its weights on a device.
pub type LoadedDenoiser = LoadedNetwork<DenoiserConfig>;

impl LoadedDenoiser {
    /// As [`super::Network::prepare`].
    ///
    /// # Errors
    /// As [`super::Network::prepare`].
    pub fn prepare(&self, inputs: &Inputs<'_, Tensor>, size: [i64; 3]) -> Result<Context<Tensor>> {
        self.network.prepare(&self.ops, inputs, size)
    }

    /// As [`super::Network::forward`].
    ///
    /// # Errors
    /// As [`super::Network::forward`].
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
