//! The passes of a step through the network, and the guidance that they make.

use tch::{Device, Tensor};
use tilewright_models::{Context, Inputs, LoadedDenoiser};
use tilewright_prices::{Group, Pass, padded_extents};

use super::{ConditioningTensors, Prompt};
use crate::task::Attempted;

/// The output of a pass for each of its conditionings.
pub(super) fn split_by_conditioning(velocity: Tensor, pass: &Pass) -> tilewright_torch::Result<Vec<Tensor>> {
    let count = pass.conditionings.len() as i64;
    if count == 1 {
        return Ok(vec![velocity]);
    }
    let batch = velocity.size()[0] / count;
    (0..count).map(|place| Ok(velocity.f_narrow(0, place * batch, batch)?)).collect()
}

/// The input of contexts.
pub(super) struct Preparation<'a> {
    pub prompts: &'a [&'a Prompt],
    pub network: &'a LoadedDenoiser,
    pub guidance: Option<f32>,
    /// The shape of the latents.
    pub size: &'a [i64],
    pub patch: i64,
    pub device: Device,
}

/// A group's samples among all.
pub(super) fn samples_of(group: &Group, all: &Tensor) -> tilewright_torch::Result<Tensor> {
    Ok(all.f_narrow(0, group.samples.start, group.count())?)
}

/// The tensors of a pass.
pub(super) trait PassTensors {
    /// True if a conditioning of it counts at a sigma.
    fn counts(&self, prompts: &[&Prompt], sigma: f64) -> bool;

    /// Latents, once for each conditioning.
    fn repeated(&self, latents: &Tensor) -> tilewright_torch::Result<Tensor>;

    /// Puts a group's output in its place among those of all samples, for each conditioning.
    fn put(&self, all: Option<Tensor>, output: Tensor, group: &Group) -> tilewright_torch::Result<Tensor>;

    /// The contexts of all groups.
    fn prepare(&self, given: &Preparation<'_>) -> Attempted<Vec<Context<Tensor>>>;
}

impl PassTensors for Pass {
    fn counts(&self, prompts: &[&Prompt], sigma: f64) -> bool {
        self.conditionings.iter().any(|place| prompts[*place].counts(sigma))
    }

    fn repeated(&self, latents: &Tensor) -> tilewright_torch::Result<Tensor> {
        match self.conditionings.len() {
            1 => Ok(latents.shallow_clone()),
            count => {
                let all: Vec<Tensor> = (0..count).map(|_| latents.shallow_clone()).collect();
                Ok(Tensor::f_cat(&all, 0)?)
            }
        }
    }

    fn put(&self, all: Option<Tensor>, output: Tensor, group: &Group) -> tilewright_torch::Result<Tensor> {
        if self.groups.len() == 1 {
            return Ok(output);
        }
        let (count, batch) = (group.count(), self.groups.last().map_or(0, |last| last.samples.end));
        let all = match all {
            Some(all) => all,
            None => {
                let mut shape = output.size();
                shape[0] = batch * self.conditionings.len() as i64;
                Tensor::f_empty(&shape, (output.f_kind()?, output.device()))?
            }
        };
        for place in 0..self.conditionings.len() as i64 {
            let mut rows = all.f_narrow(0, place * batch + group.samples.start, count)?;
            rows.f_copy_(&output.f_narrow(0, place * count, count)?)?;
        }
        Ok(all)
    }

    fn prepare(&self, given: &Preparation<'_>) -> Attempted<Vec<Context<Tensor>>> {
        self.firsts().map(|group| prepare_group(self, group, given)).collect()
    }
}

fn prepare_group(pass: &Pass, group: &Group, given: &Preparation<'_>) -> Attempted<Context<Tensor>> {
    let &Preparation { prompts, network, guidance, size, patch, device } = given;
    type Of = fn(&ConditioningTensors) -> Option<&Tensor>;
    let joined = |of: Of| -> Attempted<Option<Tensor>> {
        let rows = pass.conditionings.iter().filter_map(|place| of(&prompts[*place].tensors));
        let rows = rows.map(|tensor| samples_of(group, &for_batch(tensor, size[0])?));
        let rows = rows.collect::<tilewright_torch::Result<Vec<_>>>()?;
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
    let Some(text) = text else {
        return Err(tilewright_torch::Error::Torch("a pass has no conditioning".into()).into());
    };
    let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance };
    Ok(network.prepare(&inputs, padded_extents(size, patch))?)
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
