//! The sizes that a model makes, and the shapes of their latents.

use super::{SampleModel, Size, outline::wrong};
use crate::{Result, Setting};

/// The longest side of a picture in pixels, and the most frames.
const MOST_PIXELS: u32 = 1 << 15;
const MOST_FRAMES: u32 = 1 << 12;

impl SampleModel {
    /// Checks that a size can be sampled, before anything is read or encoded for it.
    ///
    /// # Errors
    /// A side or the frames are none that the model makes.
    pub fn check_size(&self, size: Size) -> Result<()> {
        self.shape_of(size).map(drop)
    }

    /// The tokens of the image of latents [N, C, (T,) h, w].
    pub(super) fn image_tokens(&self, shape: &[i64]) -> u64 {
        let [frames, height, width] = [shape[shape.len() - 3], shape[shape.len() - 2], shape[shape.len() - 1]];
        let frames = if self.config().facts().is_video { frames } else { 1 };
        let patch = self.config().facts().patch;
        (frames * ((height + patch - 1) / patch) * ((width + patch - 1) / patch)) as u64
    }

    pub(super) fn shape_of(&self, size: Size) -> Result<Vec<i64>> {
        let Size { width, height, frames } = size;
        let [space, time] = self.scales();
        if width > MOST_PIXELS || height > MOST_PIXELS || frames > MOST_FRAMES || frames == 0 {
            let setting = match (width > MOST_PIXELS, height > MOST_PIXELS) {
                (true, _) => Setting::Width,
                (_, true) => Setting::Height,
                _ => Setting::Frames,
            };
            let most = format!("at most {MOST_PIXELS} pixels a side and {MOST_FRAMES} frames can be made");
            return Err(wrong(setting, format!("a size of {width}×{height} and {frames} frames: {most}")));
        }
        let step = space;
        if width == 0 || height == 0 || width % step != 0 || height % step != 0 {
            let next = |side: u32| side.div_ceil(step).max(1) * step;
            let setting = if width == 0 || width % step != 0 { Setting::Width } else { Setting::Height };
            let (fit, more) = (format!("{}×{}", next(width), next(height)), format!("multiples of {step} pixels"));
            return Err(wrong(setting, format!("a size of {width}×{height}: sides are {more}, as {fit}")));
        }
        let channels = self.config().facts().latent_channels;
        let [rows, columns] = [height / space, width / space].map(i64::from);
        if !self.config().facts().is_video {
            return match frames {
                1 => Ok(vec![1, channels, rows, columns]),
                _ => Err(wrong(Setting::Frames, format!("{frames} frames: this transformer makes pictures"))),
            };
        }
        if (frames - 1) % time != 0 {
            let next = (frames - 1).div_ceil(time) * time + 1;
            let reason = format!("{frames} frames: one more than a multiple of {time}, as {next}, was expected");
            return Err(wrong(Setting::Frames, reason));
        }
        Ok(vec![1, channels, i64::from((frames - 1) / time + 1), rows, columns])
    }
}
