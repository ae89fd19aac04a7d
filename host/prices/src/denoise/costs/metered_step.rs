//! A step of a sample on a meter: the network's own `forward`, and the tensors that stay beside it.

use std::collections::HashMap;

use tilewright_models::{AnyConfig, BlockChoice, Context, Inputs, Network};
use tilewright_nn::{Meter, MeterTensor, Ops, TokenOps, TokenScope};
use tilewright_plan::{DenoisePlan, Dtype, StepReuse};

use super::DenoisePrices;
use crate::{
    Result,
    denoise::{
        padded_extents,
        passes::{Group, Pass, passes},
    },
};

/// Counts the seconds of each layer of a step by a plan, by a meter.
pub(super) fn measure_layers(prices: &DenoisePrices, plan: &DenoisePlan, meter: &Meter) -> Result<()> {
    let mut step = MeteredStep::new(prices, plan, meter)?;
    let passes = passes(&prices.shape, plan);
    let contexts = passes.iter().map(|pass| step.contexts(pass)).collect::<Result<Vec<_>>>()?;
    let latents = step.hold_latents()?;
    let input = step.padded(latents)?;
    // The conditioning is embedded once for all steps.
    meter.count_layers();
    for (pass, contexts) in passes.iter().zip(&contexts) {
        for group in &pass.groups {
            step.run_group(pass, group, &contexts[group.context], &input)?;
        }
    }
    Ok(())
}

/// The peak beside the weights in bytes, and the seconds of a step by a plan.
pub(super) fn measure(prices: &DenoisePrices, plan: &DenoisePlan, meter: &Meter) -> Result<(u64, f64)> {
    let mut step = MeteredStep::new(prices, plan, meter)?;
    let passes = passes(&prices.shape, plan);
    let contexts = passes.iter().map(|pass| step.contexts(pass)).collect::<Result<Vec<_>>>()?;
    let latents = step.hold_latents()?;
    for _ in 0..step.remembered() {
        step.hold_latents()?;
    }
    let before = meter.seconds();
    let input = step.padded(latents)?;
    let mut repeated_seconds = 0.0;
    for (pass, contexts) in passes.iter().zip(&contexts) {
        repeated_seconds += step.run_pass(pass, contexts, &input)?;
    }
    // Latents without noise, and what they are added up from.
    for _ in 0..3 {
        step.hold_latents()?;
    }
    Ok((meter.peak_bytes().saturating_sub(step.given_bytes()), meter.seconds() - before + repeated_seconds))
}

/// A step under way. It holds its tensors to its end.
struct MeteredStep<'a> {
    prices: &'a DenoisePrices,
    plan: &'a DenoisePlan,
    meter: &'a Meter,
    network: Network<Meter>,
    held: Vec<MeterTensor>,
}

impl<'a> MeteredStep<'a> {
    fn new(prices: &'a DenoisePrices, plan: &'a DenoisePlan, meter: &'a Meter) -> Result<Self> {
        let network = prices.config().build(&TokenScope::new(prices.experts[0].file(), meter))?;
        Ok(Self { prices, plan, meter, network, held: Vec::new() })
    }

    /// Frames, height and width of the network's input, sides padded to whole patches.
    fn extents(&self) -> [i64; 3] {
        padded_extents(&self.prices.shape.latents, self.prices.config().facts().patch)
    }

    fn occupied(&self, shape: &[i64]) -> Result<MeterTensor> {
        Ok(self.meter.occupied(shape, Dtype::F32)?)
    }

    fn hold_latents(&mut self) -> Result<MeterTensor> {
        let latents = self.occupied(&self.prices.shape.latents)?;
        self.held.push(latents.clone());
        Ok(latents)
    }

    /// The latents that the sampler and the reuse of outputs keep from step to step.
    fn remembered(&self) -> u32 {
        let shape = &self.prices.shape;
        // Reuse of outputs keeps an input, an output, and a difference for each conditioning.
        let reused = match self.plan.reuse {
            StepReuse::Output { .. } if self.prices.reuse(self.plan).is_some() => 2 + shape.prompts.len() as u32,
            _ => 0,
        };
        shape.sampler.remembered() + reused
    }

    /// The contexts of a pass, one for each size of its groups.
    fn contexts(&self, pass: &Pass) -> Result<Vec<Context<MeterTensor>>> {
        pass.firsts().map(|group| self.context(pass, group)).collect()
    }

