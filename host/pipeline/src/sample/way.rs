//! The way of a sample: the sampler, and the sigmas that it goes along.

use tilewright_sampling::{Convention, FlowScheduler, ModelSampling, Sampler, Schedule, Shift, check_sigmas};

use super::{SampleModel, SampleRequest, Steps, saved::SavedScheduler};
use crate::Result;

/// The way of a sample: its sampler, sigmas and model.
#[derive(Debug)]
pub(super) struct Way {
    pub sampler: Sampler,
    pub sigmas: Vec<f64>,
    pub shift: Shift,
    pub model: ModelSampling,
    pub whole_timesteps: bool,
}

/// A shift of the same kind with another number, if one is given.
fn replaced(usual: Shift, shift: Option<f64>) -> Shift {
    match (usual, shift) {
        (usual, None) => usual,
        (Shift::Flow(_), Some(shift)) => Shift::Flow(shift),
        (_, Some(mu)) => Shift::Exponential(mu),
    }
}

impl SampleModel {
    /// The way from times to sigmas that a request asks for, if no saved scheduler is followed.
    pub(crate) fn shift_of(&self, request: &SampleRequest) -> Shift {
        replaced(self.shift(request.convention), request.shift.or(self.defaults.shift))
    }

    /// The way that a request asks for. As diffusers has it, a saved pipeline's scheduler is
    /// followed where the request says nothing else.
    pub(super) fn way(&self, request: &SampleRequest, tokens: u64) -> Result<Way> {
        let as_diffusers = request.convention == Convention::Diffusers;
        let saved = match &self.pipeline {
            Some(folder) if as_diffusers => SavedScheduler::open(folder)?,
            _ => None,
        };
        let usual = saved.as_ref().map_or_else(|| self.shift(request.convention), |saved| saved.shift(tokens));
        let own = if saved.is_none() { self.defaults.shift } else { None };
        let shift = replaced(usual, request.shift.or(own));
        shift.check()?;
        let model = shift.model(tokens);
        let named = request.sampler.map(FlowScheduler::of);
        let flow = named.or(saved.map(|saved| saved.scheduler)).unwrap_or_default();
        let mut sampler = request.sampler.unwrap_or_default();
        // Along ComfyUI's sigmas, and sigmas by hand, the sampler of that name is ComfyUI's.
        let mut whole_timesteps = false;
        let sigmas = match &request.steps {
            Steps::Sigmas(sigmas) => {
                check_sigmas(sigmas)?;
                sigmas.clone()
            }
            Steps::Count { steps, strength, scheduler, span } => {
                let steps = steps.unwrap_or_else(|| self.usual_steps());
                span.of(match scheduler {
                    None if as_diffusers => {
                        if request.sampler.is_none() {
                            sampler = flow.sampler().parse().unwrap_or_default();
                        }
                        sampler = sampler.native();
                        whole_timesteps = flow.has_whole_timesteps();
                        let times = self.config().facts().published.times;
                        flow.sigmas(shift, tokens, steps, *strength, times)?
                    }
                    scheduler => {
                        let scheduler = scheduler.unwrap_or_default();
                        Schedule { sampler, scheduler, model: model.clone() }.sigmas(steps, *strength)?
                    }
                })?
            }
        };
        Ok(Way { sampler, sigmas, shift, model, whole_timesteps })
    }
}
