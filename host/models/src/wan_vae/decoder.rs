//! The decoder: a clip's latents in, frames out, as they are ready.

use tch::Tensor;

use super::{Config, Spread, clip::Clip};
use crate::{Loaded, Result};

/// A WAN autoencoder's decoder, loaded for one type and memory order on one device.
pub type Decoder = Loaded<Config>;

impl Decoder {
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
        self.network.push((&self.ops, &self.course), clip, latents, spread, step, emit)
    }
}
