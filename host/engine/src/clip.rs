//! One decode of clips from the request to the record. Frames leave as they are decoded; nothing that left is decoded again.

mod price;
mod walk;

use std::sync::Arc;

use tch::{Device, Tensor};
use tilewright_plan::{
    Candidate, Capabilities, Cost, CostModel, LEAST_TILE, MOST_AHEAD, Objective, Plan, Planner, Record, Request, Stage,
};

use crate::{
    Machine, Observer, Result, Unfinished, VideoVae,
    attempts::{Attempts, Succeeded},
    estimate::trial,
};

pub use price::ClipEstimator;
use walk::Walk;

/// Takes frames as they are decoded.
pub trait Sink {
    /// Frames [T, C, H, W] in −1…1, f32, in host memory, of one sample, from its frame `first` on. Frames come in order, sample by sample.
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

/// A decode that delivered every frame.
#[derive(Debug)]
pub struct FinishedClip {
    /// The decision and what was measured.
    pub record: Record,
    /// The plans that the policy asked the price of for the last decision.
    pub candidates: Vec<Candidate>,
}

/// A request for a decode of one or several clips of one size on one device.
#[derive(Debug)]
pub struct ClipJob<'a> {
    machine: &'a Machine,
    vae: &'a VideoVae,
    latents: &'a Tensor,
    request: Request,
    capabilities: Capabilities,
    estimator: Arc<ClipEstimator>,
}

impl<'a> ClipJob<'a> {
    /// A decode of latents [N, C, T, h, w] in the autoencoder's own space, within a limit in bytes, weights aside.
    ///
    /// # Errors
    /// [`crate::Error::DoesNotFit`] where not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a VideoVae,
        latents: &'a Tensor,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let (batch, _, latent_frames, height, width) = latents.size5()?;
        let scale = vae.config.spatial_scale();
        let request = Request {
            model: vae.model.clone(),
            batch: batch as u32,
            frames: vae.config.frames(latent_frames as u32),
            height: height as u32 * scale,
            width: width as u32 * scale,
            memory_limit,
            objective,
            hints: Vec::new(),
        };
        let on_cpu = machine.device == Device::Cpu;
        let estimator = ClipEstimator::new(&vae.config, &request, latent_frames as u32, &machine.measured, on_cpu);
        let capabilities = Capabilities {
            dtypes: estimator.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: 1,
            exact: true,
            carried: true,
            offload: !on_cpu,
            prefetch_most: if on_cpu { 0 } else { MOST_AHEAD },
        };
        let job = Self { machine, vae, latents, request, capabilities, estimator: Arc::new(estimator) };
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
    /// attempts in all, and goes on where the one before failed. `done` are the frames that
    /// each sample has already: they are neither computed nor delivered again.
    ///
    /// # Errors
    /// An error that no other plan avoids, or [`crate::Error::Exhausted`]; with the record as far as it goes. What was delivered until then is right.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        sink: &mut dyn Sink,
        done: &[u32],
    ) -> std::result::Result<FinishedClip, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        let mut walk = Walk::new(self, sink, done);
        let Succeeded { record, candidates, .. } = self.attempts().run(planner, observer, &mut walk)?;
        Ok(FinishedClip { record, candidates })
    }
}