    fn context(&self, pass: &Pass, group: &Group) -> Result<Context<MeterTensor>> {
        let of_group = |shape: &Vec<i64>| self.occupied(&with_rows(shape, pass.rows(group)));
        let given = &self.prices.shape.prompts[pass.conditionings[0]];
        let text = of_group(&given.text)?;
        let pooled = given.pooled.as_ref().map(of_group).transpose()?;
        let image = given.image.as_ref().map(of_group).transpose()?;
        let guidance = self.prices.shape.guidance;
        let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance };
        Ok(self.network.prepare(self.meter, &inputs, self.extents())?)
    }

    /// Latents with the condition's channels, and sides of whole patches.
    fn padded(&self, latents: MeterTensor) -> Result<MeterTensor> {
        let size = &self.prices.shape.latents;
        let [_, height, width] = self.extents();
        let mut shape = size.clone();
        let axes = shape.len();
        [shape[axes - 2], shape[axes - 1]] = [height, width];
        shape[1] += self.prices.config().facts().condition_channels;
        if shape == *size { Ok(latents) } else { self.occupied(&shape) }
    }

    /// The groups of a pass. Between the first and the last one of a size, nothing else is held but
    /// what each of them keeps. Returns the seconds of those between, which the meter has not seen.
    fn run_pass(&mut self, pass: &Pass, contexts: &[Context<MeterTensor>], input: &MeterTensor) -> Result<f64> {
        // The seconds of the first group of each context, and the shape of the tokens whose changes
        // it kept.
        let mut known: HashMap<usize, (f64, Option<Vec<i64>>)> = HashMap::new();
        let mut repeated_seconds = 0.0;
        for (number, group) in pass.groups.iter().enumerate() {
            let is_last = !pass.groups[number + 1..].iter().any(|other| other.context == group.context);
            match known.get(&group.context) {
                Some((seconds, tokens)) if !is_last => {
                    repeated_seconds += seconds;
                    for tokens in tokens.iter().flat_map(|tokens| [tokens, tokens]) {
                        self.held.push(self.meter.unset(tokens, self.meter.format().layer_dtype)?);
                    }
                }
                _ => {
                    let begun = self.meter.seconds();
                    let tokens = self.run_group(pass, group, &contexts[group.context], input)?;
                    known.insert(group.context, (self.meter.seconds() - begun, tokens));
                }
            }
        }
        Ok(repeated_seconds)
    }

    /// A group's run through the network. Returns the shape of the tokens whose changes it kept.
    fn run_group(
        &mut self,
        pass: &Pass,
        group: &Group,
        context: &Context<MeterTensor>,
        input: &MeterTensor,
    ) -> Result<Option<Vec<i64>>> {
        let shape = &self.prices.shape;
        let input = match pass.conditionings.len() {
            1 => self.meter.narrow(input, 0, group.samples.start, group.count())?,
            _ => self.occupied(&with_rows(&self.meter.shape(input), pass.rows(group)))?,
        };
        let sigmas = vec![1.0; if shape.has_clean_frames { shape.latents[2] as usize } else { 1 }];
        let keeps_changes =
            matches!(self.plan.reuse, StepReuse::FirstBlock { .. }) && self.prices.reuse(self.plan).is_some();
        let (meter, held, blocks) = (self.meter, &mut self.held, self.prices.config().blocks());
        let (mut kept_tokens, mut passing) = (None, Vec::new());
        let mut before_block = |block: usize, tokens: &MeterTensor| {
            if keeps_changes && block == 0 {
                let like = meter.shape(tokens);
                let copy = || meter.unset(&like, meter.format().layer_dtype);
                // The change by the first block and that by the rest stay; the tokens before and
                // after the first block go.
                held.extend([copy()?, copy()?]);
                passing.extend([copy()?, copy()?]);
                kept_tokens = Some(like);
            } else if block == blocks {
                passing.clear();
            }
            Ok(BlockChoice::Run)
        };
        let velocity = self.network.forward(meter, &input, &sigmas, context, &mut before_block)?;
        if pass.groups.len() == 1 {
            self.held.push(velocity);
        } else if group.samples.start == 0 {
            let batch = shape.latents[0];
            let all = with_rows(&shape.latents, batch * pass.conditionings.len() as i64);
            self.held.push(self.occupied(&all)?);
        }
        Ok(kept_tokens)
    }

    /// Bytes that are not the step's: the first step of a CPU has the latents that it was given,
    /// which are there already.
    fn given_bytes(&self) -> u64 {
        let shape = &self.prices.shape;
        match shape.steps() == 1 && self.prices.basis.kernels.on_cpu {
            true => shape.latents.iter().product::<i64>() as u64 * size_of::<f32>() as u64,
            false => 0,
        }
    }
}

fn with_rows(shape: &[i64], rows: i64) -> Vec<i64> {
    let mut shape = shape.to_vec();
    shape[0] = rows;
    shape
}
