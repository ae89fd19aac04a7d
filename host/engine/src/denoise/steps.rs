//! The steps of a sample: what the sampler asks, by passes through the network.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use tch::{Device, Kind, Tensor};
use tilewright_mapped::meeting;
use tilewright_models::{
    BlockChoice, ComputeFormat, Context, DenoiserFile, Error as ModelError, LoadedDenoiser, transformer::Residency,
};
use tilewright_plan::{DenoisePlan, Failure, Stage, WeightForm};
use tilewright_prices::{DenoisePrices, Pass, Prices, padded_extents, passes, residency};
use tilewright_sampling::{Course, Denoised, Denoiser, SamplerNoise, State, Tensors};
use tilewright_torch::{
    Pace, device, non_finite,
    profile::{self, Part, Profiler},
    scalar,
};

use super::{
    Kept, Prompt, SampleInput, Sampling,
    gauge::Gauge,
    passes::{PassTensors, Preparation, samples_of, split_by_conditioning},
    reuse::Reuse,
};
use crate::{
    Error, Lease, Observer, Refusal, Result, WeightKey,
    observer::{FinishedStep, Next},
    pause,
    profiling::{Profiling, Unit},
    task::{AttemptError, Attempted, trim_between},
};

/// The timesteps of diffusers' schedulers.
const TIMESTEPS: f64 = 1000.0;

/// Latents whose sampler ends with an attempt's error.
type Latents = Tensors<AttemptError>;

/// The state of a sample between two steps, in host memory: all that another process needs to go on
/// with.
#[derive(Debug)]
pub struct SampleState {
    /// The latents as the sampler has them, f32.
    pub latents: Tensor,
    /// Finished steps.
    pub steps: u32,
    /// Latents that earlier steps leave to later ones.
    pub history: Vec<Tensor>,
    /// Numbers that go with them.
    pub numbers: Vec<f32>,
    /// The times that noise was drawn.
    pub draws: u64,
}

impl SampleState {
    /// The same in host memory; samplers write to no latents, so that a CPU's are shared.
    pub(crate) fn of(state: &State<Latents>) -> tilewright_torch::Result<Self> {
        let copied = |latents: &Latents| Ok(latents.tensor().f_to_device(Device::Cpu)?);
        Ok(Self {
            latents: copied(&state.latents)?,
            steps: state.steps as u32,
            history: state.history.iter().map(copied).collect::<tilewright_torch::Result<Vec<Tensor>>>()?,
            numbers: state.numbers.clone(),
            draws: state.draws as u64,
        })
    }

    /// The state on a device.
    pub(super) fn on(&self, device: Device) -> tilewright_torch::Result<State<Latents>> {
        let there = |tensor: &Tensor| Ok(Tensors::new(tensor.f_to_device(device)?));
        Ok(State {
            latents: there(&self.latents)?,
            steps: self.steps as usize,
            history: self.history.iter().map(there).collect::<tilewright_torch::Result<Vec<Latents>>>()?,
            numbers: self.numbers.clone(),
            draws: self.draws as usize,
        })
    }
}

/// One way along the sigmas, under one plan.
pub(super) struct Walk<'a> {
    input: SampleInput<'a>,
    prices: &'a DenoisePrices,
    device: Device,
    plan: &'a DenoisePlan,
    format: ComputeFormat,
    course: &'a Course<f32>,
    prompts: Vec<&'a Prompt>,
    passes: Vec<Pass>,
    condition: Option<Tensor>,
    expert: Option<Expert<'a>>,
    gauge: Gauge<'a>,
    pub reuse: Option<Reuse>,
    pace: Pace,
    /// Time of loading.
    pub load: Duration,
    /// Bytes of weights that were read again.
    pub moved: u64,
    /// Time of what was done with finished steps, such as keeping them: no part of the plan's.
    pub aside: Duration,
}

