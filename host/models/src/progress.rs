//! The progress of a pass through a network.

use crate::Result;

/// A step of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// So much of the layer at hand is done, from 0 to 1.
    Within(f64),
    /// The layer at hand is done.
    Layer,
}

/// Hears of each step; an error from it ends the pass.
pub(crate) type Track<'a> = dyn FnMut(Step) -> Result<()> + 'a;

/// Tells how much of a pass is done.
pub(crate) struct Progress<'a> {
    shares: &'a [f64],
    layer: usize,
    done: f64,
    step: &'a mut dyn FnMut(f64) -> Result<()>,
}

impl<'a> Progress<'a> {
    /// The layers' shares of the work, in the order that they run; `step` hears the share that is
    /// done.
    pub fn new(shares: &'a [f64], step: &'a mut dyn FnMut(f64) -> Result<()>) -> Self {
        Self { shares, layer: 0, done: 0.0, step }
    }

    /// Tells of a step.
    pub fn track(&mut self, step: Step) -> Result<()> {
        let share = self.shares.get(self.layer).copied().unwrap_or(0.0);
        let mut done = self.done;
        match step {
            Step::Within(part) => done += part * share,
            Step::Layer => {
                done += share;
                self.done = done;
                self.layer += 1;
            }
        }
        (self.step)(done.min(1.0))
    }
}
