//! Pictures: decodes of latents and encodes of pictures, whole, in bands or in blended tiles. Each
//! tile is run alone and faded into its neighbours.

use std::time::Duration;

use tch::{Device, Tensor};
use tilewright_models::{
    ComputeFormat, LoadStep, PlanFormat, Result as ModelResult,
    kl::{Decoder, Encoder, EncoderConfig},
};
use tilewright_plan::{Failure, Objective, Outcome, Plan, Planner, Vae};
use tilewright_prices::Quote;
use tilewright_torch::kernels;

use crate::{
    Finished, Job, Machine, MemoryLimit, Observer, Result, Unfinished, VaeFile,
    capturing::{Inputs, Values},
    profiling::repeated,
    run::run,
    task::{Allowance, AttemptContext, Attempted, Task, load},
    tiles::{Direction, Pass, Step},
    weights::Lease,
};

/// A request for one decode of pictures on one device. The output is [N, 3, H, W] in about −1…1,
/// unclamped, f32, in host memory.
pub type DecodeJob<'a> = Job<'a, Vae, Latents<'a>>;

/// A request for one encode of pictures on one device. Its extents are those of the pictures; tiles
/// and overlaps are multiples of the scale. The output is [N, C, h, w], the means in the
/// autoencoder's own space, f32, in host memory.
pub type EncodeJob<'a> = Job<'a, Vae, Pictures<'a>>;

/// The input of a decode.
#[derive(Debug)]
pub struct Latents<'a> {
    vae: &'a VaeFile,
    latents: &'a Tensor,
}

/// The input of an encode.
#[derive(Debug)]
pub struct Pictures<'a> {
    vae: &'a VaeFile,
    config: EncoderConfig,
    pictures: &'a Tensor,
}

impl Direction for Latents<'_> {
    type Network = Decoder;

    fn vae(&self) -> &VaeFile {
        self.vae
    }

    fn input(&self) -> &Tensor {
        self.latents
    }

    fn lease(&self, format: ComputeFormat, device: Device, step: LoadStep<'_>) -> Result<(Lease<Decoder>, Duration)> {
        self.vae.decoder(format, device, step)
    }

    fn forward(&self, network: &Decoder, input: &Tensor, band: Option<u32>, step: Step<'_>) -> ModelResult<Tensor> {
        network.forward(input, band, step)
    }

    fn out(&self) -> i64 {
        self.vae.config.image_channels as i64
    }

    fn scales(&self) -> (u32, u32) {
        (self.vae.config.spatial_scale(), 1)
    }
}

impl Direction for Pictures<'_> {
    type Network = Encoder;

    fn vae(&self) -> &VaeFile {
        self.vae
    }

    fn input(&self) -> &Tensor {
        self.pictures
    }

    fn lease(&self, format: ComputeFormat, device: Device, step: LoadStep<'_>) -> Result<(Lease<Encoder>, Duration)> {
        self.vae.encoder(&self.config, format, device, step)
    }

    /// Bands are not offered.
    fn forward(&self, network: &Encoder, input: &Tensor, _: Option<u32>, step: Step<'_>) -> ModelResult<Tensor> {
        network.forward(input, step)
    }

    fn out(&self) -> i64 {
        self.config.latent_channels as i64
    }

    fn scales(&self) -> (u32, u32) {
        (1, self.config.spatial_scale())
    }
}

/// A picture's work in either direction. It leaves nothing behind if it fails.
struct Picture<'a, D> {
    job: &'a Job<'a, Vae, D>,
    /// On the device.
    input: Tensor,
}

impl<D: Direction> Task<Vae> for Picture<'_, D> {
    type Output = Tensor;

    fn inputs(&mut self) -> tilewright_capture::Result<Inputs> {
        let direction = &self.job.input;
        Ok(Inputs::new(Values::of([("input".into(), direction.input())])?, &direction.vae().capture_facts()))
    }

    fn outputs(&mut self, output: &Tensor) -> tilewright_capture::Result<Values> {
        Values::of([("output".into(), output)])
    }

    /// Loads the weights if they are not in the plan's types and order.
    fn attempt(&mut self, plan: &Plan, context: &mut AttemptContext<'_>) -> Attempted<(Tensor, Outcome)> {
        let (device, direction) = (self.job.machine.device, &self.job.input);
        let format = PlanFormat::of(plan, &kernels(device)).compute()?;
        let network = load(context, |step| direction.lease(format, device, step))?;
        let weights = self.job.counted_weights(network.bytes());
        let allowance = Allowance { weights, ..Allowance::whole(self.job.request().memory_limit) };
        let run = |context: &mut AttemptContext<'_>| {
            Pass { direction, network: &*network, input: &self.input, plan, device, context }.carry_out()
        };
        let all = || repeated(context, (self.job.stage(), device), run);
        let ((output, aside), outcome) = direction.vae().measure(device, allowance, all)?;
        let outcome = Outcome { elapsed: outcome.elapsed.saturating_sub(aside), ..outcome };
        Ok((output.f_to_device(Device::Cpu)?.f_contiguous()?, outcome))
    }

    fn check_files(&self) -> Result<()> {
        Ok(self.job.input.vae().check_unchanged()?)
    }

    fn advice(&self, plan: &Plan, failure: Failure) -> String {
        self.job.advice(plan, failure)
    }
}

#[allow(private_bounds, reason = "the two directions are named by the jobs' types")]
impl<D: Direction> Job<'_, Vae, D> {
    /// Decides and carries out; asks again after each of two failures and then takes the fallback
    /// plan, at most six attempts in all.
    ///
    /// # Errors
    /// An error that no other plan avoids, or [`crate::Error::Exhausted`]; with the record as far
    /// as it goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Finished<Tensor>, Unfinished> {
        let _no_grad = tch::no_grad_guard();
        let input = self.input.input().f_to_device(self.machine.device)?;
        run(self, &mut Picture { job: self, input }, planner, observer)
    }
}

impl<'a> DecodeJob<'a> {
    /// A decode of latents [N, C, h, w] in the autoencoder's own space, within a limit: a number of
    /// bytes leaves the weights aside.
    ///
    /// # Errors
    /// [`crate::Refusal::DoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a VaeFile,
        latents: &'a Tensor,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let (batch, channels, height, width) = latents.size4()?;
        let shape = [batch, channels, height, width];
        let quote = Quote::decode(&machine.basis(), vae, shape, memory_limit, objective)?;
        Ok(Self::new_unchecked(machine, quote, Latents { vae, latents }))
    }
}

impl<'a> EncodeJob<'a> {
    /// An encode of pictures [N, 3, H, W] in −1…1, within a limit, as a decode.
    ///
    /// # Errors
    /// The file has no encoder, or the pictures' sides are no multiples of its scale;
    /// [`crate::Refusal::DoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        vae: &'a VaeFile,
        pictures: &'a Tensor,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let (quote, config) = Quote::encode(&machine.basis(), vae, &pictures.size(), memory_limit, objective)?;
        Ok(Self::new_unchecked(machine, quote, Pictures { vae, config, pictures }))
    }
}