impl<'a> Walk<'a> {
    pub fn new(
        input: SampleInput<'a>,
        prices: &'a DenoisePrices,
        device: Device,
        (plan, format): (&'a DenoisePlan, ComputeFormat),
        course: &'a Course<f32>,
        gauge: Gauge<'a>,
    ) -> Attempted<Self> {
        let SampleInput { sampling, .. } = input;
        let condition = sampling.condition.as_ref().map(|tensor| tensor.f_to_device(device)).transpose()?;
        Ok(Self {
            input,
            prices,
            device,
            plan,
            format,
            course,
            prompts: sampling.prompts(),
            passes: passes(prices.shape(), plan),
            condition,
            expert: None,
            gauge,
            reuse: reuse_of(input, prices, plan, course),
            pace: Pace::new(device),
            load: Duration::ZERO,
            moved: 0,
            aside: Duration::ZERO,
        })
    }

    /// All steps that are left. Each finished one is in the state, and `keep` gets a copy of it.
    pub fn go(
        &mut self,
        state: &mut State<Latents>,
        observer: &mut dyn Observer,
        profiling: &mut Profiling,
        keep: &mut dyn FnMut(SampleState),
    ) -> Attempted<()> {
        let (SampleInput { denoiser, sampling }, device) = (self.input, self.device);
        let sigmas: Vec<f32> = sampling.sigmas.iter().map(|sigma| *sigma as f32).collect();
        let shape = sampling.latents.size();
        let mut noise = SamplerNoise::new(sampling.sampler, &sampling.seeds, &sigmas, state.draws, &shape, device)?;
        let calls = f64::from(sampling.sampler.calls());
        let course = self.course;
        let mut recorded = None;
        while !course.is_done(state) {
            self.turn_to(denoiser.expert(f64::from(course.sigma(state))), observer)?;
            if profiling.is_wanted && recorded.is_none() {
                let plain = self.rehearse(state, observer)?;
                recorded = Some((Profiler::begin(device, &Stage::Denoise.to_string())?, plain));
            }
            let number = state.steps + 1;
            let in_profile = profile::part(Part::Step, || format!("step {number}"));
            let before = course.part(state);
            let span = (1.0 / course.steps().max(1) as f64).min(1.0 - before);
            let mut step = InStep { walk: self, observer, before, span: span / calls, calls: 0, denoised: None };
            let next = course.step(state, &mut step, &mut noise)?;
            let denoised = step.denoised;
            let values = non_finite(next.latents.tensor())?;
            if values > 0 {
                return Err(AttemptError::Failed(Failure::NonFinite { values }));
            }
            meeting::at(format_args!("step"));
            // Before the step counts, and is kept for a later run.
            denoiser.check_unchanged().map_err(|error| AttemptError::Broken(error.into()))?;
            *state = next;
            if in_profile.is_some() {
                device::synchronize(device)?;
            }
            drop(in_profile);
            trim_between(device, self.plan.release)?;
            let copy = SampleState::of(state)?;
            let finished = FinishedStep {
                state: &copy,
                plan: self.plan,
                steps: course.steps() as u32,
                denoised: denoised.as_ref(),
            };
            let told = Instant::now();
            observer.stepped(&finished).map_err(AttemptError::Broken)?;
            pause::pause(pause::STEP);
            self.aside += told.elapsed();
            keep(copy);
            if !course.is_done(state) && observer.between_steps() == Next::AskAgain {
                return Err(AttemptError::AskAgain);
            }
        }
        let _ = observer.progress(1.0);
        if let Some((profiler, plain)) = recorded {
            profiling.keep(profiler.end()?, Unit::Step, plain, device);
        }
        Ok(())
    }

    /// Takes the next step twice, and leaves no trace of it: to warm up, and to see how long it
    /// takes, which is returned.
    fn rehearse(&mut self, state: &State<Latents>, observer: &mut dyn Observer) -> Attempted<Duration> {
        let (SampleInput { sampling, .. }, device, course) = (self.input, self.device, self.course);
        let sigmas: Vec<f32> = sampling.sigmas.iter().map(|sigma| *sigma as f32).collect();
        let shape = sampling.latents.size();
        // Outputs of a rehearsal must not serve the steps.
        let (start, reuse, moved) = (Instant::now(), self.reuse.take(), self.moved);
        let before = course.part(state);
        let mut plain = Duration::ZERO;
        for _ in 0..2 {
            let begun = Instant::now();
            let mut noise = SamplerNoise::new(sampling.sampler, &sampling.seeds, &sigmas, state.draws, &shape, device)?;
            let mut step = InStep { walk: self, observer, before, span: 0.0, calls: 0, denoised: None };
            drop(course.step(state, &mut step, &mut noise)?);
            device::synchronize(device)?;
            plain = begun.elapsed();
        }
        (self.reuse, self.moved) = (reuse, moved);
        self.aside += start.elapsed();
        Ok(plain)
    }

    /// Leases the expert of a number, in place of the other one.
    fn turn_to(&mut self, index: usize, observer: &mut dyn Observer) -> Attempted<()> {
        if self.expert.as_ref().is_some_and(|expert| expert.index == index) {
            return Ok(());
        }
        self.gauge.note()?;
        // One expert goes before the other comes.
        drop(self.expert.take());
        // The outputs of one expert do not serve the other.
        if let Some(before) = self.reuse.take() {
            let anew = reuse_of(self.input, self.prices, self.plan, self.course);
            self.reuse = anew.map(|reuse| reuse.with_reused(before.reused()));
        }
        observer.loading();
        let start = Instant::now();
        let (SampleInput { denoiser, sampling }, device) = (self.input, self.device);
        let file = &denoiser.files()[index];
        let mut step = |share: f64| match observer.loading_progress(share) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(_) => Err(ModelError::Cancelled),
        };
        let (key, bytes) = weights(file, self.prices, device, (self.plan, self.format))?;
        let (format, gauge) = (self.format, &mut self.gauge);
        let mut is_loaded_now = false;
        let (mut network, _) = denoiser.weights.lease(&key, bytes, || {
            is_loaded_now = true;
            // The load itself is counted against the limit.
            gauge.set_limit(0)?;
            Ok(file.load(format, device, key.residency, &mut step)?)
        })?;
        if !is_loaded_now {
            self.gauge.set_limit(bytes)?;
        }
        // Streamed blocks take host memory that other samples need, and are quick to load again.
        if key.residency == Residency::Streamed {
            network = network.freed_after_use();
        }
        network.divide_as(&format);
        let (size, patch) = (sampling.latents.size(), denoiser.config().facts().patch);
        let guidance = sampling.guidance;
        let given = Preparation { prompts: &self.prompts, network: &network, guidance, size: &size, patch, device };
        let prepared = self.passes.iter().map(|pass| pass.prepare(&given));
        let contexts = prepared.collect::<Attempted<Vec<_>>>()?;
        self.expert = Some(Expert { index, file, network, contexts });
        self.load += start.elapsed();
        observer.loaded();
        Ok(())
    }

