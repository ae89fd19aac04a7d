//! A denoiser of generated weights, and one step with it.

use tch::{Device, Kind, Tensor};
use tempfile::TempDir;
use tilewright_bench::{Transformer, TransformerWeights};
use tilewright_engine::{ConditioningTensors, DenoiseJob, Denoiser, Machine, Prompt, Sampling, Unfinished};
use tilewright_models::{Checkpoint, DenoiserFile, Lora, Stored};
use tilewright_plan::{Denoise, DenoisePlan, Dtype, Objective, Record, StepReuse};
use tilewright_sampling::{ModelSampling, Sampler};
use tilewright_torch::scalar;

use crate::work::{OnePlan, Quiet};

/// The seed of weights.
const SEED: u64 = 1;

/// Tokens of the text, and pixels of a latent along its sides.
const TEXT: i64 = 64;
const SIDE: i64 = 32;

/// The longest time, in seconds, that a step in f32 is to take where the width can be chosen.
const SOON: f64 = 2.0;

/// Bytes that a step takes beside its weights in f32, as a part of them.
const BESIDE: f64 = 0.5;

/// The widest form of a transformer, up to its published width, that all of these machines have the
/// time and memory for; the narrowest if they have for none.
pub fn widest(published: Transformer, tokens: i64, machines: &[&Machine]) -> Transformer {
    widest_of(published, machines, |parameters, machine| {
        2.0 * parameters * tokens as f64 / machine.measured.best(Dtype::F32).unwrap_or(1.0) <= SOON
    })
}

/// The widest form of a transformer that all of these machines have the memory for, however long a
/// step takes.
pub fn widest_in_memory(published: Transformer, machines: &[&Machine]) -> Transformer {
    widest_of(published, machines, |_, _| true)
}

fn widest_of(published: Transformer, machines: &[&Machine], has_time: impl Fn(f64, &Machine) -> bool) -> Transformer {
    let is_fit = |transformer: &Transformer| {
        let parameters = transformer.parameters() as f64;
        machines.iter().all(|machine| {
            has_time(parameters, machine) && parameters * 4.0 * (1.0 + BESIDE) <= machine.facts.free_bytes as f64
        })
    };
    let halved =
        std::iter::successors(Some(published.heads), |heads| Some(heads / 2).filter(|heads| heads.is_multiple_of(2)));
    let mut forms = halved.map(|heads| published.of_heads(heads));
    forms.find(is_fit).unwrap_or(published.of_heads(2))
}

/// The most tokens of a step, text included.
pub const TOKENS: i64 = 2 * SIDE * SIDE / 4 + TEXT;

/// A denoiser in a file of its own, and the input of a step.
pub struct Step {
    denoiser: Denoiser,
    sampling: Sampling,
    /// Last, so that the file outlives the denoiser.
    folder: TempDir,
}

impl Step {
    /// A step with generated weights, which are written to a file that goes with it.
    pub fn new(transformer: Transformer, stored: Stored) -> Result<Self, String> {
        let folder =
            TempDir::with_prefix("tilewright-check-").map_err(|error| format!("a temporary folder: {error}"))?;
        let path = folder.path().join("transformer");
        let weights = TransformerWeights { transformer, stored, seed: SEED };
        weights.write(&path).map_err(line)?;
        let file = DenoiserFile::open(Checkpoint::open(&path).map_err(line)?).map_err(line)?;
        let facts = file.config.facts();
        let (channels, widths) = (facts.latent_channels, facts.widths);
        let frames: &[i64] = if facts.is_video { &[2] } else { &[] };
        let text = values(&[1, TEXT, widths.text])?;
        let pooled = widths.pooled.map(|width| values(&[1, width])).transpose()?;
        let sampling = Sampling {
            latents: values(&[&[1, channels], frames, &[SIDE; 2]].concat())?,
            noise: None,
            positive: vec![Prompt::whole(ConditioningTensors { text, pooled, image: None })],
            negative: Vec::new(),
            condition: None,
            kept: None,
            guidance: facts.guidance.map(|guidance| guidance as f32),
            cfg: 1.0,
            sigmas: vec![1.0, 0.0],
            sampler: "euler".parse::<Sampler>().map_err(|error| error.to_string())?,
            model: ModelSampling::shifted(1.0),
            whole_timesteps: false,
            reuse: None,
            seeds: vec![SEED],
        };
        Ok(Self { denoiser: Denoiser::single(file), sampling, folder })
    }

