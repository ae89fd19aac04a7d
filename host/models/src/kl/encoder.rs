//! The encoder: picture in, latent out.

use tch::Tensor;

use super::EncoderConfig;
use crate::{Loaded, Result, progress::Progress};

/// A KL autoencoder's encoder, loaded for one type and memory order on one device.
pub type Encoder = Loaded<EncoderConfig>;

impl Encoder {
    /// Encodes pictures [N, 3, H, W] in −1…1 to the means of their latents [N, C, H/s, W/s] in the
    /// autoencoder's own space, f32: the result of diffusers' `encode(…).latent_dist.mode()`.
    /// `step` is called with the share of the work that is done, after each layer; an error from it
    /// ends the encode.
    ///
    /// # Errors
    /// [`crate::Error::Picture`] if the sides are no multiples of the scale or the channels are
    /// others; libtorch's failures, out of memory included, and the error that `step` returns.
    pub fn forward(&self, pictures: &Tensor, step: &mut dyn FnMut(f64) -> Result<()>) -> Result<Tensor> {
        self.config.check_shape(&pictures.size())?;
        let mut progress = Progress::new(&self.course, step);
        let mut track = |step| progress.track(step);
        self.network.forward(&self.ops, pictures.shallow_clone(), &mut track)
    }
}