    /// The network's input: latents in its scale, with the condition's channels, and with sides of
    /// whole patches.
    fn network_input(&self, latents: &Tensor, sigma: f32) -> Attempted<Tensor> {
        let SampleInput { denoiser, sampling } = self.input;
        let factor = sampling.model.input_factor(sigma);
        let mut input = if factor == 1.0 { latents.shallow_clone() } else { scalar::multiply(latents, factor.into())? };
        if let Some(condition) = &self.condition {
            input = Tensor::f_cat(&[input, condition.shallow_clone()], 1)?;
        }
        let [_, height, width] = padded_extents(&latents.size(), denoiser.config().facts().patch);
        Ok(pad(input, [height, width])?)
    }

    /// The most bytes of the device that the walk held, weights aside.
    pub fn finish(self) -> Attempted<u64> {
        let Self { expert, passes, condition, reuse, gauge, .. } = self;
        let peak = gauge.finish()?;
        drop((expert, passes, condition, reuse));
        Ok(peak)
    }
}

/// A step under way.
struct InStep<'w, 'a> {
    walk: &'w mut Walk<'a>,
    observer: &'w mut dyn Observer,
    /// The part of the way that was gone before the step.
    before: f64,
    /// The part of the way of the step.
    span: f64,
    calls: u32,
    /// The last denoised latents, for a preview.
    denoised: Option<Tensor>,
}

