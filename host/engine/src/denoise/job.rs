//! A sample on one device: the decisions about it, and the attempts to carry them out.

use std::{sync::Arc, time::Duration};

use tch::{Device, Tensor};
use tilewright_plan::{
    Attempt, Candidate, CostModel, Decision, Denoise, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan,
    DenoiseRecord, DenoiseRequest, Device as Facts, Dtype, FailedAttempt, Failure, Objective, Planner, Precision,
    Products, Question, Record, UnderWay, Work,
};
use tilewright_sampling::{Course, Tensors};
use tilewright_torch::device;

use super::{Denoiser, SampleState, Sampling, costs::DenoiseCosts, extents, filled, reuse::Reused, steps::Walk};
use crate::{
    Error, Machine, Observer, Result, Unfinished,
    record::record,
    run::{ASKED, MOST_WITH_OWN, is_torch, one_line},
    task::{AttemptError, measure, of_sound_files, settle},
};

/// The parts of a feed-forward layer in the plan that holds least: with more, attention holds the
/// most.
const LEAST_PARTS: u32 = 8;

/// A request for a sample on one device.
#[derive(Debug)]
pub struct DenoiseJob<'a> {
    pub(super) machine: &'a Machine,
    pub(super) denoiser: &'a Denoiser,
    pub(super) sampling: &'a Sampling,
    pub(super) costs: Arc<DenoiseCosts>,
    facts: Facts,
    capabilities: DenoiseCapabilities,
    request: DenoiseRequest,
}

/// The state that an earlier run of a sample reached, and the plan that it was reached by. The
/// sample goes on in the same types and divisions, since others would change its bits.
#[derive(Debug)]
pub struct Begun {
    /// The state after the last finished step.
    pub state: SampleState,
    /// The plan of that step.
    pub plan: DenoisePlan,
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
    /// The plans that the policy asked the price of.
    pub candidates: Vec<Candidate<Denoise>>,
}

/// The time and memory of the attempts so far.
#[derive(Default)]
struct Spent {
    attempts: u32,
    elapsed: Duration,
    load: Duration,
    moved_bytes: u64,
    peak_bytes: u64,
    reused: u32,
    reuse_deviation: f64,
}

