//! The decoder: latent in, picture out.

use tch::Tensor;

use super::Config;
use crate::{Loaded, Result, progress::Progress};

/// A KL autoencoder's decoder, loaded for one type and memory order on one device.
pub type Decoder = Loaded<Config>;

impl Decoder {
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
        let mut progress = Progress::new(&self.course.shares, step);
        let mut track = |step| progress.track(step);
        self.network.forward(&self.ops, latents.shallow_clone(), band, &self.course.kept, &mut track)
    }
}