impl Denoiser<Latents> for InStep<'_, '_> {
    fn denoise(&mut self, latents: &Latents, sigma: f32) -> Attempted<Denoised<Latents>> {
        let first = self.before + f64::from(self.calls) * self.span;
        // A call that is reused runs no block, at each of which the observer is asked.
        if self.observer.progress(first.min(1.0)).is_break() {
            return Err(AttemptError::Cancelled);
        }
        let sampling = self.walk.input.sampling;
        let latents = mixed(latents.tensor(), sampling, sigma)?;
        let reused = match &mut self.walk.reuse {
            Some(reuse) => reuse.outputs(&latents, sigma.into())?,
            None => None,
        };
        let outputs = match reused {
            Some(outputs) => outputs,
            None => {
                let outputs = self.run_passes(&latents, sigma, first)?;
                if let Some(reuse) = &mut self.walk.reuse {
                    reuse.note(&latents, sigma.into(), &outputs)?;
                }
                outputs
            }
        };
        self.calls += 1;
        let [guided, negative] = guided(outputs, &latents, sampling, sigma)?;
        let guided = with_kept(&guided, sampling)?;
        self.denoised = Some(guided.shallow_clone());
        Ok(Denoised { guided: Tensors::new(guided), negative: Tensors::new(negative) })
    }
}

impl InStep<'_, '_> {
    /// The network's outputs for the conditionings that count at a sigma. `first` is the part of
    /// the way that is gone before.
    fn run_passes(&mut self, latents: &Tensor, sigma: f32, first: f64) -> Attempted<Vec<Tensor>> {
        let walk = &mut *self.walk;
        let input = walk.network_input(latents, sigma)?;
        let sigmas = sigmas_of_frames(walk.input.sampling, sigma)?;
        let size = latents.size();
        let Some(expert) = &walk.expert else {
            return Err(tilewright_torch::Error::Torch("no expert is loaded".into()).into());
        };
        let mut run = NetworkRun {
            number: 0,
            runs: walk.passes.iter().map(|pass| pass.groups.len()).sum::<usize>().max(1) as f64,
            first,
            span: self.span,
            blocks: walk.input.denoiser.config().blocks(),
            plan: walk.plan,
            expert,
            reuse: walk.reuse.as_mut(),
            pace: &mut walk.pace,
            moved: &mut walk.moved,
            observer: self.observer,
        };
        let mut outputs = Vec::new();
        for (pass, contexts) in walk.passes.iter().zip(&expert.contexts) {
            if !pass.counts(&walk.prompts, sigma.into()) {
                run.number += pass.groups.len();
                continue;
            }
            let mut together = None;
            for group in &pass.groups {
                let _pass = profile::part(Part::Pass, || format!("pass {}", run.number));
                let input = pass.repeated(&samples_of(group, &input)?)?;
                let mut before_block = |block: usize, tokens: &Tensor| run.before_block(block, tokens);
                let output = expert.network.velocity(&input, &sigmas, &contexts[group.context], &mut before_block)?;
                together = Some(pass.put(together, crop(output, &size)?, group)?);
                run.number += 1;
            }
            if let Some(output) = together {
                outputs.extend(split_by_conditioning(output, pass)?);
            }
        }
        Ok(outputs)
    }
}

/// The weights of a denoiser by a plan, as their store knows them, and their bytes in the device's
/// memory.
pub(super) fn weights(
    file: &DenoiserFile,
    prices: &DenoisePrices,
    device: Device,
    (plan, format): (&DenoisePlan, ComputeFormat),
) -> Result<(WeightKey, u64)> {
    let residency = residency(plan, device == Device::Cpu);
    let resident = file.resident_bytes(format, residency)?;
    let cost = prices.price(plan).ok();
    let bytes = prices.pooled_bytes(plan, cost.as_ref(), resident);
    Ok((WeightKey::of_transformer(file.file(), device, format, residency), bytes))
}