impl<'a> DenoiseJob<'a> {
    /// A job, within a limit that counts the weights.
    ///
    /// # Errors
    /// [`Error::SampleDoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        denoiser: &'a Denoiser,
        sampling: &'a Sampling,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
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
            objective,
            host_total_bytes: host.map_or(0, |memory| memory.total),
            host_free_bytes: host.map_or(0, |memory| memory.available),
            transfer_rate: machine.measured.transfer_bytes_per_second.map_or(0, |rate| rate as u64),
        };
        let costs = Arc::new(DenoiseCosts::new(machine, denoiser, sampling));
        let (facts, capabilities) = (machine.facts_now(), costs.capabilities());
        let job = Self { machine, denoiser, sampling, costs, facts, capabilities, request };
        match job.least_beyond(memory_limit) {
            Some(least) => Err(Error::SampleDoesNotFit { limit: memory_limit, least }),
            None => Ok(job),
        }
    }

    /// The bytes that the leanest plan is expected to hold, weights included; none if no plan has a
    /// price.
    pub fn least_bytes(&self) -> Option<u64> {
        self.least_beyond(0)
    }

    /// Gives policies earlier measurements on this device for this model, newest first.
    #[must_use]
    pub fn with_history(self, records: &[DenoiseRecord]) -> Self {
        // The prices that `new` metered stay, unless a planner still holds it.
        let costs = Arc::try_unwrap(self.costs)
            .unwrap_or_else(|_| DenoiseCosts::new(self.machine, self.denoiser, self.sampling));
        Self { costs: Arc::new(costs.with_history(records)), ..self }
    }

    /// The work itself.
    pub fn request(&self) -> &DenoiseRequest {
        &self.request
    }

    /// The plans that can be carried out.
    pub fn capabilities(&self) -> &DenoiseCapabilities {
        &self.capabilities
    }

    /// The price of a plan.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &DenoisePlan) -> std::result::Result<DenoiseCost, String> {
        self.costs.estimate_one(plan)
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner<Denoise>) -> (DenoiseRecord, Vec<Candidate<Denoise>>) {
        let decision = planner.decide(&self.question(), self.costs.clone());
        let record = self.record(planner, &decision, Vec::new(), None);
        (record, decision.candidates)
    }

    /// The bytes that the leanest plan is expected to hold, if that is more than a limit. Once a
    /// type fits, no other one is priced.
    fn least_beyond(&self, limit: u64) -> Option<u64> {
        let mut least = None;
        for dtype in &self.capabilities.dtypes {
            let plan = DenoisePlan {
                precision: Precision::Uniform(*dtype),
                ahead: Some(0),
                samples: Some(1),
                feed_forward: LEAST_PARTS,
                ..DenoisePlan::plain()
            };
            let Ok(cost) = self.costs.estimate_one(&plan) else { continue };
            let held = cost.held_bytes();
            if held <= limit {
                return None;
            }
            least = Some(least.map_or(held, |least: u64| least.min(held)));
        }
        least
    }

    /// The question before anything was carried out.
    fn question(&self) -> Question<'_, Denoise> {
        Question::denoise(&self.request, &self.facts, &self.capabilities)
    }

    /// Decides and carries out, from the first step or from a state that an earlier run reached.
    /// After a failure the same step is tried again, with a plan that avoids it.
    ///
    /// # Errors
    /// The network can't be loaded, memory is out, the result is not finite, or the user ended it.
    pub fn run(
        &self,
        planner: &mut dyn Planner<Denoise>,
        begun: Option<Begun>,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Sampled, Unfinished<Denoise>> {
        let resumed = begun.as_ref().map_or(0, |begun| begun.state.steps);
        let (mut from, kept) = begun.map_or((None, None), |begun| (Some(begun.state), Some(begun.plan)));
        let begins = kept.as_ref().and_then(|plan| under_way(from.as_ref(), plan));
        let mut decision = planner.decide(&self.question().going_on(begins.as_ref()), self.costs.clone());
        if let Some(kept) = &kept {
            go_on_as(kept, &mut decision);
        }
        let mut attempts: Vec<Attempt<Denoise>> = Vec::new();
        let mut failed: Vec<FailedAttempt<Denoise>> = Vec::new();
        let mut spent = Spent::default();
        let mut was_changed = resumed > 0;
        let (mut has_broken, mut is_told) = (false, false);
        loop {
            let steps_done = from.as_ref().map_or(0, |state| state.steps);
            let expected = tilewright_plan::predict_cost(&*self.costs, &decision.plan);
            let expected = expected.or_else(|| self.estimate(&decision.plan).ok());
            if !std::mem::take(&mut is_told) {
                observer.sample_decided(&decision, expected.as_ref(), steps_done);
            }
            let ended = self.attempt(&decision.plan, &mut from, &mut spent, observer);
            let failure = match of_sound_files(ended, || self.denoiser.check_unchanged()) {
                Ok((latents, noisy, outcome)) => {
                    // The outcome of several plans says little of one of them.
                    if attempts.is_empty() && !was_changed {
                        planner.learn(&self.question(), &decision.plan, &outcome);
                    }
                    let mut record = self.record(planner, &decision, failed, Some(outcome));
                    record.resumed_frames = resumed;
                    let last = self.sampling.sigmas.last().map_or(0.0, |sigma| *sigma as f32);
                    let noisy = (last > 0.0).then_some((noisy, last));
                    return Ok(Sampled { latents, noisy, record, candidates: decision.candidates });
                }
                Err(AttemptError::Failed(failure)) => failure,
                // The plan alone may be at fault, and another one need not fail: a policy's is not
                // the last word.
                Err(AttemptError::Broken(error)) if is_torch(&error) && decision.answer.is_some() && !has_broken => {
                    has_broken = true;
                    was_changed = true;
                    tracing::warn!(%error, plan = %decision.plan, "the plan can't be carried out");
                    let under_way = under_way(from.as_ref(), &decision.plan);
                    let question = self.question().going_on(under_way.as_ref()).after(&attempts);
                    let own = planner.fallback(&question, &*self.costs);
                    let own = own.filter(|own| !Denoise::is_same_work(&own.plan, &decision.plan));
                    let Some(mut own) = own else {
                        return Err(self.unfinished(error, planner, &decision, failed, resumed));
                    };
                    if let Some(fallback) = &mut own.fallback {
                        fallback.detail = format!("the policy's plan can't be carried out: {}", one_line(&error));
                    }
                    decision = own;
                    continue;
                }
                Err(AttemptError::Broken(error)) => {
                    return Err(self.unfinished(error, planner, &decision, failed, resumed));
                }
                Err(AttemptError::Cancelled) => {
                    return Err(self.unfinished(Error::Interrupted, planner, &decision, failed, resumed));
                }
                // The host's own plan is the last resort: no policy changes it.
                Err(AttemptError::AskAgain) if attempts.len() >= ASKED => {
                    is_told = true;
                    continue;
                }
                Err(AttemptError::AskAgain) => {
                    // A policy that takes over knows nothing of another's failures.
                    let done = under_way(from.as_ref(), &decision.plan);
                    decision = planner.decide(&self.question().going_on(done.as_ref()), self.costs.clone());
                    was_changed = true;
                    continue;
                }
            };
            tracing::info!(%failure, plan = %decision.plan, "the attempt failed");
            attempts.push(Attempt { plan: decision.plan.clone(), failure });
            let step = Some(from.as_ref().map_or(0, |state| state.steps));
            let attempt = FailedAttempt { step, ..FailedAttempt::new(decision.clone(), failure) };
            let next = self.decide_again(planner, under_way(from.as_ref(), &decision.plan).as_ref(), &attempts);
            let Some(next) = next else {
                failed.push(attempt);
                let advice = advice(&decision.plan, failure);
                let error = Error::Exhausted { attempts: attempts.len(), last: failure, advice };
                return Err(self.unfinished(error, planner, &decision, failed, resumed));
            };
            observer.sample_failed(&attempt, &next.plan);
            failed.push(attempt);
            decision = next;
        }
    }

    /// The decision to try after these attempts; none if it is time to give up.
    fn decide_again(
        &self,
        planner: &mut dyn Planner<Denoise>,
        under_way: Option<&UnderWay<Denoise>>,
        attempts: &[Attempt<Denoise>],
    ) -> Option<Decision<Denoise>> {
        let last = attempts.last()?;
        // No other division mends values that are not finite in f32.
        let is_hopeless =
            matches!(last.failure, Failure::NonFinite { .. }) && last.plan.precision.dtype() == Dtype::F32;
        if is_hopeless || attempts.len() >= MOST_WITH_OWN {
            return None;
        }
        let question = self.question().going_on(under_way).after(attempts);
        let next = match attempts.len() {
            ..ASKED => Some(planner.decide(&question, self.costs.clone())),
            _ => planner.fallback(&question, &*self.costs),
        };
        next.filter(|next| attempts.iter().all(|attempt| !Denoise::is_same_work(&attempt.plan, &next.plan)))
    }

    fn attempt(
        &self,
        plan: &DenoisePlan,
        from: &mut Option<SampleState>,
        spent: &mut Spent,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Tensor, Tensor, DenoiseOutcome), AttemptError> {
        let _no_grad = tch::no_grad_guard();
        let cost = self.costs.estimate_one(plan).ok();
        let device = self.machine.device;
        let format = self.costs.format(plan).map_err(AttemptError::Broken)?;
        let resident = self.costs.resident_bytes(plan, format).map_err(AttemptError::Broken)?;
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes);
        let pooled = self.costs.pooled_bytes(plan, cost.as_ref(), resident);
        let mapped = weights_bytes.saturating_sub(pooled);
        let sigmas: Vec<f32> = self.sampling.sigmas.iter().map(|sigma| *sigma as f32).collect();
        let course = Course::new(self.sampling.sampler, &self.sampling.model, &sigmas);
        let start = std::time::Instant::now();
        let (mut load, mut moved, mut aside) = (Duration::ZERO, 0, Duration::ZERO);
        let (mut reused, mut deviation) = (0, 0.0_f64);
        let mut work = || -> std::result::Result<[Tensor; 2], AttemptError> {
            let mut state = match from.as_ref() {
                None => course.start(Tensors::new(self.sampling.latents.f_to_device(device)?))?,
                Some(state) => state.on(device)?,
            };
            let mut walk = Walk::new(self, plan, format, &course)?;
            let ended = walk.go(&mut state, observer, &mut |state| *from = Some(state));
            (load, moved, aside) = (walk.load, walk.moved, walk.aside);
            if let Some(reuse) = &walk.reuse {
                Reused { calls: reused, deviation } = reuse.reused();
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
        spent.attempts += 1;
        spent.load += load;
        spent.moved_bytes += moved;
        spent.reused += reused;
        spent.reuse_deviation = spent.reuse_deviation.max(deviation);
        spent.elapsed += start.elapsed().saturating_sub(load + aside);
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
            attempts: spent.attempts,
            reused: spent.reused,
            reuse_deviation: spent.reuse_deviation,
            pool: outcome.pool,
        };
        Ok((latents, noisy, outcome))
    }

    /// The end of a sample without latents. A record without an outcome says that the plan failed,
    /// so that an error which is not the plan's has none.
    fn unfinished(
        &self,
        error: Error,
        planner: &dyn Planner<Denoise>,
        decision: &Decision<Denoise>,
        failed: Vec<FailedAttempt<Denoise>>,
        resumed_frames: u32,
    ) -> Unfinished<Denoise> {
        let record = error.is_of_the_plan().then(|| self.record(planner, decision, failed, None));
        Unfinished { error, record: record.map(|record| Box::new(Record { resumed_frames, ..record })) }
    }

    /// The record of a decision and what it led to.
    fn record(
        &self,
        planner: &dyn Planner<Denoise>,
        decision: &Decision<Denoise>,
        attempts: Vec<FailedAttempt<Denoise>>,
        outcome: Option<DenoiseOutcome>,
    ) -> DenoiseRecord {
        record(&self.question(), &*self.costs, planner, decision, attempts, outcome)
    }
}