    /// The same with a LoRA for every matrix of a block.
    pub fn with_lora(mut self, transformer: Transformer) -> Result<Self, String> {
        const RANK: i64 = 16;
        let mut tensors = Vec::new();
        for (name, [rows, columns]) in transformer.matrices() {
            let layer = name.trim_end_matches(".weight");
            let (rows, columns) = (rows as i64, columns as i64);
            let spread = |shape: &[i64], fan: i64| scalar::divide(&values(shape)?, (fan as f64).sqrt()).map_err(line);
            tensors.push((format!("diffusion_model.{layer}.lora_A.weight"), spread(&[RANK, columns], columns)?));
            tensors.push((format!("diffusion_model.{layer}.lora_B.weight"), spread(&[rows, RANK], RANK)?));
        }
        let path = self.folder.path().join("lora.safetensors");
        Tensor::write_safetensors(&tensors, &path).map_err(line)?;
        let fit = self.denoiser.add(0, Lora::open(&path, 0.5).map_err(line)?).map_err(line)?;
        match fit.first_without {
            None => Ok(self),
            Some(key) => Err(format!("{key} has no place in the generated transformer")),
        }
    }

    /// A job within a limit in bytes.
    pub fn job<'a>(&'a self, machine: &'a Machine, limit: u64) -> Result<DenoiseJob<'a>, String> {
        DenoiseJob::new(machine, &self.denoiser, &self.sampling, limit, Objective::Fastest).map_err(line)
    }

    /// The change of the latents by the step: the network's output.
    pub fn run(&self, machine: &Machine, plan: &DenoisePlan) -> Result<Tensor, String> {
        let job = self.job(machine, u64::MAX / 4)?;
        self.change(&job, plan).map(|(change, _)| change).map_err(|end| end.error.to_string())
    }

    /// The same of a job, with its record.
    pub fn change(
        &self,
        job: &DenoiseJob<'_>,
        plan: &DenoisePlan,
    ) -> Result<(Tensor, Record<Denoise>), Box<Unfinished<Denoise>>> {
        let plan = DenoisePlan { reuse: StepReuse::Off, reason: "checks the device".into(), ..plan.clone() };
        let finished = job.run(&mut OnePlan::<Denoise>::new(&plan), None, &mut Quiet).map_err(Box::new)?;
        Ok((finished.output.latents - &self.sampling.latents, finished.record))
    }

    /// Frees its weights on every device.
    pub fn release(&self) {
        self.denoiser.release();
    }
}

/// Values near those of a normal distribution, the same in every process.
pub fn values(shape: &[i64]) -> Result<Tensor, String> {
    let count: i64 = shape.iter().product();
    // Squares of steps that are no parts of a turn repeat nowhere.
    let wave = |factor: f64| -> tilewright_torch::Result<Tensor> {
        let angles = scalar::multiply(&Tensor::f_arange(count, (Kind::Double, Device::Cpu))?, factor)?;
        Ok(angles.f_square()?.f_sin()?)
    };
    let sum = || -> tilewright_torch::Result<Tensor> {
        Ok(wave(0.618_034)?.f_add(&wave(1.234_567)?)?.f_to_kind(Kind::Float)?.f_reshape(shape)?)
    };
    sum().map_err(line)
}

fn line(error: impl ToString) -> String {
    error.to_string()
}