/// A run of the network among those of a call: one for each group of each pass.
struct NetworkRun<'r, 'a> {
    number: usize,
    /// The runs of the call.
    runs: f64,
    /// The part of the way that was gone before the call.
    first: f64,
    /// The part of the way of the call.
    span: f64,
    blocks: usize,
    plan: &'a DenoisePlan,
    expert: &'r Expert<'a>,
    reuse: Option<&'r mut Reuse>,
    pace: &'r mut Pace,
    /// Bytes of weights that were read again.
    moved: &'r mut u64,
    observer: &'r mut dyn Observer,
}

impl NetworkRun<'_, '_> {
    fn before_block(&mut self, block: usize, tokens: &Tensor) -> tilewright_models::Result<BlockChoice> {
        let blocks = self.blocks;
        if let Some(reuse) = &mut self.reuse
            && reuse.before_block(self.number, [block, blocks], tokens)? == BlockChoice::SkipRest
        {
            return Ok(BlockChoice::SkipRest);
        }
        if block == blocks {
            return Ok(BlockChoice::Run);
        }
        self.pace.keep()?;
        *self.moved += self.expert.turn(self.plan, block, blocks)?;
        let share = (self.number as f64 + block as f64 / blocks.max(1) as f64) / self.runs;
        match self.observer.progress((self.first + self.span * share).min(1.0)) {
            ControlFlow::Continue(()) => Ok(BlockChoice::Run),
            ControlFlow::Break(_) => Err(ModelError::Cancelled),
        }
    }
}

/// The reuse of a plan.
fn reuse_of(input: SampleInput<'_>, prices: &DenoisePrices, plan: &DenoisePlan, course: &Course<f32>) -> Option<Reuse> {
    Reuse::new(plan.reuse, prices.reuse(plan)?, &input.sampling.model, course.steps())
}

/// Denoised latents by a network's outputs: under guidance, and those of the negative conditioning
/// alone.
fn guided(outputs: Vec<Tensor>, latents: &Tensor, sampling: &Sampling, sigma: f32) -> Attempted<[Tensor; 2]> {
    let [kept, new] = sampling.model.denoised_factors(sigma).map(f64::from);
    let denoised = |output: Tensor| -> Attempted<Tensor> {
        Ok(scalar::multiply(latents, kept)?.f_add(&scalar::multiply(&output, new)?)?)
    };
    let denoised = outputs.into_iter().map(denoised).collect::<Attempted<Vec<Tensor>>>()?;
    // The conditionings that count are in `denoised`, the positive ones first.
    let positive = sampling.positive.iter().filter(|prompt| prompt.counts(sigma.into())).count();
    let (positive, negative) = denoised.split_at(positive.min(denoised.len()));
    let Some(positive) = mean(positive)? else {
        let reason = format!("no conditioning counts at sigma {sigma}: give one for each part of the way");
        return Err(AttemptError::Broken(Error::Refused(Refusal::NotOffered(reason))));
    };
    match mean(negative)? {
        None => Ok([positive.shallow_clone(), positive]),
        Some(negative) => {
            let way = scalar::multiply(&positive.f_sub(&negative)?, sampling.cfg)?;
            Ok([negative.f_add(&way)?, negative])
        }
    }
}

/// The mean of latents; none of none.
fn mean(all: &[Tensor]) -> tilewright_torch::Result<Option<Tensor>> {
    let Some((first, rest)) = all.split_first() else { return Ok(None) };
    let mut sum = first.shallow_clone();
    for latents in rest {
        sum = sum.f_add(latents)?;
    }
    if rest.is_empty() { Ok(Some(sum)) } else { scalar::multiply(&sum, 1.0 / all.len() as f64).map(Some) }
}

/// Latents with sides of whole patches: what a side lacks is its beginning once more, as ComfyUI
/// pads them (comfy/ldm/common_dit.py, `pad_to_patch_size`).
fn pad(mut latents: Tensor, sides: [i64; 2]) -> tilewright_torch::Result<Tensor> {
    for (axis, side) in [-2, -1].into_iter().zip(sides) {
        let place = (latents.dim() as i64 + axis) as usize;
        let lacks = side - latents.size()[place];
        if lacks > 0 {
            let first = latents.f_narrow(axis, 0, lacks)?;
            latents = Tensor::f_cat(&[&latents, &first], axis)?;
        }
    }
    Ok(latents)
}

