//! One decode from the request to the record.

use std::sync::Arc;

use tch::Tensor;
use tilewright_models::ComputeFormat;
use tilewright_plan::{
    Candidate, Capabilities, Cost, CostModel, Decision, FailedAttempt, Hint, LEAST_TILE, MOST_BATCH, Objective,
    Outcome, Plan, Planner, Record, Request, Stage,
};

use crate::{
    Error, Estimator, Machine, Result, Vae,
    attempts::{Attempts, Single, Succeeded, Turn},
    estimate::trial,
    run::{Run, Stopped},
};

/// Hears how a job goes on.
pub trait Observer {
    /// A plan is about to be carried out.
    fn decided(&mut self, _decision: &Decision) {}
    /// The expected cost of the plan that was decided; not called if it can't be estimated.
    fn expected(&mut self, _cost: &Cost) {}
    /// Weights are about to be loaded, or taken from where they are loaded already.
    fn loading(&mut self) {}
    /// Weights are there: the work whose cost was expected begins.
    fn loaded(&mut self) {}
    /// A plan failed; the next one follows.
    fn failed(&mut self, _attempt: &FailedAttempt) {}
    /// The share of the plan that is done, from 0 to 1. False ends the job as interrupted.
    fn progress(&mut self, _share: f64) -> bool {
        true
    }
    /// Asked between the chunks of a clip. True asks the planner again, which then knows what is under way ([`Capabilities::running`]): another one may have taken over.
    fn renew(&mut self) -> bool {
        false
    }
}

/// A decode that ended in a picture.
#[derive(Debug)]
pub struct Finished {
    /// [N, 3, H, W] in about −1…1, unclamped, f32, in host memory.
    pub pictures: Tensor,
    /// The decision and what was measured.
    pub record: Record,
    /// The plans that the policy asked the price of for the last decision.
    pub candidates: Vec<Candidate>,
}

/// A decode that did not.
#[derive(Debug)]
pub struct Unfinished {
    /// Why.
    pub error: Error,
    /// How far it came; none where nothing was decided.
    pub record: Option<Box<Record>>,
}

impl<E: Into<Error>> From<E> for Unfinished {
    fn from(error: E) -> Self {
        Self { error: error.into(), record: None }
    }
}

/// A request for one decode on one device.
#[derive(Debug)]
pub struct Job<'a> {
    machine: &'a Machine,
    vae: &'a Vae,
    latents: &'a Tensor,
    request: Request,
    capabilities: Capabilities,
    estimator: Arc<Estimator>,
}

impl<'a> Job<'a> {
    /// A decode of latents [N, C, h, w] in the autoencoder's own space, within a limit in bytes, weights aside.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] where not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a Vae,
        latents: &'a Tensor,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let (batch, _, height, width) = latents.size4()?;
        let scale = vae.config.spatial_scale();
        let mut request = Request {
            model: vae.model.clone(),
            batch: batch as u32,
            frames: 1,
            height: height as u32 * scale,
            width: width as u32 * scale,
            memory_limit,
            objective,
            hints: Vec::new(),
        };
        let estimator = Arc::new(Estimator::new(&vae.config, &request, &machine.measured));
        let capabilities = Capabilities {
            dtypes: estimator.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: MOST_BATCH,
            exact: true,
            carried: false,
            offload: false,
            prefetch_most: 0,
        };
        let trained = vae.config.sample_size.map(|size| Hint { name: "sample-size".into(), value: size.to_string() });
        request.hints.extend(trained);
        let job = Self { machine, vae, latents, request, capabilities, estimator };
        job.attempts().check()?;
        Ok(job)
    }

    fn attempts(&self) -> Attempts<'_> {
        let Self { machine, request, capabilities, estimator, .. } = self;
        Attempts { machine, stage: self.stage(), request, capabilities, costs: estimator.clone() }
    }

    /// Tells policies what was measured before on this device for this model, newest first. What was measured at another size is told as
    /// what it makes likely at this one: the estimate for now, times measured over estimated then.
    #[must_use]
    pub fn with_history(mut self, records: &[Record]) -> Self {
        let trials = records.iter().filter_map(|record| trial(self.estimator.as_ref(), record)).collect();
        Arc::make_mut(&mut self.estimator).trials = trials;
        self
    }

    /// The kind of work.
    pub const fn stage(&self) -> Stage {
        Stage::Decode
    }

    /// What is asked for, as policies see it.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// What can be carried out.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The price of a plan for this job.
    ///
    /// # Errors
    /// One line, where it can't be carried out.
    pub fn estimate(&self, plan: &Plan) -> std::result::Result<Cost, String> {
        self.estimator.estimate_one(plan)
    }

    /// Decides without decoding anything.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        self.attempts().decide(planner)
    }

    /// Decides and decodes; asks again after each of two failures and then takes the host's own plan, at most six
    /// attempts in all.
    ///
    /// # Errors
    /// An error that no other plan avoids, or [`Error::Exhausted`]; with the record as far as it goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Finished, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        let latents = self.latents.f_to_device(self.machine.device)?;
        let mut work = Single(|plan: &Plan, turn: &mut Turn<'_>| self.attempt(&latents, plan, turn));
        let done = self.attempts().run(planner, observer, &mut work)?;
        let Succeeded { output: pictures, record, candidates } = done;
        Ok(Finished { pictures, record, candidates })
    }

    /// Carries one plan out; loads the weights where they are not yet in the plan's types and order.
    fn attempt(
        &self,
        latents: &Tensor,
        plan: &Plan,
        turn: &mut Turn<'_>,
    ) -> std::result::Result<(Tensor, Outcome), Stopped> {
        let device = self.machine.device;
        let format = ComputeFormat::new(plan.precision, plan.layout)?;
        turn.observer.loading();
        let (decoder, loaded_in) = self.vae.decoder(format, device)?;
        turn.observer.loaded();
        *turn.load += loaded_in;
        let observer = &mut *turn.observer;
        let run = || Run { network: &*decoder, input: latents, plan, device, observer }.carry_out();
        self.attempts().measured_tensor(run)
    }
}
