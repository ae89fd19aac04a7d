//! One decode from the request to the record.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tch::{Device, Tensor};
use tilewright_models::kl::Numeric;
use tilewright_plan::{
    Attempt, Candidate, Cost, Decision, Dtype, Facts, FailedAttempt, Failure, Hint, Layout, Objective, Offer, Outcome,
    Plan, Planner, PoolStatistics, Precision, Record, Release, Request, Space, Tile, Time,
};
use tilewright_torch::memory;

use crate::{
    Error, Estimator, Machine, Result, Vae,
    run::{Run, Stopped},
};

/// Plans that are tried before a job is given up.
const MOST_ATTEMPTS: usize = 4;

/// The smallest tile in latent pixels: below this a tile is mostly border.
const LEAST_TILE: u32 = 8;

/// How far a peak may lie above its estimate: what is called enough has to be enough.
const ESTIMATE_MARGIN: f64 = 1.05;

/// Tiles or samples that may run together.
const MOST_BATCH: u32 = 64;

/// Hears how a job goes on.
pub trait Observer {
    /// A plan is about to be carried out.
    fn decided(&mut self, _decision: &Decision) {}
    /// A plan failed; the next one follows.
    fn failed(&mut self, _attempt: &FailedAttempt) {}
    /// The share of the plan that is done, from 0 to 1. False ends the job as interrupted.
    fn progress(&mut self, _share: f64) -> bool {
        true
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
    offer: Offer,
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
        let offer = Offer {
            dtypes: estimator.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: MOST_BATCH,
            exact: true,
            carried: false,
            offload: false,
            prefetch_most: 0,
            running: None,
        };
        // In the request, and so in the record: a decision can be made again from what it was made from.
        request.hints = offer.hints();
        let trained = vae.config.sample_size.map(|size| Hint { name: "sample-size".into(), value: size.to_string() });
        request.hints.extend(trained);
        let job = Self { machine, vae, latents, request, offer, estimator };
        let (plan, least) = job.leanest();
        if least.peak_bytes > memory_limit {
            let tile = plan.space.tile().map_or(job.request.height.max(job.request.width), |tile| tile.height);
            return Err(Error::DoesNotFit { limit: memory_limit, least: least.peak_bytes, tile });
        }
        Ok(job)
    }

    /// Tells policies what was measured before on this device for this model, newest first. What was measured at another size is told as
    /// what it makes likely at this one: the estimate for now, times measured over estimated then.
    #[must_use]
    pub fn with_history(mut self, records: &[Record]) -> Self {
        let trials = records.iter().filter_map(|record| self.estimator.trial(record)).collect();
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

    /// The plan that holds least, and its price.
    fn leanest(&self) -> (Plan, Cost) {
        let side = self.offer.tile_least.min(self.request.height.max(self.request.width));
        let plan = |precision, layout, space| Plan {
            space,
            time: Time::Whole,
            batch: 1,
            precision,
            layout,
            release: Release::EachStep,
            offload: false,
            prefetch: 0,
            reason: String::new(),
        };
        // A picture no larger than a tile is leaner whole: nothing is gathered.
        let spaces = [Space::Blended(Tile { height: side, width: side, overlap: 0 }), Space::Whole];
        let mut least = (
            plan(Precision::Uniform(Dtype::F32), Layout::ChannelsFirst, spaces[0]),
            Cost { peak_bytes: u64::MAX, elapsed: Duration::ZERO, tiles: 0, shapes: 0, rework: 1.0 },
        );
        for dtype in &self.offer.dtypes {
            for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                for space in spaces {
                    let plan = plan(Precision::Uniform(*dtype), layout, space);
                    match self.estimate(&plan) {
                        Ok(cost) if cost.peak_bytes < least.1.peak_bytes => least = (plan, cost),
                        _ => {}
                    }
                }
            }
        }
        least.1.peak_bytes = (least.1.peak_bytes as f64 * ESTIMATE_MARGIN) as u64;
        least
    }

