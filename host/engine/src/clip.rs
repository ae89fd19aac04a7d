//! One decode of clips from the request to the record. Frames leave as they are decoded; nothing
//! that left is decoded again.

mod decoding;
mod relay;

use tch::Tensor;
use tilewright_plan::{Objective, Planner, Vae};
use tilewright_prices::Quote;

use self::{decoding::ClipDecoding, relay::with_relay};
use crate::{Error, Finished, Job, Machine, MemoryLimit, Observer, Result, Unfinished, VideoVaeFile, run::run};

/// Takes frames as they are decoded.
pub trait Sink {
    /// Frames [T, C, H, W] in −1…1, f32, in host memory, of one sample, from its frame `first` on.
    /// Frames come in order, sample by sample.
    ///
    /// # Errors
    /// Where they can't be kept: the decode ends with that.
    fn frames(
        &mut self,
        sample: u32,
        first: u32,
        frames: &Tensor,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// The input of a decode.
#[derive(Debug)]
pub struct ClipLatents<'a> {
    vae: &'a VideoVaeFile,
    latents: &'a Tensor,
}

/// A request for a decode of one or several clips of one size on one device.
pub type ClipJob<'a> = Job<'a, Vae, ClipLatents<'a>>;

impl<'a> ClipJob<'a> {
    /// A decode of latents [N, C, T, h, w] in the autoencoder's own space, within a limit: a number
    /// of bytes leaves the weights aside.
    ///
    /// # Errors
    /// [`crate::Refusal::DoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a VideoVaeFile,
        latents: &'a Tensor,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let (batch, channels, frames, height, width) = latents.size5()?;
        let shape = [batch, channels, frames, height, width];
        let quote = Quote::decode_clips(&machine.basis(), vae, shape, memory_limit, objective)?;
        Ok(Self::new_unchecked(machine, quote, ClipLatents { vae, latents }))
    }

    /// Decides and decodes; asks again after each of two failures and then takes the fallback
    /// plan, at most six attempts in all, and goes on where the one before failed. `done` are the
    /// frames that each sample has already: they are neither computed nor delivered again.
    ///
    /// # Errors
    /// An error that no other plan avoids, or [`crate::Error::Exhausted`]; with the record as far
    /// as it goes. The frames that were delivered until then are right.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        sink: &mut (dyn Sink + Send),
        done: &[u32],
    ) -> std::result::Result<Finished<()>, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        // A CPU would write at the cost of decoding, and hold more frames meanwhile.
        if self.machine.device == tch::Device::Cpu {
            return run(self, &mut ClipDecoding::new(self, sink, done), planner, observer);
        }
        let work = |sink: &mut dyn Sink| run(self, &mut ClipDecoding::new(self, sink, done), planner, observer);
        let (outcome, written) = with_relay(sink, work);
        match (outcome, written) {
            (outcome, Ok(())) => outcome,
            (Ok(finished), Err(error)) => {
                Err(Unfinished { error: Error::Sink(error), record: Some(Box::new(finished.record)) })
            }
            (Err(unfinished), Err(error)) => Err(Unfinished { error: Error::Sink(error), ..unfinished }),
        }
    }
}
