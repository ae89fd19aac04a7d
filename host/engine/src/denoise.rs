//! Samples: latents along sigmas, by the velocities of one denoiser or of two that take turns.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant, SystemTime},
};

use tch::{Device, Kind, Tensor};
use tilewright_models::{
    ComputeFormat, Context, DenoiserConfig, DenoiserFile, Error as ModelError, Inputs, LoadedDenoiser, Lora, LoraFit,
    transformer::Residency,
};
use tilewright_nn::{Costs, Meter, TokenScope};
use tilewright_plan::{
    DenoiseAttempt, DenoiseCost, DenoiseOutcome, DenoisePlan, DenoiseRecord, DenoiseRequest, DenoiserModel, Dtype,
    Failure, GuidanceOrder, Layout, Outcome, PolicyIdentity, Precision, Stage, WeightForm,
};
use tilewright_torch::{Pace, copy, device, non_finite, scalar};

use crate::{
    Error, Machine, Observer, Result,
    task::{AttemptError, measure},
};

/// The blocks that a streamed network holds at once besides those that are read ahead: the one at
/// work, and the one before, which is given back meanwhile.
const AT_WORK: u64 = 2;

/// One denoiser, or two that take turns.
#[derive(Debug)]
pub struct Denoiser {
    experts: Vec<DenoiserFile>,
    boundary: f64,
}

impl Denoiser {
    /// A denoiser for all sigmas.
    pub fn single(file: DenoiserFile) -> Self {
        Self { experts: vec![file], boundary: 0.0 }
    }

    /// Two denoisers of one architecture: the first for sigmas from `boundary` on, the second for
    /// those below.
    ///
    /// # Errors
    /// The architectures differ, or the boundary leaves one of them without work.
    pub fn experts(high: DenoiserFile, low: DenoiserFile, boundary: f64) -> Result<Self> {
        let refused = |reason: String| {
            let path = low.file().file().path().to_owned();
            Err(Error::Model(ModelError::Unknown { path, reason }))
        };
        if high.config != low.config {
            return refused(format!(
                "of another architecture than {}: two experts have the same",
                high.file().file().path().display()
            ));
        }
        if !(boundary > 0.0 && boundary < 1.0) {
            return refused(format!("a boundary of {boundary} leaves one expert without work: 0.875 is WAN 2.2's"));
        }
        Ok(Self { experts: vec![high, low], boundary })
    }

    /// The architecture.
    pub fn config(&self) -> &DenoiserConfig {
        &self.experts[0].config
    }

    /// Adds a LoRA to an expert, by its number, and says how much of it fits.
    ///
    /// # Errors
    /// There is no such expert; as [`DenoiserFile::add`].
    pub fn add(&mut self, expert: usize, lora: Lora) -> Result<LoraFit> {
        let path = lora.file().path().to_owned();
        let reason = "for an expert of low noise, and there is one transformer: leave @low out".to_owned();
        let file = self.experts.get_mut(expert).ok_or(Error::Model(ModelError::Unknown { path, reason }))?;
        file.add(lora).map_err(Error::Model)
    }

    /// The files.
    pub fn files(&self) -> &[DenoiserFile] {
        &self.experts
    }

    /// The index of the expert for a sigma.
    fn expert(&self, sigma: f64) -> usize {
        usize::from(self.experts.len() > 1 && sigma < self.boundary)
    }

    /// The facts that plans depend on.
    pub fn model(&self) -> DenoiserModel {
        let file = &self.experts[0];
        DenoiserModel {
            family: self.config().family().name().to_owned(),
            parameters: file.parameters,
            stored_bytes: self.experts.iter().map(|file| file.stored_bytes).max().unwrap_or_default(),
            stored: file.stored.name().to_owned(),
            blocks: self.config().blocks() as u32,
            largest_block_bytes: file.block_bytes().into_iter().max().unwrap_or_default(),
            experts: self.experts.len() as u32,
        }
    }
}

/// Conditioning as it stands in its file: f32, in host memory. One row serves any batch.
#[derive(Debug)]
pub struct ConditioningTensors {
    /// [N, tokens, width]
    pub text: Tensor,
    /// [N, width]
    pub pooled: Option<Tensor>,
    /// [N, tokens, width]
    pub image: Option<Tensor>,
}

