//! Reuse of the network's work from step to step: of its output, or of all blocks after the first.

mod first_block;
mod output;

use tch::{Kind, Tensor};
use tilewright_models::BlockChoice;
use tilewright_plan::StepReuse;
use tilewright_sampling::ModelSampling;

use self::{first_block::FirstBlockReuse, output::OutputReuse};

/// The most steps of which none is reused: each of so few changes much.
const FEW_STEPS: usize = 8;

/// The work that was reused.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reused {
    /// Calls of the network that its last output served, or runs of it that its last blocks
    /// served: a call has a run for each pass and group.
    pub calls: u32,
    /// The largest change that was reused over.
    pub deviation: f64,
}

impl Reused {
    fn note(&mut self, change: f64) {
        self.calls += 1;
        self.deviation = self.deviation.max(change);
    }
}

/// The reuse of one sample, by its plan.
pub(super) enum Reuse {
    Output(OutputReuse),
    FirstBlock(FirstBlockReuse),
}

impl Reuse {
    /// Reuse within a threshold, for a sample of `steps` steps; none for a few.
    pub fn new(kind: StepReuse, threshold: f64, model: &ModelSampling, steps: usize) -> Option<Self> {
        if steps <= FEW_STEPS || threshold.is_nan() || threshold <= 0.0 {
            return None;
        }
        match kind {
            StepReuse::Off => None,
            StepReuse::Output { .. } => Some(Self::Output(OutputReuse::new(threshold, model))),
            StepReuse::FirstBlock { .. } => Some(Self::FirstBlock(FirstBlockReuse::new(threshold))),
        }
    }

    /// The work that was reused so far.
    pub fn reused(&self) -> Reused {
        match self {
            Self::Output(reuse) => reuse.reused,
            Self::FirstBlock(reuse) => reuse.reused,
        }
    }

    /// The same, with the work that was reused before.
    pub fn with_reused(mut self, before: Reused) -> Self {
        match &mut self {
            Self::Output(reuse) => reuse.reused = before,
            Self::FirstBlock(reuse) => reuse.reused = before,
        }
        self
    }

    /// The outputs for an input at a sigma, if the last ones serve.
    ///
    /// # Errors
    /// Memory is out.
    pub fn outputs(&mut self, input: &Tensor, sigma: f64) -> tilewright_torch::Result<Option<Vec<Tensor>>> {
        match self {
            Self::Output(reuse) => reuse.outputs(input, sigma),
            Self::FirstBlock(_) => Ok(None),
        }
    }

    /// Takes note of a call that was computed.
    ///
    /// # Errors
    /// Memory is out.
    pub fn note(&mut self, input: &Tensor, sigma: f64, outputs: &[Tensor]) -> tilewright_torch::Result<()> {
        match self {
            Self::Output(reuse) => reuse.note(input, sigma, outputs),
            Self::FirstBlock(_) => Ok(()),
        }
    }

    /// The blocks to compute next: this one, or none of the rest. In the second case their change
    /// is added to `tokens` in place. `run` is the number of the run within a call.
    ///
    /// # Errors
    /// Memory is out.
    pub fn before_block(
        &mut self,
        run: usize,
        [block, blocks]: [usize; 2],
        tokens: &Tensor,
    ) -> tilewright_torch::Result<BlockChoice> {
        match self {
            Self::Output(_) => Ok(BlockChoice::Run),
            Self::FirstBlock(reuse) => reuse.before_block(run, [block, blocks], tokens),
        }
    }
}

fn mean_size(tensor: &Tensor) -> tilewright_torch::Result<f64> {
    Ok(f64::try_from(&tensor.f_abs()?.f_mean(Kind::Double)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_steps_and_what_is_no_threshold_reuse_nothing() {
        let model = ModelSampling::shifted(1.0);
        let output = StepReuse::Output { threshold: 0.2 };
        for (kind, threshold, steps, is_some) in [
            (output, 0.2, 9, true),
            (StepReuse::FirstBlock { threshold: 0.2 }, 0.2, 9, true),
            (output, 0.2, 8, false),
            (output, 0.0, 20, false),
            (output, f64::NAN, 20, false),
            (StepReuse::Off, 0.2, 20, false),
        ] {
            assert_eq!(Reuse::new(kind, threshold, &model, steps).is_some(), is_some, "{kind:?} {threshold} {steps}");
        }
    }
}
