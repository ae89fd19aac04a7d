//! The listener to a job, and the words that it answers with.

use std::{ops::ControlFlow, sync::Arc};

use tch::Tensor;
use tilewright_plan::DenoisePlan;

use crate::{AnyDecided, AnyFailed, Capturing, Profiled, SampleState};

/// The cancellation of a job, by the user or the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl Cancelled {
    /// The answer to progress: the work goes on, or it is cancelled.
    pub const fn unless(goes_on: bool) -> ControlFlow<Self> {
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(Self) }
    }
}

/// The way on from a chunk of a clip or a step of a sample to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the same plan.
    GoOn,
    /// With the planner's answer to another question, which says what is under way: another planner
    /// may have taken over.
    AskAgain,
}

/// A finished step of a sample.
#[derive(Debug)]
pub struct FinishedStep<'a> {
    /// The state after it.
    pub state: &'a SampleState,
    /// The plan that it was taken by.
    pub plan: &'a DenoisePlan,
    /// The steps of the sample.
    pub steps: u32,
    /// Latents as the model last saw them without noise, in its own space, on the device.
    pub denoised: Option<&'a Tensor>,
}

/// A question from any thread, many times a second: true if the job is to end.
pub type StopCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// A listener to a job.
pub trait Observer {
    /// The check for a cancellation, which is looked at within each long operation as
    /// well; none if it is heard through progress alone.
    fn stop_check(&self) -> Option<StopCheck> {
        None
    }
    /// True if the work is to be profiled: it is rehearsed, and then runs under the profiler.
    fn wants_profile(&self) -> bool {
        false
    }
    /// The work was profiled, and has ended well.
    fn profiled(&mut self, _profiled: Profiled) {}
    /// The capture that the work is added to, if there is one.
    fn capturing(&self) -> Option<Arc<Capturing>> {
        None
    }
    /// A plan is about to be carried out.
    fn decided(&mut self, _decided: AnyDecided<'_>) {}
    /// Weights are about to be leased: taken from their store, or loaded.
    fn loading(&mut self) {}
    /// The share of a load that is done, from 0 to 1, before each tensor; not called for
    /// weights that are there. [`Cancelled`] ends the job, and nothing of the load stays.
    fn loading_progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        ControlFlow::Continue(())
    }
    /// Weights are there: the work whose cost was expected begins.
    fn loaded(&mut self) {}
    /// A plan failed; the next one follows, if there is one.
    fn failed(&mut self, _failed: AnyFailed<'_>) {}
    /// The share of the plan that is done, from 0 to 1. [`Cancelled`] ends the job.
    fn progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        ControlFlow::Continue(())
    }
    /// A step of a sample is done. An error ends the sample.
    ///
    /// # Errors
    /// The work on the step failed, such as keeping it on the disk.
    fn stepped(&mut self, _step: &FinishedStep<'_>) -> crate::Result<()> {
        Ok(())
    }
    /// A step of a sample is done, and another one follows.
    fn between_steps(&mut self) -> Next {
        Next::GoOn
    }
    /// A chunk of a decoded clip is done, the first one excepted, and another one follows.
    fn between_chunks(&mut self) -> Next {
        Next::GoOn
    }
}