/// The part of latents that is kept.
#[derive(Debug)]
pub struct Kept {
    /// [N, C, (T,) h, w] in the model's own space.
    pub latents: Tensor,
    /// [1, 1, (T,) h, w]: 1 where latents are made anew.
    pub mask: Tensor,
    /// Kept latents go in as they are, and their frames have no noise; else they get the noise of
    /// each step.
    pub clean: bool,
}

/// The input of a sample.
#[derive(Debug)]
pub struct Sampling {
    /// [N, C, h, w] or [N, C, T, h, w]: latents with the noise of the first sigma, in the model's
    /// own space, f32, in host memory.
    pub latents: Tensor,
    /// The noise of kept latents, of the same shape.
    pub noise: Option<Tensor>,
    /// Conditioning.
    pub positive: ConditioningTensors,
    /// The conditioning that guidance leads away from.
    pub negative: Option<ConditioningTensors>,
    /// Channels behind the latents': a mask's and a latent's.
    pub condition: Option<Tensor>,
    /// The part of the latents that is kept.
    pub kept: Option<Kept>,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f32>,
    /// The factor of the way from the negative conditioning's velocity to the other's.
    pub cfg: f64,
    /// Sigmas, one more than steps.
    pub sigmas: Vec<f64>,
}

/// A request for a sample on one device.
#[derive(Debug)]
pub struct DenoiseJob<'a> {
    machine: &'a Machine,
    denoiser: &'a Denoiser,
    sampling: &'a Sampling,
    request: DenoiseRequest,
}

/// A sample that ended with latents.
#[derive(Debug)]
pub struct Sampled {
    /// In the model's own space, f32, in host memory.
    pub latents: Tensor,
    /// The decision and what was measured.
    pub record: DenoiseRecord,
}

impl<'a> DenoiseJob<'a> {
    /// A job, within a limit that counts the weights.
    pub fn new(machine: &'a Machine, denoiser: &'a Denoiser, sampling: &'a Sampling, memory_limit: u64) -> Self {
        let size = sampling.latents.size();
        let [frames, height, width] = extents(&size);
        let patch = denoiser.config().patch();
        let request = DenoiseRequest {
            model: denoiser.model(),
            batch: size[0] as u32,
            frames: frames as u32,
            height: height as u32,
            width: width as u32,
            text_tokens: sampling.positive.text.size()[1] as u32,
            image_tokens: (frames * (height / patch) * (width / patch)) as u32,
            steps: sampling.sigmas.len() as u32 - 1,
            passes: 1 + u32::from(sampling.negative.is_some()),
            sampler: "euler".into(),
            sigmas: sampling.sigmas.clone(),
            memory_limit,
        };
        Self { machine, denoiser, sampling, request }
    }

    /// The work itself.
    pub fn request(&self) -> &DenoiseRequest {
        &self.request
    }

    /// The host's own plan: f32, weights as they are stored on a CPU and expanded on a GPU that has
    /// room for them, streamed if the memory limit asks for it.
    pub fn plan(&self) -> DenoisePlan {
        let expanded =
            self.machine.device != Device::Cpu && 4 * self.request.model.parameters < self.request.memory_limit / 2;
        let mut plan = DenoisePlan {
            precision: Precision::Uniform(Dtype::F32),
            weights: if expanded { WeightForm::Expanded } else { WeightForm::Packed },
            ahead: None,
            guidance: GuidanceOrder::InTurn,
            reason: "the host's own".into(),
        };
        if let (WeightForm::Packed, Ok(cost)) = (plan.weights, self.estimate(&plan))
            && cost.peak_bytes + cost.weights_bytes > self.request.memory_limit
        {
            plan.ahead = Some(1);
        }
        plan
    }

