//! A decode, of pictures or of clips.

use std::time::Duration;

use tch::Tensor;
use tilewright_engine::{ClipJob, DecodeJob, Error, Finished, Machine, MemoryLimit, Observer, Sink, Unfinished};
use tilewright_plan::{Candidate, Capabilities, Cost, Objective, Plan, Planner, Record, Request, Stage};
use tilewright_torch::scalar;

use crate::{Model, Result};

/// A request for one decode on one device.
#[derive(Debug)]
pub enum Decode<'a> {
    /// A decode of pictures.
    Pictures(DecodeJob<'a>),
    /// A decode of one or several clips.
    Clips(ClipJob<'a>),
}

/// The same expression for the job of either kind.
macro_rules! of_job {
    ($decode:expr, $job:ident => $value:expr) => {
        match $decode {
            Decode::Pictures($job) => $value,
            Decode::Clips($job) => $value,
        }
    };
}

impl<'a> Decode<'a> {
    /// A decode of latents as [`Model::tensor`] gives them, within a memory limit.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
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
        // Nothing fits in no bytes at all: the error tells the least.
        match Decode::check(machine, model, shape, MemoryLimit { bytes: 0, counts_weights }) {
            Err(Error::DoesNotFit { least, .. }) => Ok(least),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(0),
        }
    }

    /// The shortest time that a plan for latents of a shape is expected to take, in whatever
    /// memory; none if no plan has a price.
    ///
    /// # Errors
    /// The latents are of another model.
    pub fn shortest(machine: &Machine, model: &Model, shape: &[i64]) -> Result<Option<Duration>> {
        let stand_in = scalar::stand_in(shape)?;
        let limit = MemoryLimit { bytes: u64::MAX, counts_weights: false };
        let decode = Decode::new(machine, model, &stand_in, limit, Objective::Fastest)?;
        Ok(of_job!(decode, job => job.fastest()))
    }

    /// Tells policies earlier measurements, newest first.
    #[must_use]
    pub fn with_history(self, records: &[Record]) -> Self {
        match self {
            Decode::Pictures(job) => Decode::Pictures(job.with_history(records)),
            Decode::Clips(job) => Decode::Clips(job.with_history(records)),
        }
    }

    /// The same, with blended tiles and chunks allowed where an exact plan fits, or not.
    #[must_use]
    pub fn allowing_blended(self, allows: bool) -> Self {
        match self {
            Decode::Pictures(job) => Decode::Pictures(job.allowing_blended(allows)),
            Decode::Clips(job) => Decode::Clips(job.allowing_blended(allows)),
        }
    }

    /// The kind of work.
    pub fn stage(&self) -> Stage {
        of_job!(self, job => job.stage())
    }

    /// The work itself, as policies see it.
    pub fn request(&self) -> &Request {
        of_job!(self, job => job.request())
    }

    /// The plans that can be carried out.
    pub fn capabilities(&self) -> &Capabilities {
        of_job!(self, job => job.capabilities())
    }

    /// The cost of a plan.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
        of_job!(self, job => job.estimate(plan))
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        of_job!(self, job => job.decide(planner))
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
