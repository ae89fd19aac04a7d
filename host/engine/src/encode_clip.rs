//! One encode of a clip from the request to the record. Frames are read when they are needed and
//! freed when they are encoded: of what is held, only the latents grow with the clip.

mod division;
mod encoding;

use tch::Tensor;
use tilewright_models::wan_vae::EncoderConfig;
use tilewright_plan::{Objective, Planner, Vae};
use tilewright_prices::{ClipExtents, Quote};

use self::encoding::ClipEncoding;
use crate::{Finished, Job, Machine, MemoryLimit, Observer, Result, Unfinished, VideoVaeFile, run::run};

/// Gives the next frames of a clip, as many as asked for, or fewer if the clip ends before: [T, C,
/// H, W] in −1…1, f32, in host memory. An error ends the encode.
pub type Frames<'a> = dyn FnMut(u32) -> std::result::Result<Tensor, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// The latent of a clip.
#[derive(Debug)]
pub struct EncodedClip {
    /// [1, C, t, h, w], the means in the autoencoder's own space, f32, in host memory.
    pub latents: Tensor,
    /// Frames that they were made of: fewer than asked for if the clip ended before.
    pub frames: u32,
}

/// The network of an encode; its frames come while it runs.
#[derive(Debug)]
pub struct ClipSource<'a> {
    vae: &'a VideoVaeFile,
    config: EncoderConfig,
}

/// A request for one encode of a clip on one device.
pub type ClipEncodeJob<'a> = Job<'a, Vae, ClipSource<'a>>;

impl<'a> ClipEncodeJob<'a> {
    /// An encode of a clip of these extents, within a limit: a number of bytes leaves the weights
    /// aside.
    ///
    /// # Errors
    /// The file has no encoder, or the extents are no multiples of its scales;
    /// [`crate::Refusal::DoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a VideoVaeFile,
        source: ClipExtents,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let (quote, config) = Quote::encode_clip(&machine.basis(), vae, source, memory_limit, objective)?;
        Ok(Self::new_unchecked(machine, quote, ClipSource { vae, config }))
    }

    /// Decides and encodes; asks again after each of two failures and then takes the fallback
    /// plan, at most six attempts in all, and goes on with the frames that the one before failed
    /// at: no frame is asked for twice.
    ///
    /// # Errors
    /// An error that no other plan avoids, [`crate::Error::Source`], or
    /// [`crate::Error::Exhausted`]; with the record as far as it goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        frames: &mut Frames<'_>,
    ) -> std::result::Result<Finished<EncodedClip>, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        run(self, &mut ClipEncoding::new(self, frames), planner, observer)
    }
}
