//! A decode, of pictures or of clips.

use std::time::Duration;

use tch::Tensor;
use tilewright_engine::{
    ClipJob, ClipLatents, DecodeJob, Error, Finished, Latents, Machine, MemoryLimit, Observer, Sink, Unfinished,
};
use tilewright_plan::{Objective, Planner};
use tilewright_torch::scalar;

use crate::{
    Model, Result,
    vae_job::{VaeJob, least_of},
};

/// A request for one decode on one device, of pictures or of one or several clips.
pub type Decode<'a> = VaeJob<'a, Latents<'a>, ClipLatents<'a>>;

impl<'a> Decode<'a> {
    /// A decode of latents as [`Model::tensor`] gives them, within a memory limit.
    ///
    /// # Errors
    /// [`tilewright_engine::Refusal::DoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        model: &'a Model,
        latents: &'a Tensor,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> tilewright_engine::Result<Self> {
        let memory_limit = memory_limit.into();
        Ok(match model {
            Model::Picture(vae) => Decode::Pictures(DecodeJob::new(machine, vae, latents, memory_limit, objective)?),
            Model::Clip(vae) => Decode::Clips(ClipJob::new(machine, vae, latents, memory_limit, objective)?),
        })
    }

    /// Refuses latents of a shape, [N, C, h, w] or [N, C, T, h, w], whose decode does not fit in a
    /// limit, before they are read or made.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check(
        machine: &Machine,
        model: &Model,
        shape: &[i64],
        memory_limit: impl Into<MemoryLimit>,
    ) -> tilewright_engine::Result<()> {
        Decode::new(machine, model, &scalar::stand_in(shape)?, memory_limit, Objective::Leanest).map(drop)
    }

    /// The peak of the leanest plan for latents of a shape in bytes, with the weights if a limit
    /// would count them.
    ///
    /// # Errors
    /// The latents are of another model.
    pub fn least_bytes(machine: &Machine, model: &Model, shape: &[i64], counts_weights: bool) -> Result<u64> {
        let checked = Decode::check(machine, model, shape, MemoryLimit { bytes: 0, counts_weights });
        least_of(checked.map_err(Into::into))
    }

    /// The shortest time that a plan for latents of a shape is expected to take, in whatever
    /// memory; none if no plan has a price.
    ///
    /// # Errors
    /// The latents are of another model.
    pub fn shortest(machine: &Machine, model: &Model, shape: &[i64]) -> Result<Option<Duration>> {
        let stand_in = scalar::stand_in(shape)?;
        let limit = MemoryLimit { bytes: u64::MAX, counts_weights: false };
        Ok(Decode::new(machine, model, &stand_in, limit, Objective::Fastest)?.fastest())
    }

    /// Decides, decodes and delivers frames in order, sample by sample: those of a clip as they are
    /// decoded, pictures at the end. `done` are the frames that each clip has already; they are
    /// neither computed nor delivered again.
    ///
    /// # Errors
    /// An error that no other plan avoids, or [`Error::Exhausted`]; with the record as far as it
    /// goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        sink: &mut (dyn Sink + Send),
        done: &[u32],
    ) -> Result<Finished<()>, Unfinished> {
        let job = match self {
            Decode::Clips(job) => return job.run(planner, observer, sink, done),
            Decode::Pictures(job) => job,
        };
        let decoded = job.run(planner, observer)?;
        for sample in 0..decoded.output.size()[0] {
            sink.frames(sample as u32, 0, &decoded.output.f_narrow(0, sample, 1)?).map_err(Error::Sink)?;
        }
        Ok(decoded.map(drop))
    }
}
