//! One decode of clips from the request to the record. Frames leave as they are decoded; nothing that left is decoded again.

mod price;
mod walk;

use std::sync::Arc;

use tch::{Device, Tensor};
use tilewright_plan::{Candidate, Cost, Facts, Hint, Objective, Offer, Plan, Planner, Record, Request};

use crate::{
    Machine, Observer, Result, Unfinished, VideoVae,
    attempts::{Attempts, LEAST_TILE, STAGE, Succeeded},
    estimate::trial,
};

pub use price::ClipEstimator;
use walk::Walk;

/// Chunks of latents that may be copied ahead to a GPU.
const MOST_AHEAD: u32 = 8;

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
    offer: Offer,
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
        let mut request = Request {
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
        let offer = Offer {
            dtypes: estimator.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: 1,
            exact: true,
            carried: true,
            offload: !on_cpu,
            prefetch_most: if on_cpu { 0 } else { MOST_AHEAD },
            running: None,
        };
        // In the request, and so in the record: a decision can be made again from what it was made from.
        request.hints = offer.hints();
        request.hints.push(Hint { name: STAGE.into(), value: "decode".into() });
        let job = Self { machine, vae, latents, request, offer, estimator: Arc::new(estimator) };
        job.attempts().check()?;
        Ok(job)
    }

    fn attempts(&self) -> Attempts<'_> {
        let Self { machine, request, offer, estimator, .. } = self;
        Attempts { machine, request, offer, facts: estimator.clone() }
    }

    /// Tells policies what was measured before, as [`crate::Job::with_history`] does.
    #[must_use]
    pub fn with_history(mut self, records: &[Record]) -> Self {
        let trials = records.iter().filter_map(|record| trial(self.estimator.as_ref(), record)).collect();
        Arc::make_mut(&mut self.estimator).trials = trials;
        self
    }

    /// What is asked for, as policies see it.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// What can be carried out.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The price of a plan for this job.
    ///
    /// # Errors
    /// One line, where it can't be carried out.
    pub fn estimate(&self, plan: &Plan) -> std::result::Result<Cost, String> {
        self.estimator.estimate(plan)
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
