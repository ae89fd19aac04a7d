//! The price of a sample's plans: the network's own `forward` on a meter.

use std::time::Duration;

use tch::{Device, Kind, Tensor};
use tilewright_models::{ComputeFormat, DenoiserFile, Inputs, transformer::Residency};
use tilewright_nn::{Costs, Meter, Ops, TokenScope};
use tilewright_plan::{Attention, DenoiseCost, DenoisePlan, Dtype, Layout, Products, WeightForm};
use tilewright_torch::device;

use super::{
    filled,
    job::DenoiseJob,
    passes::{Group, Pass, passes},
};
use crate::{Error, Result};

/// The blocks that a streamed network holds at once besides those that are read ahead: the one at
/// work, and the one before, which is given back meanwhile.
const AT_WORK: u64 = 2;

impl DenoiseJob<'_> {
    /// The cost of a plan.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &DenoisePlan) -> std::result::Result<DenoiseCost, String> {
        let format = self.format(plan).map_err(|error| error.to_string())?;
        let speed = self.machine.measured.speeds.iter().find(|speed| speed.dtype == plan.precision.dtype());
        let speed = speed.ok_or_else(|| format!("{} can't be run on this device", plan.precision))?;
        let fused_attention = format.fuses_attention(self.machine.device, self.denoiser.config().head_width());
        let costs = Costs { fused_attention, ..Costs::new(speed, &self.machine.measured) };
        let (peak, seconds) = self.meter(format, costs, plan).map_err(|error| error.to_string())?;
        let model = &self.request.model;
        let resident = self.resident_bytes(plan, format).map_err(|error| error.to_string())?;
        let blocks = self.denoiser.experts[0].block_bytes();
        let at_once = plan.ahead.map(|ahead| (u64::from(ahead) + AT_WORK) * model.largest_block_bytes);
        let whole: u64 = blocks.iter().sum();
        // Of blocks, those that are held at once.
        let streamed = at_once.map_or(whole, |at_once| at_once.min(whole));
        let waiting = match residency(plan, self.machine.device) {
            Residency::Mapped => model.stored_bytes.saturating_sub(whole) + streamed,
            Residency::Streamed => streamed,
            Residency::Packed | Residency::Expanded => 0,
        };
        let weights_bytes = waiting + resident;
        // Every run through the network takes all blocks.
        let runs = passes(self.sampling, plan).iter().map(|pass| pass.groups.len() as u64).sum::<u64>();
        let moved_bytes = if plan.ahead.is_some() && plan.weights == WeightForm::Packed { runs * whole } else { 0 };
        let copying = self.machine.measured.transfer_bytes_per_second.map_or(0.0, |rate| moved_bytes as f64 / rate);
        // Blocks that are read ahead come beside the work on the one before.
        let seconds = if plan.ahead == Some(0) { seconds + copying } else { seconds.max(copying) };
        let step = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Ok(DenoiseCost { peak_bytes: peak, weights_bytes, moved_bytes, step })
    }

    /// The change of the output up to which a plan reuses it: no more than the user allows.
    pub(super) fn reuse(&self, plan: &DenoisePlan) -> Option<f64> {
        self.sampling.reuse.map(|most| most.min(plan.reuse.threshold())).filter(|threshold| *threshold > 0.0)
    }

    /// Bytes of a plan's weights that take the device's memory while the network runs.
    pub(super) fn pooled_bytes(&self, plan: &DenoisePlan, cost: Option<&DenoiseCost>, resident: u64) -> u64 {
        match residency(plan, self.machine.device) {
            Residency::Streamed => cost.map_or(resident, |cost| cost.weights_bytes),
            _ => resident,
        }
    }

    /// The types that a plan computes in.
    pub(super) fn format(&self, plan: &DenoisePlan) -> Result<ComputeFormat> {
        let queries = match plan.attention {
            Attention::Fused => None,
            Attention::Pieces { queries } => Some(queries.into()),
        };
        let feed_forward = plan.feed_forward.into();
        let format =
            ComputeFormat { queries, feed_forward, ..ComputeFormat::new(plan.precision, Layout::ChannelsFirst)? };
        if plan.products == Products::Precision {
            return Ok(format);
        }
        let refused = |reason: String| Err(Error::NotOffered(reason));
        let stored = &self.request.model.stored;
        if !device::has_fp8_products(self.machine.device) {
            return refused(format!("products=fp8: {} has no products in FP8", self.machine.facts.name));
        }
        if !stored.starts_with("f8_e4m3") {
            return refused(format!("products=fp8: the weights are stored as {stored}, and f8_e4m3 is needed"));
        }
        let narrow = matches!(plan.precision.dtype(), Dtype::Bf16 | Dtype::F16);
        if !narrow || plan.weights != WeightForm::Packed || plan.ahead.is_some() {
            return refused("products=fp8: its results are in 16 bits, of weights as stored and on the device: set precision=bf16 and weights=packed".into());
        }
        Ok(ComputeFormat { fp8_products: true, ..format })
    }

    /// Bytes of memory that weights are held in beside their file.
    pub(super) fn resident_bytes(&self, plan: &DenoisePlan, format: ComputeFormat) -> Result<u64> {
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
        let whole = filled(&size, config.patch());
        let occupied = |shape: &[i64]| meter.occupied(shape, Kind::Float).map_err(nn);
        let passes = passes(self.sampling, plan);
        let rows = |pass: &Pass<'_>, group: &Group| group.count() * pass.conditionings.len() as i64;
        let mut contexts = Vec::new();
        for pass in &passes {
            let mut of_pass = Vec::new();
            for group in pass.firsts() {
                let of_group = |tensor: &Tensor| {
                    let mut shape = tensor.size();
                    shape[0] = rows(pass, group);
                    occupied(&shape)
                };
                let given = &pass.conditionings[0].tensors;
                let text = of_group(&given.text)?;
                let pooled = given.pooled.as_ref().map(of_group).transpose()?;
                let image = given.image.as_ref().map(of_group).transpose()?;
                let guidance = self.sampling.guidance;
                let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance };
                of_pass.push(network.prepare(&meter, &inputs, whole).map_err(Error::Model)?);
            }
            contexts.push(of_pass);
        }
        let latents = occupied(&size)?;
        // Reuse keeps an input, an output, and a difference for each conditioning.
        let reused = self.reuse(plan).map_or(0, |_| 2 + self.sampling.prompts().len() as u32);
        let remembered = (0..self.sampling.sampler.remembered() + reused).map(|_| occupied(&size));
        let _remembered = remembered.collect::<Result<Vec<_>>>()?;
        let sigmas = vec![1.0; if self.sampling.has_clean_frames() { size[2] as usize } else { 1 }];
        let before = meter.seconds();
        // With the condition's channels, and sides of whole patches.
        let mut shape = size.clone();
        let axes = shape.len();
        [shape[axes - 2], shape[axes - 1]] = [whole[1], whole[2]];
        shape[1] += config.condition_channels();
        let input = if shape == size { latents.clone() } else { occupied(&shape)? };
        let mut velocities = Vec::new();
        for (pass, contexts) in passes.iter().zip(&contexts) {
            for group in &pass.groups {
                let mut shape = shape.clone();
                shape[0] = rows(pass, group);
                let repeated = if pass.conditionings.len() == 1 { None } else { Some(occupied(&shape)?) };
                let input = match &repeated {
                    Some(repeated) => repeated.clone(),
                    None => meter.narrow(&input, 0, group.samples.start, group.count()).map_err(nn)?,
                };
                let context = &contexts[group.context];
                let velocity = network.forward(&meter, &input, &sigmas, context, &mut |_| Ok(()));
                let velocity = velocity.map_err(Error::Model)?;
                if pass.groups.len() == 1 {
                    velocities.push(velocity);
                } else if group.samples.start == 0 {
                    let mut all = size.clone();
                    all[0] *= pass.conditionings.len() as i64;
                    velocities.push(occupied(&all)?);
                }
            }
        }
        // Latents without noise, and what they are added up from.
        let _denoised = (0..3).map(|_| occupied(&size)).collect::<Result<Vec<_>>>()?;
        // The first step of a CPU has the latents that it was given, which are there already.
        let given = match self.request.steps == 1 && self.machine.device == Device::Cpu {
            true => size.iter().product::<i64>() as u64 * size_of::<f32>() as u64,
            false => 0,
        };
        Ok((meter.peak_bytes().saturating_sub(given), meter.seconds() - before))
    }
}

/// The place of weights by a plan.
pub(super) fn residency(plan: &DenoisePlan, device: Device) -> Residency {
    match (plan.weights, plan.ahead) {
        (WeightForm::Expanded, _) => Residency::Expanded,
        (WeightForm::Packed, _) if device == Device::Cpu => Residency::Mapped,
        (WeightForm::Packed, None) => Residency::Packed,
        (WeightForm::Packed, Some(_)) => Residency::Streamed,
    }
}
