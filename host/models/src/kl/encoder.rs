//! The encoder: picture in, latent out.

use tch::Tensor;

use super::EncoderConfig;
use crate::{Error, Loaded, Result, progress::Progress};

/// A KL autoencoder's encoder, loaded for one type and memory order on one device.
pub type Encoder = Loaded<EncoderConfig>;

impl Encoder {
    /// Encodes pictures [N, 3, H, W] in −1…1 to the means of their latents [N, C, H/s, W/s] in the
    /// autoencoder's own space, f32: the result of diffusers' `encode(…).latent_dist.mode()`.
    /// `step` is called with the share of the work that is done, after each layer; an error from it
    /// ends the encode.
    ///
    /// # Errors
    /// [`Error::Picture`] if the sides are no multiples of the scale or the channels are others;
    /// libtorch's failures, out of memory included, and the error that `step` returns.
    pub fn forward(&self, pictures: &Tensor, step: &mut dyn FnMut(f64) -> Result<()>) -> Result<Tensor> {
        self.config.check(pictures)?;
        let mut progress = Progress::new(&self.course, step);
        let mut track = |step| progress.track(step);
        self.network.forward(&self.ops, pictures.shallow_clone(), &mut track)
    }
}

impl EncoderConfig {
    /// Checks that pictures [N, C, H, W] can be encoded.
    ///
    /// # Errors
    /// [`Error::Picture`] if they can't.
    pub fn check(&self, pictures: &Tensor) -> Result<()> {
        let refused = |reason: String| Err(Error::Picture { reason });
        let [batch, channels, height, width] = pictures.size()[..] else {
            return refused(format!(
                "a tensor of shape {:?} is no pictures: [N, C, H, W] is expected",
                pictures.size()
            ));
        };
        if channels != self.image_channels as i64 {
            return refused(format!("the picture has {channels} channels, the VAE takes {}", self.image_channels));
        }
        let scale = i64::from(self.spatial_scale());
        if batch < 1 || height < 1 || width < 1 || height % scale != 0 || width % scale != 0 {
            return refused(format!(
                "{batch} pictures of {width}×{height} pixels can't be encoded: the sides have to be multiples of {scale}"
            ));
        }
        Ok(())
    }
}
