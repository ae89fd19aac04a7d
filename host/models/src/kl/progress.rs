//! How far a pass through a network has come.

use crate::Result;

/// Tells how much of a pass is done.
pub(super) struct Progress<'a> {
    shares: Vec<f64>,
    layer: usize,
    done: f64,
    step: &'a mut dyn FnMut(f64) -> Result<()>,
}

impl<'a> Progress<'a> {
    /// The layers' shares of the work, in the order that they run; `step` hears what is done of all.
    pub fn new(shares: Vec<f64>, step: &'a mut dyn FnMut(f64) -> Result<()>) -> Self {
        Self { shares, layer: 0, done: 0.0, step }
    }

    fn share(&self) -> f64 {
        self.shares.get(self.layer).copied().unwrap_or(0.0)
    }

    /// Part of the layer at hand is done.
    pub fn within(&mut self, part: f64) -> Result<()> {
        let done = self.done + part * self.share();
        (self.step)(done.min(1.0))
    }

    /// The layer at hand is done.
    pub fn layer(&mut self) -> Result<()> {
        self.done += self.share();
        self.layer += 1;
        (self.step)(self.done.min(1.0))
    }
}
