//! One encode of a clip from the request to the record. Frames are asked for as they are needed and let go when they are encoded: what is held does not
//! grow with the clip, but for its latents.

mod division;
mod price;
mod walk;

use std::sync::Arc;

use tch::{Device, Tensor};
use tilewright_models::wan::EncoderConfig;
use tilewright_plan::{
    Candidate, Capabilities, Cost, CostModel, LEAST_TILE, Objective, Plan, Planner, Record, Request, Stage,
};

use crate::{
    Machine, Observer, Result, Unfinished, VideoVae,
    attempts::{Attempts, Succeeded},
    estimate::trial,
};

pub use price::ClipEncodeEstimator;
use walk::Walk;

/// The extents of what is encoded: one clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClipExtents {
    /// 1, and any multiple of the autoencoder's temporal scale.
    pub frames: u32,
    /// Pixels, a multiple of the spatial scale.
    pub height: u32,
    /// Pixels, a multiple of the spatial scale.
    pub width: u32,
}

/// Gives the next frames of a clip, so many or, where it ends before, as many as there are: [T, C, H, W] in −1…1, f32, in host memory. An error ends
/// the encode.
pub type Frames<'a> = dyn FnMut(u32) -> std::result::Result<Tensor, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// An encode that ended in a clip's latent.
#[derive(Debug)]
pub struct EncodedClip {
    /// [1, C, t, h, w], the means in the autoencoder's own space, f32, in host memory.
    pub latents: Tensor,
    /// Frames that they were made of: fewer than asked for where the clip ended before.
    pub frames: u32,
    /// The decision and what was measured.
    pub record: Record,
    /// The plans that the policy asked the price of for the last decision.
    pub candidates: Vec<Candidate>,
}

/// A request for one encode of a clip on one device.
#[derive(Debug)]
pub struct ClipEncodeJob<'a> {
    machine: &'a Machine,
    vae: &'a VideoVae,
    config: EncoderConfig,
    request: Request,
    capabilities: Capabilities,
    estimator: Arc<ClipEncodeEstimator>,
}

impl<'a> ClipEncodeJob<'a> {
    /// An encode of a clip of these extents, within a limit in bytes, weights aside.
    ///
    /// # Errors
    /// The file has no encoder, or the extents are no multiples of its scales; [`crate::Error::DoesNotFit`] where not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a VideoVae,
        source: ClipExtents,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let (config, model) = vae.encoding()?;
        let ClipExtents { frames, height, width } = source;
        let (scale, temporal) = (config.spatial_scale(), config.temporal_scale());
        let unfit = frames == 0 || !(frames - 1).is_multiple_of(temporal) || height == 0 || width == 0;
        if unfit || !height.is_multiple_of(scale) || !width.is_multiple_of(scale) {
            let reason = format!(
                "{frames} frames of {width}×{height} pixels: 1 and any multiple of {temporal}, with sides that are multiples of {scale}, expected"
            );
            return Err(tilewright_models::Error::Clip { reason }.into());
        }
        let request = Request { model, batch: 1, frames, height, width, memory_limit, objective, hints: Vec::new() };
        let on_cpu = machine.device == Device::Cpu;
        let estimator = ClipEncodeEstimator::new(&config, &request, &machine.measured, on_cpu);
        let capabilities = Capabilities {
            dtypes: estimator.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: 1,
            exact: false,
            carried: true,
            offload: !on_cpu,
            prefetch_most: 0,
        };
        let job = Self { machine, vae, config, request, capabilities, estimator: Arc::new(estimator) };
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
    /// attempts in all, and goes on with the frames that the one before failed at: no
    /// frame is asked for twice.
    ///
    /// # Errors
    /// An error that no other plan avoids, [`crate::Error::Source`], or [`crate::Error::Exhausted`]; with the record as far as it goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        frames: &mut Frames<'_>,
    ) -> std::result::Result<EncodedClip, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        let mut walk = Walk::new(self, frames);
        let Succeeded { output: latents, record, candidates } = self.attempts().run(planner, observer, &mut walk)?;
        Ok(EncodedClip { latents, frames: walk.encoded(), record, candidates })
    }
}
