//! The encoder: a clip's frames in, latent frames out, a few at a time.

use tch::Tensor;

use super::{EncoderConfig, encoder_state::EncoderState};
use crate::{Error, Loaded, Result};

/// A WAN autoencoder's encoder, loaded for one type and memory order on one device.
pub type Encoder = Loaded<EncoderConfig>;

impl Encoder {
    /// Encodes the next frames of a clip, [1, C, T, H, W] in −1…1, to the means of latent frames
    /// [1, z, t, h, w], f32, in the autoencoder's own space. The first frame of the clip comes
    /// alone and gives one; each later push is of a multiple of [`EncoderConfig::temporal_scale`]
    /// frames and gives one latent frame for each `temporal_scale` of them. However a clip is
    /// divided into pushes, the network sees as many frames at once and gives the same.
    ///
    /// `step` is called with the share of the push that is done; an error from it ends the encode.
    /// After an error the state is spent.
    ///
    /// # Errors
    /// [`Error::Clip`] if the frames don't fit; libtorch's failures, out of memory included; the
    /// error that `step` returns.
    pub fn push(
        &self,
        state: &mut EncoderState,
        frames: &Tensor,
        step: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Tensor> {
        self.check(state, frames)?;
        let at_once = if state.size.is_none() { 1 } else { i64::from(self.config.temporal_scale()) };
        state.size = Some([frames.size()[3], frames.size()[4]]);
        self.network.push(&self.ops, &mut state.past, frames, at_once, &self.course, step)
    }

    /// Compares frames with those before and with the network's input.
    fn check(&self, state: &EncoderState, frames: &Tensor) -> Result<()> {
        let refused = |reason: String| Err(Error::Clip { reason });
        let size = frames.size();
        let &[1, channels, count, height, width] = size.as_slice() else {
            return refused(format!("frames of shape {size:?}: one clip is [1, C, T, H, W]"));
        };
        if channels != self.config.image_channels as i64 {
            return refused(format!("pictures of {channels} channels: {} expected", self.config.image_channels));
        }
        self.config.check_size(height, width)?;
        match state.size {
            None if count != 1 => refused(format!("{count} frames at first: the first one comes alone")),
            Some(size) if size != [height, width] => {
                refused(format!("frames of {width}×{height} pixels after those of {}×{}", size[1], size[0]))
            }
            Some(_) if count == 0 || count % i64::from(self.config.temporal_scale()) != 0 => {
                refused(format!("{count} frames: a multiple of {} expected", self.config.temporal_scale()))
            }
            _ => Ok(()),
        }
    }
}