/// The network's output without its padding.
fn crop(output: Tensor, size: &[i64]) -> tilewright_torch::Result<Tensor> {
    let [height, width] = [size[size.len() - 2], size[size.len() - 1]];
    Ok(output.f_narrow(-2, 0, height)?.f_narrow(-1, 0, width)?)
}

/// Latents of a sigma with the part that is kept in its place, as noisy as they are.
fn mixed(latents: &Tensor, sampling: &Sampling, sigma: f32) -> Attempted<Tensor> {
    let Some(Kept { latents: kept, mask, clean }) = &sampling.kept else { return Ok(latents.shallow_clone()) };
    let mut kept = kept.f_to_device(latents.device())?;
    if let (false, Some(noise)) = (*clean, &sampling.noise) {
        let [new, old] = sampling.model.noise_factors(sigma, false).map(f64::from);
        let noise = scalar::multiply(&noise.f_to_device(latents.device())?, new)?;
        kept = scalar::multiply(&kept, old)?.f_add(&noise)?;
    }
    blended(latents, &kept, mask)
}

/// Denoised latents with the part that is kept in its place.
fn with_kept(denoised: &Tensor, sampling: &Sampling) -> Attempted<Tensor> {
    match &sampling.kept {
        None => Ok(denoised.shallow_clone()),
        Some(Kept { latents, mask, .. }) => blended(denoised, &latents.f_to_device(denoised.device())?, mask),
    }
}

/// The first latents where a mask is 1, the second where it is 0.
fn blended(new: &Tensor, kept: &Tensor, mask: &Tensor) -> Attempted<Tensor> {
    let mask = mask.f_to_device(new.device())?;
    let rest = scalar::add(&scalar::multiply(&mask, -1.0)?, 1.0)?;
    Ok(new.f_mul(&mask)?.f_add(&kept.f_mul(&rest)?)?)
}

/// The sigma of every frame by the mean of its mask, if some have no noise; else one for all.
fn sigmas_of_frames(sampling: &Sampling, sigma: f32) -> Attempted<Vec<f32>> {
    let sigma = match sampling.whole_timesteps {
        true => ((f64::from(sigma) * TIMESTEPS).floor() / TIMESTEPS) as f32,
        false => sigma,
    };
    match &sampling.kept {
        Some(Kept { mask, clean: true, .. }) if mask.dim() == 5 => {
            let shares = mask.f_mean_dim(&[0, 1, 3, 4][..], false, Kind::Double)?;
            let sigma = f64::from(sigma);
            Ok(Vec::<f64>::try_from(&shares)?.into_iter().map(|share| (share * sigma) as f32).collect())
        }
        _ => Ok(vec![sigma]),
    }
}

/// A loaded expert.
struct Expert<'a> {
    index: usize,
    file: &'a DenoiserFile,
    network: Lease<LoadedDenoiser>,
    /// The contexts of each pass.
    contexts: Vec<Vec<Context<Tensor>>>,
}

impl Expert<'_> {
    /// Before a block: those behind it are read ahead, and the one before it is given back. Returns
    /// the bytes that are read again.
    fn turn(&self, plan: &DenoisePlan, block: usize, blocks: usize) -> tilewright_models::Result<u64> {
        let (Some(ahead), WeightForm::Packed) = (plan.ahead, plan.weights) else { return Ok(0) };
        let before = (block + blocks - 1) % blocks.max(1);
        let next = (1..=ahead as usize).map(|next| (block + next) % blocks.max(1));
        if self.network.is_streamed() {
            if before != block {
                self.network.release(before);
            }
            let bytes = self.network.fetch(block)?;
            next.map(|next| self.network.fetch(next)).collect::<tilewright_models::Result<Vec<u64>>>()?;
            return Ok(bytes);
        }
        if before != block {
            self.file.give_back(before);
        }
        next.for_each(|next| self.file.read_ahead(next));
        Ok(self.file.block_bytes().get(block).copied().unwrap_or_default())
    }
}
