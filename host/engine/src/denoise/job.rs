//! A sample on one device: the decisions about it, and the attempts to carry them out.

use std::time::{Duration, Instant};

use serde::Serialize;
use tilewright_wording::Setting;

use tch::{Device, Tensor};
use tilewright_models::ComputeFormat;
use tilewright_plan::{
    Decision, Denoise, DenoiseOutcome, DenoisePlan, Failure, Objective, Planner, PoolStatistics, Products, UnderWay,
};
use tilewright_prices::Quote;
use tilewright_sampling::{Course, Tensors};
use tilewright_torch::device;

use super::{
    Denoiser, SampleInput, SampleState, Sampling, SamplingFacts,
    gauge::Gauge,
    reuse::{Reuse, Reused},
    steps::{Walk, weights},
};
use crate::{
    Finished, Job, Machine, Observer, Result, Unfinished,
    capturing::{Inputs, Values},
    run::{is_hopeless, run},
    task::{Allowance, AttemptContext, AttemptError, Attempted, Task, measure, settle},
    work::{Attempts, Runnable},
};

/// A request for a sample on one device.
pub type DenoiseJob<'a> = Job<'a, Denoise, SampleInput<'a>>;

/// The state that an earlier run of a sample reached, and the plan that it was reached by. The
/// sample goes on in the same types and divisions, since others would change its bits.
#[derive(Debug)]
pub struct Begun {
    /// The state after the last finished step.
    pub state: SampleState,
    /// The plan of that step.
    pub plan: DenoisePlan,
}

/// The latents of a sample.
#[derive(Debug)]
pub struct Sampled {
    /// In the model's own space, f32, in host memory.
    pub latents: Tensor,
    /// The same as the sampler left them, if the last sigma's noise is still in them, and this
    /// sigma.
    pub noisy: Option<(Tensor, f32)>,
}

impl Runnable for Denoise {
    fn with_attempts(outcome: DenoiseOutcome, Attempts { count, load, .. }: Attempts) -> DenoiseOutcome {
        DenoiseOutcome { attempts: count, load, ..outcome }
    }
}

impl<'a> DenoiseJob<'a> {
    /// A job, within a limit that counts the weights.
    ///
    /// # Errors
    /// [`crate::Refusal::SampleDoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        denoiser: &'a Denoiser,
        sampling: &'a Sampling,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let quote = Quote::denoise(&machine.basis(), denoiser, &sampling.into(), memory_limit, objective)?;
        Ok(Self::new_unchecked(machine, quote, SampleInput { denoiser, sampling }))
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
    ) -> std::result::Result<Finished<Sampled, Denoise>, Unfinished<Denoise>> {
        run(self, &mut SampleTask::new(self, begun), planner, observer)
    }
}

/// The facts that running a sample again takes.
#[derive(Serialize)]
struct SampleFacts<T: Serialize> {
    sampling: SamplingFacts,
    transformer: T,
}

/// A sample on its way.
struct SampleTask<'a> {
    job: &'a DenoiseJob<'a>,
    /// The state after the last finished step.
    from: Option<SampleState>,
    /// The plan of the steps that an earlier process has done, and their number.
    resumed: Option<(DenoisePlan, u32)>,
    spent: Spent,
}

/// The time and memory of the attempts so far.
#[derive(Default)]
struct Spent {
    elapsed: Duration,
    moved_bytes: u64,
    peak_bytes: u64,
    reused: u32,
    reuse_deviation: f64,
    /// The time of the last attempt that is no part of the plan's: loading, and keeping steps.
    aside: Duration,
}

impl Spent {
    /// Adds a walk that has ended, well or not.
    fn note(&mut self, walk: &Walk<'_>) {
        let Reused { calls, deviation } = walk.reuse.as_ref().map(Reuse::reused).unwrap_or_default();
        self.moved_bytes += walk.moved;
        self.reused += calls;
        self.reuse_deviation = self.reuse_deviation.max(deviation);
        self.aside = walk.load + walk.aside;
    }

    fn outcome(&self, steps: u32, weights_bytes: u64, pool: PoolStatistics) -> DenoiseOutcome {
        DenoiseOutcome {
            elapsed: self.elapsed,
            load: Duration::ZERO,
            step: self.elapsed / steps.max(1),
            peak_bytes: self.peak_bytes,
            weights_bytes,
            moved_bytes: self.moved_bytes,
            attempts: 1,
            reused: self.reused,
            reuse_deviation: self.reuse_deviation,
            pool,
        }
    }
}

/// The latents at the end of the way, in host memory.
struct Walked {
    latents: Tensor,
    /// The same with the noise of the last sigma.
    noisy: Tensor,
    /// The most bytes of the device that were held, weights aside.
    peak_bytes: u64,
}

impl<'a> SampleTask<'a> {
    fn new(job: &'a DenoiseJob<'a>, begun: Option<Begun>) -> Self {
        let resumed = begun.as_ref().map(|begun| (begun.plan.clone(), begun.state.steps));
        Self { job, from: begun.map(|begun| begun.state), resumed, spent: Spent::default() }
    }

