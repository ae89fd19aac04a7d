//! One encode from the request to the record. Whole or in blended tiles: each is encoded alone and faded into its neighbours in the latent.

use std::sync::Arc;

use tch::Tensor;
use tilewright_models::{ComputeFormat, kl::EncoderConfig};
use tilewright_plan::{
    Candidate, Capabilities, Cost, CostModel, Hint, LEAST_TILE, MOST_BATCH, Objective, Outcome, Plan, Planner, Record,
    Request, Stage,
};

use crate::{
    Estimator, Machine, Observer, Result, Unfinished, Vae,
    attempts::{Attempts, Single, Succeeded, Turn},
    estimate::trial,
    run::{Run, Stopped},
};

/// An encode that ended in a latent.
#[derive(Debug)]
pub struct Encoded {
    /// [N, C, h, w], the means in the autoencoder's own space, f32, in host memory.
    pub latents: Tensor,
    /// The decision and what was measured.
    pub record: Record,
    /// The plans that the policy asked the price of for the last decision.
    pub candidates: Vec<Candidate>,
}

/// A request for one encode on one device. Its extents are those of the pictures; tiles and overlaps are multiples of the scale.
#[derive(Debug)]
pub struct EncodeJob<'a> {
    machine: &'a Machine,
    vae: &'a Vae,
    config: EncoderConfig,
    pictures: &'a Tensor,
    request: Request,
    capabilities: Capabilities,
    estimator: Arc<Estimator>,
}

impl<'a> EncodeJob<'a> {
    /// An encode of pictures [N, 3, H, W] in −1…1, within a limit in bytes, weights aside.
    ///
    /// # Errors
    /// The file has no encoder, or the pictures' sides are no multiples of its scale; [`crate::Error::DoesNotFit`] where not even the leanest plan
    /// fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a Vae,
        pictures: &'a Tensor,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let (config, model) = vae.encoding()?;
        config.check(pictures)?;
        let (batch, _, height, width) = pictures.size4()?;
        let scale = config.spatial_scale();
        let mut request = Request {
            model,
            batch: batch as u32,
            frames: 1,
            height: height as u32,
            width: width as u32,
            memory_limit,
            objective,
            hints: Vec::new(),
        };
        let estimator = Arc::new(Estimator::encoding(&config, &request, &machine.measured));
        let capabilities = Capabilities {
            dtypes: estimator.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: MOST_BATCH,
            exact: false,
            carried: false,
            offload: false,
            prefetch_most: 0,
        };
        let trained = vae.config.sample_size.map(|size| Hint { name: "sample-size".into(), value: size.to_string() });
        request.hints.extend(trained);
        let job = Self { machine, vae, config, pictures, request, capabilities, estimator };
        job.attempts().check()?;
        Ok(job)
    }

    fn attempts(&self) -> Attempts<'_> {
        let Self { machine, request, capabilities, estimator, .. } = self;
        Attempts { machine, stage: self.stage(), request, capabilities, costs: estimator.clone() }
    }

    /// Tells policies what was measured before, as [`crate::Job::with_history`] does.
    #[must_use]
    pub fn with_history(mut self, records: &[Record]) -> Self {
        let trials = records.iter().filter_map(|record| trial(self.estimator.as_ref(), record)).collect();
        Arc::make_mut(&mut self.estimator).trials = trials;
        self
    }

    /// The kind of work.
    pub const fn stage(&self) -> Stage {
        Stage::Encode
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

    /// Decides without encoding anything.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        self.attempts().decide(planner)
    }

    /// Decides and encodes; asks again after each of two failures and then takes the host's own plan, at most six
    /// attempts in all.
    ///
    /// # Errors
    /// An error that no other plan avoids, or [`crate::Error::Exhausted`]; with the record as far as it goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Encoded, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        let pictures = self.pictures.f_to_device(self.machine.device)?;
        let mut work = Single(|plan: &Plan, turn: &mut Turn<'_>| self.attempt(&pictures, plan, turn));
        let done = self.attempts().run(planner, observer, &mut work)?;
        let Succeeded { output: latents, record, candidates } = done;
        Ok(Encoded { latents, record, candidates })
    }

    /// Carries one plan out; loads the weights where they are not yet in the plan's types and order.
    fn attempt(
        &self,
        pictures: &Tensor,
        plan: &Plan,
        turn: &mut Turn<'_>,
    ) -> std::result::Result<(Tensor, Outcome), Stopped> {
        let device = self.machine.device;
        let format = ComputeFormat::new(plan.precision, plan.layout)?;
        turn.observer.loading();
        let (encoder, loaded_in) = self.vae.encoder(&self.config, format, device)?;
        turn.observer.loaded();
        *turn.load += loaded_in;
        let observer = &mut *turn.observer;
        let run = || Run { network: &*encoder, input: pictures, plan, device, observer }.carry_out();
        self.attempts().measured_tensor(run)
    }
}