    /// The cost of a plan.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &DenoisePlan) -> std::result::Result<DenoiseCost, String> {
        let format = ComputeFormat::new(plan.precision, Layout::ChannelsFirst).map_err(|error| error.to_string())?;
        let speed = self.machine.measured.speeds.iter().find(|speed| speed.dtype == plan.precision.dtype());
        let speed = speed.ok_or_else(|| format!("{} can't be run on this device", plan.precision))?;
        let fused_attention = format.fuses_attention(self.machine.device, self.denoiser.config().head_width());
        let costs = Costs { fused_attention, ..Costs::new(speed, &self.machine.measured) };
        let (peak, seconds) = self.meter(format, costs, plan).map_err(|error| error.to_string())?;
        let model = &self.request.model;
        let resident = self.resident_bytes(plan, format).map_err(|error| error.to_string())?;
        let is_mapped = residency(plan, self.machine.device) == Residency::Mapped;
        let mut mapped = if is_mapped { model.stored_bytes } else { 0 };
        if let Some(ahead) = plan.ahead {
            let blocks = self.denoiser.experts[0].block_bytes();
            let rest = mapped.saturating_sub(blocks.iter().sum());
            mapped = mapped.min(rest + (u64::from(ahead) + AT_WORK) * model.largest_block_bytes);
        }
        let weights_bytes = mapped + resident;
        let step = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Ok(DenoiseCost { peak_bytes: peak, weights_bytes, step })
    }

    /// Bytes of memory that weights are held in beside their file.
    fn resident_bytes(&self, plan: &DenoisePlan, format: ComputeFormat) -> Result<u64> {
        let residency = residency(plan, self.machine.device);
        let of = |file: &DenoiserFile| file.resident_bytes(format, residency).map_err(Error::Model);
        let all = self.denoiser.experts.iter().map(of).collect::<Result<Vec<u64>>>()?;
        Ok(all.into_iter().max().unwrap_or_default())
    }

    /// The peak beside the weights, and the seconds of a step.
    fn meter(&self, format: ComputeFormat, costs: Costs, plan: &DenoisePlan) -> Result<(u64, f64)> {
        let meter = Meter::new(format, costs);
        let config = self.denoiser.config();
        let scope = TokenScope::new(self.denoiser.experts[0].file(), &meter);
        let network = tilewright_models::Network::build(config, &scope).map_err(Error::Model)?;
        let nn = |error: tilewright_nn::Error| Error::Model(error.into());
        let size = self.sampling.latents.size();
        let occupied = |shape: &[i64]| meter.occupied(shape, Kind::Float).map_err(nn);
        let passes = self.passes(plan);
        let batches: Vec<i64> = passes.iter().map(|pass| size[0] * pass.conditionings.len() as i64).collect();
        let mut contexts = Vec::new();
        for (pass, batch) in passes.iter().zip(&batches) {
            let of_batch = |tensor: &Tensor| {
                let mut shape = tensor.size();
                shape[0] = *batch;
                occupied(&shape)
            };
            let given = pass.conditionings[0];
            let text = of_batch(&given.text)?;
            let pooled = given.pooled.as_ref().map(of_batch).transpose()?;
            let image = given.image.as_ref().map(of_batch).transpose()?;
            let guidance = self.sampling.guidance;
            let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance };
            contexts.push(network.prepare(&meter, &inputs, extents(&size)).map_err(Error::Model)?);
        }
        let latents = occupied(&size)?;
        let sigmas = vec![1.0; if self.has_clean_frames() { size[2] as usize } else { 1 }];
        let before = meter.seconds();
        let mut velocities = Vec::new();
        for (context, batch) in contexts.iter().zip(&batches) {
            let mut input = size.clone();
            input[0] = *batch;
            input[1] += config.condition_channels();
            let input = if input == size { latents.clone() } else { occupied(&input)? };
            let velocity = network.forward(&meter, &input, &sigmas, context, &mut |_| Ok(()));
            velocities.push(velocity.map_err(Error::Model)?);
        }
        Ok((meter.peak_bytes(), meter.seconds() - before))
    }

    fn has_clean_frames(&self) -> bool {
        self.sampling.kept.as_ref().is_some_and(|kept| kept.clean)
    }

    /// Carries a plan out.
    ///
    /// # Errors
    /// The network can't be loaded, memory is out, the result is not finite, or the user ended it.
    pub fn run(&self, plan: &DenoisePlan, observer: &mut dyn Observer) -> Result<Sampled> {
        let estimate = self.estimate(plan).ok();
        if let Some(cost) = estimate {
            let held = cost.peak_bytes.saturating_add(cost.weights_bytes);
            if plan.ahead.is_some() && held > self.request.memory_limit {
                return Err(Error::SampleDoesNotFit { limit: self.request.memory_limit, least: held });
            }
        }
        match self.attempt(plan, estimate.as_ref(), observer) {
            Ok((latents, outcome)) => {
                let record = self.record(plan, Vec::new(), Some(outcome));
                Ok(Sampled { latents, record })
            }
            Err(AttemptError::Failed(failure)) => {
                Err(Error::Exhausted { attempts: 1, last: failure, advice: advice(plan, failure) })
            }
            Err(AttemptError::Broken(error)) => Err(error),
            Err(AttemptError::Cancelled | AttemptError::AskAgain) => Err(Error::Interrupted),
        }
    }

    fn attempt(
        &self,
        plan: &DenoisePlan,
        cost: Option<&DenoiseCost>,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Tensor, DenoiseOutcome), AttemptError> {
        let _no_grad = tch::no_grad_guard();
        let machine = self.machine;
        let format = ComputeFormat::new(plan.precision, Layout::ChannelsFirst)?;
        let resident = self.resident_bytes(plan, format).map_err(AttemptError::Broken)?;
        let mapped = cost.map_or(0, |cost| cost.weights_bytes).saturating_sub(resident);
        let mut times = (Duration::ZERO, 0);
        let work = || -> std::result::Result<Tensor, AttemptError> {
            let (latents, load, moved) = self.steps(plan, format, observer)?;
            times = (load, moved);
            device::synchronize(machine.device)?;
            Ok(latents)
        };
        let limit = self.request.memory_limit.saturating_sub(mapped);
        let (latents, outcome) = measure(machine.device, limit, 0, 0, work)?;
        let (load, moved_bytes) = times;
        let Outcome { elapsed, peak_bytes, pool, .. } = outcome;
        let elapsed = elapsed.saturating_sub(load);
        let step = elapsed / self.request.steps.max(1);
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes);
        // Weights are loaded within the attempt.
        let peak_bytes = peak_bytes.saturating_sub(resident);
        Ok((latents, DenoiseOutcome { elapsed, load, step, peak_bytes, weights_bytes, moved_bytes, pool }))
    }

    /// All steps; also the time of loading, and the bytes of weights that were read again.
    fn steps(
        &self,
        plan: &DenoisePlan,
        format: ComputeFormat,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Tensor, Duration, u64), AttemptError> {
        let (sampling, device) = (self.sampling, self.machine.device);
        let residency = residency(plan, device);
        let (mut load, mut moved) = (Duration::ZERO, 0);
        let there = |tensor: &Tensor| tensor.f_to_device(device);
        let mut latents = copy(&sampling.latents.f_to_device(device)?)?;
        let condition = sampling.condition.as_ref().map(there).transpose()?;
        let mut expert: Option<Expert<'_>> = None;
        let mut pace = Pace::new(device);
        let steps = sampling.sigmas.len() - 1;
        let blocks = self.denoiser.config().blocks();
        let passes = self.passes(plan);
        for (step, pair) in sampling.sigmas.windows(2).enumerate() {
            let [sigma, next] = [pair[0], pair[1]];
            let index = self.denoiser.expert(sigma);
            if expert.as_ref().is_none_or(|expert| expert.index != index) {
                // One expert goes before the other comes.
                drop(expert.take());
                observer.loading();
                let start = Instant::now();
                expert = Some(self.load(index, format, residency, &passes, observer)?);
                load += start.elapsed();
                observer.loaded();
            }
            let Some(expert) = &expert else { continue };
            let mut input = self.mixed(&latents, sigma)?;
            if let Some(condition) = &condition {
                input = Tensor::f_cat(&[input, condition.shallow_clone()], 1)?;
            }
            let sigmas = self.sigmas_of_frames(sigma)?;
            let mut velocities = Vec::new();
            for (pass, context) in expert.contexts.iter().enumerate() {
                let done = (step * passes.len() + pass) as f64;
                let all = (steps * passes.len()) as f64;
                let mut block = |number: usize| -> tilewright_models::Result<()> {
                    pace.keep()?;
                    moved += expert.turn(plan, number, blocks);
                    let share = (done + number as f64 / blocks.max(1) as f64) / all;
                    match observer.progress(share) {
                        ControlFlow::Continue(()) => Ok(()),
                        ControlFlow::Break(_) => Err(ModelError::Cancelled),
                    }
                };
                let input = passes[pass].repeated(&input)?;
                velocities.push(expert.network.velocity(&input, &sigmas, context, &mut block)?);
            }
            let velocity = self.guided(velocities)?;
            let way = scalar::multiply(&velocity, next - sigma)?;
            let _ = latents.f_add_(&way)?;
            let values = non_finite(&latents)?;
            if values > 0 {
                return Err(AttemptError::Failed(Failure::NonFinite { values }));
            }
        }
        latents = self.mixed(&latents, sampling.sigmas.last().copied().unwrap_or_default())?;
        let _ = observer.progress(1.0);
        Ok((latents.f_to_device(Device::Cpu)?.f_contiguous()?, load, moved))
    }

    /// The passes of a step, by the plan.
    fn passes(&self, plan: &DenoisePlan) -> Vec<Pass<'_>> {
        let positive = &self.sampling.positive;
        match &self.sampling.negative {
            None => vec![Pass { conditionings: vec![positive] }],
            // Texts of different lengths can't be in one tensor: padding would be attended to.
            Some(negative)
                if plan.guidance == GuidanceOrder::Together && negative.text.size()[1] == positive.text.size()[1] =>
            {
                vec![Pass { conditionings: vec![positive, negative] }]
            }
            Some(negative) => [positive, negative].map(|of| Pass { conditionings: vec![of] }).into(),
        }
    }

    fn load(
        &self,
        index: usize,
        format: ComputeFormat,
        residency: Residency,
        passes: &[Pass<'_>],
        observer: &mut dyn Observer,
    ) -> std::result::Result<Expert<'_>, AttemptError> {
        let file = &self.denoiser.experts[index];
        let mut step = |share: f64| match observer.loading_progress(share) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(_) => Err(ModelError::Cancelled),
        };
        let network = file.load(format, self.machine.device, residency, &mut step)?;
        let size = self.sampling.latents.size();
        let contexts = passes
            .iter()
            .map(|pass| pass.prepare(&network, self.sampling.guidance, &size, self.machine.device))
            .collect::<std::result::Result<Vec<_>, AttemptError>>()?;
        Ok(Expert { index, file, network, contexts })
    }

    /// Latents with the part that is kept in its place.
    fn mixed(&self, latents: &Tensor, sigma: f64) -> std::result::Result<Tensor, AttemptError> {
        let Some(Kept { latents: kept, mask, clean }) = &self.sampling.kept else {
            return Ok(latents.shallow_clone());
        };
        let device = latents.device();
        let (mut kept, mask) = (kept.f_to_device(device)?, mask.f_to_device(device)?);
        if let (false, Some(noise), true) = (*clean, &self.sampling.noise, sigma > 0.0) {
            let noise = scalar::multiply(&noise.f_to_device(device)?, sigma)?;
            kept = scalar::multiply(&kept, 1.0 - sigma)?.f_add(&noise)?;
        }
        let rest = scalar::add(&scalar::multiply(&mask, -1.0)?, 1.0)?;
        Ok(kept.f_mul(&rest)?.f_add(&latents.f_mul(&mask)?)?)
    }

    /// The sigma of every frame, if some have none: frames are told apart by the mean of their
    /// mask.
    fn sigmas_of_frames(&self, sigma: f64) -> std::result::Result<Vec<f32>, AttemptError> {
        match &self.sampling.kept {
            Some(Kept { mask, clean: true, .. }) if mask.dim() == 5 => {
                let shares = mask.f_mean_dim(&[0, 1, 3, 4][..], false, Kind::Double)?;
                Ok(Vec::<f64>::try_from(&shares)?.into_iter().map(|share| (share * sigma) as f32).collect())
            }
            _ => Ok(vec![sigma as f32]),
        }
    }

    /// The velocity that guidance makes of those of the passes.
    fn guided(&self, velocities: Vec<Tensor>) -> std::result::Result<Tensor, AttemptError> {
        let (positive, negative) = match &velocities[..] {
            [only] if self.sampling.negative.is_none() => return Ok(only.shallow_clone()),
            [both] => {
                let half = both.size()[0] / 2;
                (both.f_narrow(0, 0, half)?, both.f_narrow(0, half, half)?)
            }
            [positive, negative, ..] => (positive.shallow_clone(), negative.shallow_clone()),
            [] => return Err(AttemptError::Cancelled),
        };
        let way = scalar::multiply(&positive.f_sub(&negative)?, self.sampling.cfg)?;
        Ok(negative.f_add(&way)?)
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

/// The place of weights by a plan. Those that a GPU reads ahead of their use stay in their file.
fn residency(plan: &DenoisePlan, device: Device) -> Residency {
    match (plan.weights, plan.ahead) {
        (WeightForm::Expanded, _) => Residency::Expanded,
        (WeightForm::Packed, None) if device != Device::Cpu => Residency::Packed,
        (WeightForm::Packed, _) => Residency::Mapped,
    }
}

/// A pass's conditionings: one, or two that go through the network together.
struct Pass<'a> {
    conditionings: Vec<&'a ConditioningTensors>,
}

