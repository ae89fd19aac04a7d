//! The decoder: latent in, picture out.

use tch::Tensor;
use tilewright_nn::{Ops, Scope, Torch};

use super::{Config, decoder_network::DecoderNetwork, metered};
use crate::{Checkpoint, ComputeFormat, Destination, Identity, Result, progress::Progress};

/// A KL autoencoder's decoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    ops: Torch,
    network: DecoderNetwork<Torch>,
    /// Each layer's share of the work.
    shares: Vec<f64>,
    /// The upsamplings that hold their pictures in bands.
    kept: Vec<bool>,
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
        let ops =
            Torch::new(format, destination.device(), config.middle_attention.then_some(config.middle_channels as i64));
        let network = DecoderNetwork::build(&Scope::new(&weights.on(destination), &ops), config)?;
        let (shares, kept) = (metered::decoder_shares(config)?, metered::held_pictures(config)?);
        Ok(Self { config: config.clone(), ops, network, shares, kept })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.ops.format()
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Decodes latents [N, C, h, w] in the autoencoder's own space to pictures [N, 3, h·s, w·s] in
    /// about −1…1, unclamped, f32.
    ///
    /// With `band` the picture goes through the network in bands of that number of output rows: the
    /// result is that of the whole, with norms of the whole picture, but the largest upsampled
    /// pictures are never held: each is computed twice, band by band. `step` is called with the
    /// share of the work that is done, after each layer or band; an error from it ends the decode.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included, and the error that `step` returns.
    pub fn forward(
        &self,
        latents: &Tensor,
        band: Option<u32>,
        step: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Tensor> {
        let mut progress = Progress::new(&self.shares, step);
        let mut track = |step| progress.track(step);
        self.network.forward(&self.ops, latents.shallow_clone(), band, &self.kept, &mut track)
    }
}
