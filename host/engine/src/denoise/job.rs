//! A sample on one device: its plan, and the attempts to carry it out.

use std::time::{Duration, SystemTime};

use tch::{Device, Tensor};
use tilewright_plan::{
    DenoiseAttempt, DenoiseOutcome, DenoisePlan, DenoiseRecord, DenoiseRequest, Dtype, Failure, GuidanceOrder,
    Objective, PolicyIdentity, Precision, Products, Stage, StepReuse, WeightForm,
};
use tilewright_sampling::{Course, Tensors};
use tilewright_torch::device;

use super::{Denoiser, SampleState, Sampling, extents, filled, steps::Walk};
use crate::{
    Error, Machine, Observer, Result,
    task::{AttemptError, measure, settle},
};

/// The most plans that are tried for a sample.
const MOST_ATTEMPTS: usize = 6;

/// Changes of a plan that may hold less, those that cost least time first. Expanded weights are not
/// read again.
const LEANER: [fn(&mut DenoisePlan); 6] = [
    |plan| plan.guidance = GuidanceOrder::InTurn,
    |plan| plan.weights = WeightForm::Packed,
    |plan| (plan.weights, plan.ahead) = (WeightForm::Packed, plan.ahead.or(Some(1))),
    |plan| plan.samples = Some(1),
    |plan| plan.feed_forward = plan.feed_forward.max(FEED_FORWARD_PARTS),
    |plan| (plan.weights, plan.ahead) = (WeightForm::Packed, Some(0)),
];

/// The parts of a feed-forward layer where memory is short: with more, attention holds the most.
const FEED_FORWARD_PARTS: u32 = 8;

/// A request for a sample on one device.
#[derive(Debug)]
pub struct DenoiseJob<'a> {
    pub(super) machine: &'a Machine,
    pub(super) denoiser: &'a Denoiser,
    pub(super) sampling: &'a Sampling,
    pub(super) request: DenoiseRequest,
}

/// A sample that ended with latents.
#[derive(Debug)]
pub struct Sampled {
    /// In the model's own space, f32, in host memory.
    pub latents: Tensor,
    /// The same as the sampler left them, if the last sigma's noise is still in them, and this
    /// sigma.
    pub noisy: Option<(Tensor, f32)>,
    /// The decision and what was measured.
    pub record: DenoiseRecord,
}

/// The time and memory of the attempts so far.
#[derive(Default)]
struct Spent {
    elapsed: Duration,
    load: Duration,
    moved_bytes: u64,
    peak_bytes: u64,
    reused: u32,
    reuse_deviation: f64,
}

impl<'a> DenoiseJob<'a> {
    /// A job, within a limit that counts the weights.
    pub fn new(machine: &'a Machine, denoiser: &'a Denoiser, sampling: &'a Sampling, memory_limit: u64) -> Self {
        let size = sampling.latents.size();
        let [frames, height, width] = extents(&size);
        let patch = denoiser.config().patch();
        let [_, rows, columns] = filled(&size, patch);
        let tokens = frames * (rows / patch) * (columns / patch);
        let host = device::system_memory().ok();
        let request = DenoiseRequest {
            model: denoiser.model(),
            batch: size[0] as u32,
            frames: frames as u32,
            height: height as u32,
            width: width as u32,
            text_tokens: sampling.positive[0].tensors.text.size()[1] as u32,
            image_tokens: tokens as u32,
            steps: sampling.sigmas.len() as u32 - 1,
            passes: sampling.prompts().len() as u32,
            sampler: sampling.sampler.to_string(),
            sigmas: sampling.sigmas.clone(),
            reuse: sampling.reuse,
            memory_limit,
            objective: Objective::default(),
            host_total_bytes: host.map_or(0, |memory| memory.total),
            host_free_bytes: host.map_or(0, |memory| memory.available),
            transfer_rate: machine.measured.transfer_bytes_per_second.map_or(0, |rate| rate as u64),
        };
        Self { machine, denoiser, sampling, request }
    }

    /// The work itself.
    pub fn request(&self) -> &DenoiseRequest {
        &self.request
    }