impl Pass<'_> {
    /// Latents, once for each conditioning.
    fn repeated(&self, latents: &Tensor) -> tilewright_torch::Result<Tensor> {
        match self.conditionings.len() {
            1 => Ok(latents.shallow_clone()),
            count => {
                let all: Vec<Tensor> = (0..count).map(|_| latents.shallow_clone()).collect();
                Ok(Tensor::f_cat(&all, 0)?)
            }
        }
    }

    fn prepare(
        &self,
        network: &LoadedDenoiser,
        guidance: Option<f32>,
        size: &[i64],
        device: Device,
    ) -> std::result::Result<Context<Tensor>, AttemptError> {
        type Of = fn(&ConditioningTensors) -> Option<&Tensor>;
        let joined = |of: Of| -> std::result::Result<Option<Tensor>, AttemptError> {
            let rows = self.conditionings.iter().filter_map(|given| of(given));
            let rows = rows.map(|tensor| for_batch(tensor, size[0])).collect::<tilewright_torch::Result<Vec<_>>>()?;
            if rows.is_empty() {
                return Ok(None);
            }
            Ok(Some(Tensor::f_cat(&rows, 0)?.f_to_device(device)?))
        };
        let (text, pooled, image) = (
            joined(|given| Some(&given.text))?,
            joined(|given| given.pooled.as_ref())?,
            joined(|given| given.image.as_ref())?,
        );
        let Some(text) = text else { return Err(AttemptError::Cancelled) };
        let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance };
        Ok(network.prepare(&inputs, extents(size))?)
    }
}

