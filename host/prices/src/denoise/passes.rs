//! The passes of a step through the network.

use std::ops::Range;

use tilewright_plan::{DenoisePlan, GuidanceOrder};

use super::shape::{PromptShape, SampleShape};

/// The passes of a step, by the plan: the positive conditioning and the negative one together, if
/// there are no others, or each by itself.
pub fn passes(shape: &SampleShape, plan: &DenoisePlan) -> Vec<Pass> {
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

/// A pass's conditionings by their places: one, or two that go through the network together; and
/// its samples, some after the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The places of its conditionings among the sample's.
    pub conditionings: Vec<usize>,
    /// The groups of its samples.
    pub groups: Vec<Group>,
}

/// Samples that go through the network together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The samples, by their places in the batch.
    pub samples: Range<i64>,
    /// The index of its context among the pass's.
    pub context: usize,
}

impl Group {
    /// Samples in it.
    pub fn count(&self) -> i64 {
        self.samples.end - self.samples.start
    }
}

impl Pass {
    /// Rows of a group's tensors: its samples, once for each conditioning.
    pub fn rows(&self, group: &Group) -> i64 {
        group.count() * self.conditionings.len() as i64
    }

    /// The first group of each context.
    pub fn firsts(&self) -> impl Iterator<Item = &Group> {
        let is_first = |place: usize| place == 0 || self.groups[place - 1].context != self.groups[place].context;
        self.groups.iter().enumerate().filter(move |(place, _)| is_first(*place)).map(|(_, group)| group)
    }
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