    /// The host's own plan: f32, weights as they are stored on a CPU and expanded on a GPU that has
    /// room for them, and changed by `LEANER` until it fits into the memory limit.
    pub fn plan(&self) -> DenoisePlan {
        let expanded =
            self.machine.device != Device::Cpu && 4 * self.request.model.parameters < self.request.memory_limit / 2;
        let mut plan = DenoisePlan {
            weights: if expanded { WeightForm::Expanded } else { WeightForm::Packed },
            reuse: self.sampling.reuse.map_or(StepReuse::Off, |threshold| StepReuse::Output { threshold }),
            reason: "the host's own".into(),
            ..DenoisePlan::plain()
        };
        for leaner in self.leaner(plan.clone()) {
            if self.held(&plan).is_none_or(|held| held <= self.request.memory_limit) {
                break;
            }
            plan = leaner;
        }
        plan
    }

    /// Plans that hold less, each less than the one before.
    fn leaner(&self, mut plan: DenoisePlan) -> impl Iterator<Item = DenoisePlan> {
        let mut least = self.held(&plan).unwrap_or(u64::MAX);
        LEANER.into_iter().filter_map(move |change| {
            let mut next = plan.clone();
            change(&mut next);
            let held = self.held(&next).filter(|held| *held < least)?;
            (least, plan) = (held, next.clone());
            Some(next)
        })
    }

    /// The bytes that a plan is expected to hold at once; none if it can't be carried out.
    fn held(&self, plan: &DenoisePlan) -> Option<u64> {
        let cost = self.estimate(plan).ok()?;
        Some(cost.peak_bytes.saturating_add(cost.weights_bytes))
    }

    /// Carries a plan out, from the first step or from a state that an earlier run reached. After a
    /// failure the same step is tried again with a plan that avoids it.
    ///
    /// # Errors
    /// The network can't be loaded, memory is out, the result is not finite, or the user ended it.
    pub fn run(&self, plan: &DenoisePlan, from: Option<SampleState>, observer: &mut dyn Observer) -> Result<Sampled> {
        let limit = self.request.memory_limit;
        if self.held(plan).is_some_and(|held| held > limit) {
            let leanest = self.leaner(plan.clone()).last();
            if let Some(least) = self.held(leanest.as_ref().unwrap_or(plan)).filter(|least| *least > limit) {
                return Err(Error::SampleDoesNotFit { limit, least });
            }
        }
        let mut from = from;
        let mut plan = plan.clone();
        let mut attempts: Vec<DenoiseAttempt> = Vec::new();
        let mut spent = Spent::default();
        loop {
            let failure = match self.attempt(&plan, &mut from, &mut spent, observer) {
                Ok((latents, noisy, outcome)) => {
                    let record = self.record(&plan, attempts, Some(outcome));
                    let last = self.sampling.sigmas.last().map_or(0.0, |sigma| *sigma as f32);
                    let noisy = (last > 0.0).then_some((noisy, last));
                    return Ok(Sampled { latents, noisy, record });
                }
                Err(AttemptError::Failed(failure)) => failure,
                Err(AttemptError::Broken(error)) => return Err(error),
                Err(AttemptError::Cancelled | AttemptError::AskAgain) => return Err(Error::Interrupted),
            };
            let step = from.as_ref().map_or(0, |state| state.steps);
            let next = self.next_plan(&plan, failure).filter(|_| attempts.len() + 1 < MOST_ATTEMPTS);
            attempts.push(DenoiseAttempt { plan: plan.clone(), failure, step });
            let Some(next) = next else {
                return Err(Error::Exhausted {
                    attempts: attempts.len(),
                    last: failure,
                    advice: advice(&plan, failure),
                });
            };
            if let Some(attempt) = attempts.last() {
                observer.sample_failed(attempt, &next);
            }
            plan = next;
        }
    }

    /// A plan that avoids a failure, if there is one: values that are not finite need a wider type,
    /// and memory that is out a plan that holds less.
    fn next_plan(&self, plan: &DenoisePlan, failure: Failure) -> Option<DenoisePlan> {
        let mut next = DenoisePlan { reason: format!("after {failure}"), ..plan.clone() };
        if let Failure::NonFinite { .. } = failure {
            next.precision = Precision::Uniform(Dtype::F32);
            next.products = Products::Precision;
            return (plan.precision.dtype() != Dtype::F32).then_some(next);
        }
        self.leaner(next).next()
    }