/// A row for each sample of a batch.
fn for_batch(tensor: &Tensor, batch: i64) -> tilewright_torch::Result<Tensor> {
    let mut shape = tensor.size();
    if shape.first() == Some(&batch) {
        return Ok(tensor.shallow_clone());
    }
    shape[0] = batch;
    Ok(tensor.f_expand(&shape, false)?)
}

/// A loaded expert.
struct Expert<'a> {
    index: usize,
    file: &'a DenoiserFile,
    network: LoadedDenoiser,
    contexts: Vec<Context<Tensor>>,
}

impl Expert<'_> {
    /// Before a block: those behind it are read ahead, and the one before it is given back. Returns
    /// the bytes that are read again.
    fn turn(&self, plan: &DenoisePlan, block: usize, blocks: usize) -> u64 {
        let (Some(ahead), WeightForm::Packed) = (plan.ahead, plan.weights) else { return 0 };
        let before = (block + blocks - 1) % blocks.max(1);
        if before != block {
            self.file.give_back(before);
        }
        (1..=ahead as usize).for_each(|next| self.file.read_ahead((block + next) % blocks.max(1)));
        self.file.block_bytes().get(block).copied().unwrap_or_default()
    }
}

/// Frames, height and width of latents.
fn extents(size: &[i64]) -> [i64; 3] {
    match *size {
        [_, _, frames, height, width] => [frames, height, width],
        [_, _, height, width] => [1, height, width],
        _ => [1, 1, 1],
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