    /// Decides without decoding anything.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        let decision = planner.decide(&self.request, &self.machine.facts, &self.offer, self.estimator.clone());
        let candidates = decision.candidates.clone();
        (self.record(planner, &decision, Vec::new(), None), candidates)
    }

    /// Decides and decodes; asks again after each failure, at most four attempts in all.
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
        let mut decision = planner.decide(&self.request, &self.machine.facts, &self.offer, self.estimator.clone());
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut failed: Vec<FailedAttempt> = Vec::new();
        let mut load = Duration::ZERO;
        loop {
            observer.decided(&decision);
            let outcome = self.attempt(&latents, &decision.plan, &mut load, observer);
            let failure = match outcome {
                Ok((pictures, outcome)) => {
                    let outcome = Outcome { attempts: attempts.len() as u32 + 1, load, ..outcome };
                    planner.learn(&self.request, &self.machine.facts, &decision.plan, &outcome);
                    let record = self.record(planner, &decision, failed, Some(outcome));
                    return Ok(Finished { pictures, record, candidates: decision.candidates });
                }
                Err(Stopped::Broken(error)) => {
                    let record = self.record(planner, &decision, failed, None);
                    return Err(Unfinished { error, record: Some(Box::new(record)) });
                }
                Err(Stopped::Failed(failure)) => failure,
            };
            tracing::info!(%failure, space = %decision.plan.space, precision = %decision.plan.precision, "the attempt failed");
            attempts.push(Attempt { plan: decision.plan.clone(), failure });
            let attempt = FailedAttempt::new(decision.clone(), failure);
            observer.failed(&attempt);
            failed.push(attempt);
            // No other tiles mend what is not finite even in f32.
            let hopeless =
                matches!(failure, Failure::NonFinite { .. }) && decision.plan.precision.dtype() == Dtype::F32;
            if attempts.len() >= MOST_ATTEMPTS || hopeless {
                let error = Error::Exhausted {
                    attempts: attempts.len(),
                    last: failure,
                    advice: self.advice(failure, hopeless),
                };
                let record = self.record(planner, &decision, failed, None);
                return Err(Unfinished { error, record: Some(Box::new(record)) });
            }
            decision =
                planner.recover(&self.request, &self.machine.facts, &self.offer, self.estimator.clone(), &attempts);
        }
    }

    fn advice(&self, last: Failure, hopeless: bool) -> String {
        match last {
            Failure::NonFinite { .. } if hopeless => "in f32 too: the weights or the latent are damaged".into(),
            Failure::NonFinite { .. } => "try --policy fixed --set precision=f32".into(),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let (plan, least) = self.leanest();
                let space = match plan.space.tile() {
                    Some(tile) => format!("space=blended --set tile={} --set overlap={}", tile.height, tile.overlap),
                    None => "space=whole".into(),
                };
                format!(
                    "raise --memory-limit, or try --policy fixed --set {space} --set precision={} --set layout={} (about {})",
                    plan.precision,
                    plan.layout,
                    tilewright_plan::bytes::display(least.peak_bytes)
                )
            }
        }
    }

    /// Carries one plan out; loads the weights where they are not yet in the plan's types and order.
    fn attempt(
        &self,
        latents: &Tensor,
        plan: &Plan,
        load: &mut Duration,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Tensor, Outcome), Stopped> {
        let device = self.machine.device;
        let numeric = Numeric::new(plan.precision, plan.layout)?;
        let (decoder, loaded_in) = self.vae.decoder(numeric, device)?;
        *load += loaded_in;
        memory::reset_peak(device)?;
        let before = memory::of(device)?;
        let limit = memory::Limit::new(device, self.request.memory_limit);
        let start = Instant::now();
        let pictures = Run { decoder: &decoder, latents, plan, device, observer }.carry_out();
        let elapsed = start.elapsed();
        drop(limit);
        self.vae.keep(decoder, device);
        let pictures = pictures?;
        let after = memory::of(device)?;
        let pictures = pictures.f_to_device(Device::Cpu)?.f_contiguous()?;
        let misses = after.system - before.system;
        let outcome = Outcome {
            elapsed,
            load: Duration::ZERO,
            peak_bytes: after.peak.saturating_sub(before.in_use),
            attempts: 1,
            pool: PoolStatistics {
                hits: (after.allocations - before.allocations).saturating_sub(misses),
                misses,
                held_bytes: after.held,
                fragmentation: after.fragmentation,
            },
        };
        Ok((pictures, outcome))
    }

    fn record(
        &self,
        planner: &dyn Planner,
        decision: &Decision,
        attempts: Vec<FailedAttempt>,
        outcome: Option<Outcome>,
    ) -> Record {
        Record {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            request: self.request.clone(),
            device: self.machine.facts.clone(),
            policy: planner.identity().clone(),
            answer: decision.answer.clone(),
            plan: decision.plan.clone(),
            adjusted: decision.adjusted.clone(),
            fallback: decision.fallback.clone(),
            decision: decision.elapsed,
            fuel: decision.fuel,
            estimate: self.estimate(&decision.plan).ok(),
            attempts,
            outcome,
        }
    }
}