    fn attempt(
        &self,
        plan: &DenoisePlan,
        from: &mut Option<SampleState>,
        spent: &mut Spent,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Tensor, Tensor, DenoiseOutcome), AttemptError> {
        let _no_grad = tch::no_grad_guard();
        let cost = self.estimate(plan).ok();
        let device = self.machine.device;
        let format = self.format(plan).map_err(AttemptError::Broken)?;
        let resident = self.resident_bytes(plan, format).map_err(AttemptError::Broken)?;
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes);
        let pooled = self.pooled_bytes(plan, cost.as_ref(), resident);
        let mapped = weights_bytes.saturating_sub(pooled);
        let sigmas: Vec<f32> = self.sampling.sigmas.iter().map(|sigma| *sigma as f32).collect();
        let course = Course::new(self.sampling.sampler, &self.sampling.model, &sigmas);
        let start = std::time::Instant::now();
        let (mut load, mut moved) = (Duration::ZERO, 0);
        let (mut reused, mut deviation) = (0, 0.0_f64);
        let mut work = || -> std::result::Result<[Tensor; 2], AttemptError> {
            let mut state = match from.as_ref() {
                None => course.start(Tensors::new(self.sampling.latents.f_to_device(device)?))?,
                Some(state) => state.on(device)?,
            };
            let mut walk = Walk::new(self, plan, format, &course)?;
            let ended = walk.go(&mut state, observer, &mut |state| *from = Some(state));
            (load, moved) = (walk.load, walk.moved);
            if let Some(reuse) = &walk.reuse {
                (reused, deviation) = (reuse.calls, reuse.deviation);
            }
            drop(walk);
            ended?;
            let (latents, noisy) = (course.finish(&state)?, course.noisy(&state)?);
            device::synchronize(device)?;
            let there = |latents: Tensors<AttemptError>| latents.tensor().f_to_device(Device::Cpu)?.f_contiguous();
            Ok([there(latents)?, there(noisy)?])
        };
        let limit = self.request.memory_limit.saturating_sub(mapped);
        let measured = measure(device, limit, 0, 0, || settle(device, plan.release, work()));
        spent.load += load;
        spent.moved_bytes += moved;
        spent.reused += reused;
        spent.reuse_deviation = spent.reuse_deviation.max(deviation);
        spent.elapsed += start.elapsed().saturating_sub(load);
        let ([latents, noisy], outcome) = measured?;
        // Weights are loaded within the attempt.
        spent.peak_bytes = spent.peak_bytes.max(outcome.peak_bytes.saturating_sub(pooled));
        let outcome = DenoiseOutcome {
            elapsed: spent.elapsed,
            load: spent.load,
            step: spent.elapsed / self.request.steps.max(1),
            peak_bytes: spent.peak_bytes,
            weights_bytes,
            moved_bytes: spent.moved_bytes,
            reused: spent.reused,
            reuse_deviation: spent.reuse_deviation,
            pool: outcome.pool,
        };
        Ok((latents, noisy, outcome))
    }

    /// The record of a plan and what it led to.
    pub fn record(
        &self,
        plan: &DenoisePlan,
        attempts: Vec<DenoiseAttempt>,
        outcome: Option<DenoiseOutcome>,
    ) -> DenoiseRecord {
        DenoiseRecord {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            stage: Stage::Denoise,
            request: self.request.clone(),
            device: self.machine.facts_now(),
            policy: PolicyIdentity {
                name: "fixed".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                digest: String::new(),
                settings: std::collections::BTreeMap::new(),
            },
            plan: plan.clone(),
            estimate: self.estimate(plan).ok(),
            attempts,
            outcome,
        }
    }
}

/// The way out of a failure.
fn advice(plan: &DenoisePlan, failure: Failure) -> String {
    match failure {
        Failure::NonFinite { .. } if plan.precision.dtype() == Dtype::F32 => {
            "in f32 too: the weights or the conditioning are damaged".into()
        }
        Failure::NonFinite { .. } => "try --set precision=f32".into(),
        Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
            "raise --memory-limit, or try a smaller size, --set weights=packed or --set ahead=1".into()
        }
    }
}
