//! The listener to a job, and the words that it answers with.

use std::ops::ControlFlow;

use tch::Tensor;
use tilewright_plan::{Cost, Decision, Denoise, DenoiseCost, DenoisePlan, FailedAttempt, Text, TextCost, TextPlan};

use crate::SampleState;

/// The wish that a job ends, from the user or the caller.
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
    /// With the planner's answer to another question, which tells what is under way: another
    /// planner may have taken over.
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

/// A listener to a job.
pub trait Observer {
    /// A plan is about to be carried out.
    fn decided(&mut self, _decision: &Decision) {}
    /// The expected cost of the plan that was decided; not called if it can't be estimated.
    fn expected(&mut self, _cost: &Cost) {}
    /// Weights are about to be loaded, or taken from the last job's.
    fn loading(&mut self) {}
    /// The share of a load that is done, from 0 to 1, before each tensor; not called for
    /// weights that are there. [`Cancelled`] ends the job, and nothing of the load stays.
    fn loading_progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        ControlFlow::Continue(())
    }
    /// Weights are there: the work whose cost was expected begins.
    fn loaded(&mut self) {}
    /// A plan failed; the next one follows.
    fn failed(&mut self, _attempt: &FailedAttempt) {}
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
    /// A plan of a sample is about to be carried out, at the expected cost if there is one, after
    /// so many steps.
    fn sample_decided(&mut self, _decision: &Decision<Denoise>, _cost: Option<&DenoiseCost>, _steps_done: u32) {}
    /// A plan of a sample failed, and the same step follows by the next plan.
    fn sample_failed(&mut self, _attempt: &FailedAttempt<Denoise>, _next: &DenoisePlan) {}
    /// A plan of a text encoder's run is about to be carried out, at the expected cost if there is
    /// one.
    fn text_decided(&mut self, _decision: &Decision<Text>, _cost: Option<&TextCost>) {}
    /// A plan of a text encoder's run failed, and all texts run again by the next one.
    fn text_failed(&mut self, _attempt: &FailedAttempt<Text>, _next: &TextPlan) {}
    /// A step of a sample is done, and another one follows.
    fn between_steps(&mut self) -> Next {
        Next::GoOn
    }
    /// A chunk of a clip is done, and another one follows.
    fn between_chunks(&mut self) -> Next {
        Next::GoOn
    }
}
