//! The request that decodes and encodes have in common, of pictures or of clips.

use std::time::Duration;

use tilewright_engine::{Error as EngineError, Job, Refusal};
use tilewright_plan::{Candidate, Capabilities, Cost, Plan, Planner, Record, Request, Stage, Vae};

use crate::{Error, Result, Trials};

/// A request for one decode or encode on one device: an input `P` of pictures, or one `C` of clips.
#[derive(Debug)]
pub enum VaeJob<'a, P, C> {
    /// A request of pictures.
    Pictures(Job<'a, Vae, P>),
    /// A request of clips.
    Clips(Job<'a, Vae, C>),
}

/// The same expression for the job of either kind.
macro_rules! of_job {
    ($either:expr, $job:ident => $value:expr) => {
        match $either {
            VaeJob::Pictures($job) => $value,
            VaeJob::Clips($job) => $value,
        }
    };
}

impl<P, C> VaeJob<'_, P, C> {
    /// The same, with what was measured before of its like.
    #[must_use]
    pub fn with_trials(self, trials: &mut Trials) -> Self {
        match self {
            VaeJob::Pictures(job) => VaeJob::Pictures(trials.remind(job)),
            VaeJob::Clips(job) => VaeJob::Clips(trials.remind(job)),
        }
    }

    /// The same, with blended tiles and chunks allowed where an exact plan fits, or not.
    #[must_use]
    pub fn allowing_blended(self, allows: bool) -> Self {
        match self {
            VaeJob::Pictures(job) => VaeJob::Pictures(job.allowing_blended(allows)),
            VaeJob::Clips(job) => VaeJob::Clips(job.allowing_blended(allows)),
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

    /// The shortest time that a plan is expected to take, in whatever memory; none if no plan has a
    /// price.
    pub fn fastest(&self) -> Option<Duration> {
        of_job!(self, job => job.fastest())
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        of_job!(self, job => job.decide(planner))
    }
}

/// The peak of the leanest plan, by the check of a limit of no bytes: nothing fits in it, and the
/// error says the least.
pub(crate) fn least_of(checked: Result<()>) -> Result<u64> {
    match checked {
        Err(Error::Engine(EngineError::Refused(Refusal::DoesNotFit { least, .. }))) => Ok(least),
        ended => ended.map(|()| 0),
    }
}
