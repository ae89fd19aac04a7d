//! The passes of a step through the network, and the guidance that they make.

use std::ops::Range;

use tch::{Device, Tensor};
use tilewright_models::{Context, Inputs, LoadedDenoiser};
use tilewright_plan::{DenoisePlan, GuidanceOrder};

use super::{
    ConditioningTensors, Prompt, padded_extents,
    shape::{PromptShape, SampleShape},
};
use crate::task::Attempted;

/// The passes of a step, by the plan: the positive conditioning and the negative one together, if
/// there are no others, or each by itself.
pub(super) fn passes(shape: &SampleShape, plan: &DenoisePlan) -> Vec<Pass> {
    let prompts = &shape.prompts;
    // Texts of different lengths can't be in one tensor: padding would be attended to.
    let is_alike = |prompt: &PromptShape| prompt.is_whole && prompt.tokens() == prompts[0].tokens();
    let together = plan.guidance == GuidanceOrder::Together
        && prompts.len() == 2
        && shape.positive == 1
        && prompts.iter().all(is_alike);
    let pass = |conditionings: Vec<usize>| {
        let serves_all = conditionings.iter().all(|place| prompts[*place].has_one_row());
        Pass { groups: groups(shape.latents[0], plan.samples, serves_all), conditionings }
    };
    match together {
        true => vec![pass((0..prompts.len()).collect())],
        false => (0..prompts.len()).map(|place| pass(vec![place])).collect(),
    }
}

/// A batch's samples, of which at most `most` go through the network together, or all. Groups of as
/// many samples have one context, if a conditioning's row `serves_all` of them.
fn groups(batch: i64, most: Option<u32>, serves_all: bool) -> Vec<Group> {
    let most = most.map_or(batch, i64::from).max(1);
    let starts = (0..batch.max(1)).step_by(most as usize);
    let mut groups: Vec<Group> = Vec::new();
    for start in starts {
        let samples = start..(start + most).min(batch.max(1));
        let length = |samples: &Range<i64>| samples.end - samples.start;
        let context = match groups.last() {
            None => 0,
            Some(last) if serves_all && length(&last.samples) == length(&samples) => last.context,
            Some(last) => last.context + 1,
        };
        groups.push(Group { samples, context });
    }
    groups
}

/// The output of a pass for each of its conditionings.
pub(super) fn split_by_conditioning(velocity: Tensor, pass: &Pass) -> tilewright_torch::Result<Vec<Tensor>> {
    let count = pass.conditionings.len() as i64;
    if count == 1 {
        return Ok(vec![velocity]);
    }
    let batch = velocity.size()[0] / count;
    (0..count).map(|place| Ok(velocity.f_narrow(0, place * batch, batch)?)).collect()
}

/// A pass's conditionings by their places: one, or two that go through the network together; and
/// its samples, some after the others.
pub(super) struct Pass {
    pub conditionings: Vec<usize>,
    pub groups: Vec<Group>,
}

/// Samples that go through the network together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub samples: Range<i64>,
    /// The index of its context among the pass's.
    pub context: usize,
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

impl Group {
    /// Samples in it.
    pub fn count(&self) -> i64 {
        self.samples.end - self.samples.start
    }

    /// The group's samples among all.
    pub fn of(&self, all: &Tensor) -> tilewright_torch::Result<Tensor> {
        Ok(all.f_narrow(0, self.samples.start, self.count())?)
    }
}

impl Pass {
    /// True if a conditioning of it counts at a sigma.
    pub fn counts(&self, prompts: &[&Prompt], sigma: f64) -> bool {
        self.conditionings.iter().any(|place| prompts[*place].counts(sigma))
    }

    /// Rows of a group's tensors: its samples, once for each conditioning.
    pub fn rows(&self, group: &Group) -> i64 {
        group.count() * self.conditionings.len() as i64
    }

    /// Latents, once for each conditioning.
    pub fn repeated(&self, latents: &Tensor) -> tilewright_torch::Result<Tensor> {
        match self.conditionings.len() {
            1 => Ok(latents.shallow_clone()),
            count => {
                let all: Vec<Tensor> = (0..count).map(|_| latents.shallow_clone()).collect();
                Ok(Tensor::f_cat(&all, 0)?)
            }
        }
    }

    /// The first group of each context.
    pub fn firsts(&self) -> impl Iterator<Item = &Group> {
        let is_first = |place: usize| place == 0 || self.groups[place - 1].context != self.groups[place].context;
        self.groups.iter().enumerate().filter(move |(place, _)| is_first(*place)).map(|(_, group)| group)
    }

    /// Puts a group's output in its place among those of all samples, for each conditioning.
    pub fn put(&self, all: Option<Tensor>, output: Tensor, group: &Group) -> tilewright_torch::Result<Tensor> {
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

    /// The contexts of all groups.
    pub fn prepare(&self, given: &Preparation<'_>) -> Attempted<Vec<Context<Tensor>>> {
        self.firsts().map(|group| self.prepare_group(group, given)).collect()
    }

    fn prepare_group(&self, group: &Group, given: &Preparation<'_>) -> Attempted<Context<Tensor>> {
        let &Preparation { prompts, network, guidance, size, patch, device } = given;
        type Of = fn(&ConditioningTensors) -> Option<&Tensor>;
        let joined = |of: Of| -> Attempted<Option<Tensor>> {
            let rows = self.conditionings.iter().filter_map(|place| of(&prompts[*place].tensors));
            let rows = rows.map(|tensor| group.of(&for_batch(tensor, size[0])?));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_grouped_and_share_contexts_where_they_can() {
        let of = |batch, most, serves_all| {
            groups(batch, most, serves_all).into_iter().map(|group| (group.samples, group.context)).collect::<Vec<_>>()
        };
        assert_eq!(of(3, None, false), [(0..3, 0)]);
        assert_eq!(of(3, Some(9), true), [(0..3, 0)]);
        assert_eq!(of(5, Some(2), true), [(0..2, 0), (2..4, 0), (4..5, 1)]);
        assert_eq!(of(4, Some(2), false), [(0..2, 0), (2..4, 1)]);
    }
}