    /// Goes on from the last finished step to the last one, within `most` bytes of the device.
    fn walk(
        &mut self,
        (plan, format): (&DenoisePlan, ComputeFormat),
        course: &Course<f32>,
        most: u64,
        context: &mut AttemptContext<'_, Denoise>,
    ) -> Attempted<Walked> {
        let (job, device) = (self.job, self.job.machine.device);
        let gauge = Gauge::new(device, &job.input.denoiser.weights, most)?;
        let mut state = match &self.from {
            None => course.start(Tensors::new(job.input.sampling.latents.f_to_device(device)?))?,
            Some(state) => state.on(device)?,
        };
        let mut walk = Walk::new(job.input, job.prices(), device, (plan, format), course, gauge)?;
        let keep = &mut |state| self.from = Some(state);
        let ended = walk.go(&mut state, context.observer, context.profiling, keep);
        *context.load += walk.load;
        self.spent.note(&walk);
        let held = walk.finish();
        ended?;
        let peak_bytes = held?;
        let (latents, noisy) = (course.finish(&state)?, course.noisy(&state)?);
        device::synchronize(device)?;
        let there = |latents: Tensors<AttemptError>| latents.tensor().f_to_device(Device::Cpu)?.f_contiguous();
        Ok(Walked { latents: there(latents)?, noisy: there(noisy)?, peak_bytes })
    }
}

impl Task<Denoise> for SampleTask<'_> {
    type Output = Sampled;

    fn inputs(&mut self) -> tilewright_capture::Result<Inputs> {
        let SampleInput { denoiser, sampling } = self.job.input;
        let (tensors, sampling) = sampling.written();
        let values = Values::of(tensors.iter().map(|(name, tensor)| (name.clone(), tensor)))?;
        Ok(Inputs::new(values, &SampleFacts { sampling, transformer: denoiser.written() }))
    }

    fn outputs(&mut self, Sampled { latents, noisy }: &Sampled) -> tilewright_capture::Result<Values> {
        let noisy = noisy.iter().map(|(noisy, _)| ("noisy".to_owned(), noisy));
        Values::of([("output".to_owned(), latents)].into_iter().chain(noisy))
    }

    fn goes_on(&self) -> bool {
        self.from.is_some()
    }

    fn attempt(
        &mut self,
        plan: &DenoisePlan,
        context: &mut AttemptContext<'_, Denoise>,
    ) -> Attempted<(Sampled, DenoiseOutcome)> {
        let _no_grad = tch::no_grad_guard();
        let job = self.job;
        let (prices, sampling, device) = (job.prices(), job.input.sampling, job.machine.device);
        let cost = job.estimate(plan).ok();
        let format = prices.format(plan).map_err(|error| AttemptError::Broken(error.into()))?;
        let resident = prices.resident_bytes(plan, format).map_err(|error| AttemptError::Broken(error.into()))?;
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes);
        let pooled = prices.pooled_bytes(plan, cost.as_ref(), resident);
        let mapped = weights_bytes.saturating_sub(pooled);
        let most = job.request().memory_limit.saturating_sub(mapped);
        let sigmas: Vec<f32> = sampling.sigmas.iter().map(|sigma| *sigma as f32).collect();
        let course = Course::new(sampling.sampler, &sampling.model, &sigmas);
        let start = Instant::now();
        let first = sigmas.first().map_or(0, |sigma| job.input.denoiser.expert(f64::from(*sigma)));
        let (key, _) = weights(&job.input.denoiser.files()[first], prices, device, (plan, format))?;
        let reserved = job.input.denoiser.weights.reserve(device, most.saturating_sub(pooled), Some(&key))?;
        // The gauge limits the memory.
        let measured = measure(device, Allowance::whole(u64::MAX), || {
            settle(device, plan.release, self.walk((plan, format), &course, most, context))
        });
        drop(reserved);
        let aside = std::mem::take(&mut self.spent.aside);
        self.spent.elapsed += start.elapsed().saturating_sub(aside);
        let (Walked { latents, noisy, peak_bytes }, outcome) = measured?;
        self.spent.peak_bytes = self.spent.peak_bytes.max(peak_bytes);
        let last = sigmas.last().copied().unwrap_or_default();
        let sampled = Sampled { latents, noisy: (last > 0.0).then_some((noisy, last)) };
        Ok((sampled, self.spent.outcome(job.request().steps, weights_bytes, outcome.pool)))
    }

    fn check_files(&self) -> Result<()> {
        Ok(self.job.input.denoiser.check_unchanged()?)
    }

    fn under_way(&self, last: Option<&DenoisePlan>) -> Option<UnderWay<Denoise>> {
        let plan = last.or(self.resumed.as_ref().map(|(plan, _)| plan))?;
        self.from.as_ref().map(|state| UnderWay { done: state.steps, plan: plan.clone() })
    }

    fn steps_done(&self) -> Option<u32> {
        Some(self.from.as_ref().map_or(0, |state| state.steps))
    }

    fn resumed(&self) -> u32 {
        self.resumed.as_ref().map_or(0, |(_, steps)| *steps)
    }

    /// Lets the sample go on in the types, the order and the divisions that its kept steps were
    /// made in.
    fn bind(&self, decision: &mut Decision<Denoise>) {
        let Some((kept, _)) = &self.resumed else { return };
        let mut bound = DenoisePlan { reason: decision.plan.reason.clone(), ..kept.clone() };
        // Products in FP8 take weights as they are stored, on the device: where those are is a
        // matter of bits then.
        if kept.products == Products::Precision {
            let DenoisePlan { weights, ahead, release, .. } = decision.plan;
            bound = DenoisePlan { weights, ahead, release, ..bound };
        }
        if bound != decision.plan {
            decision.adjusted.push(format!("{} → {bound}: the kept steps were made like that", decision.plan));
            decision.plan = bound;
        }
    }

    fn advice(&self, plan: &DenoisePlan, failure: Failure) -> String {
        match failure {
            Failure::NonFinite { .. } if is_hopeless::<Denoise>(plan, failure) => {
                "in f32 too: the weights, a LoRA or the conditioning are damaged".into()
            }
            Failure::NonFinite { .. } => format!("try {} precision=f32", Setting::Set),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let [limit, set] = [Setting::MemoryLimit, Setting::Set];
                format!("raise {limit}, or try a smaller size, {set} weights=packed or {set} ahead=1")
            }
        }
    }
}