/// The sample that the next decision goes on with; none before its first step.
fn under_way(from: Option<&SampleState>, plan: &DenoisePlan) -> Option<UnderWay<Denoise>> {
    from.map(|state| UnderWay { done: state.steps, plan: plan.clone() })
}

/// Lets a sample go on in the types, the order and the divisions that its kept steps were made in.
fn go_on_as(kept: &DenoisePlan, decision: &mut Decision<Denoise>) {
    let mut bound = DenoisePlan { reason: decision.plan.reason.clone(), ..kept.clone() };
    // Products in FP8 take weights as they are stored, on the device: where those are is a matter
    // of bits then.
    if kept.products == Products::Precision {
        let DenoisePlan { weights, ahead, release, .. } = decision.plan;
        bound = DenoisePlan { weights, ahead, release, ..bound };
    }
    if bound != decision.plan {
        decision.adjusted.push(format!("{} → {bound}: the kept steps were made like that", decision.plan));
        decision.plan = bound;
    }
}

/// The way out of a failure.
fn advice(plan: &DenoisePlan, failure: Failure) -> String {
    match failure {
        Failure::NonFinite { .. } if plan.precision.dtype() == Dtype::F32 => {
            "in f32 too: the weights, a LoRA or the conditioning are damaged".into()
        }
        Failure::NonFinite { .. } => "try --set precision=f32".into(),
        Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
            "raise --memory-limit, or try a smaller size, --set weights=packed or --set ahead=1".into()
        }
    }
}
