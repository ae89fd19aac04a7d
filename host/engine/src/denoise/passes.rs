//! The passes of a step through the network, and the guidance that they make.

use tch::{Device, Tensor};
use tilewright_models::{Context, Inputs, LoadedDenoiser};
use tilewright_plan::{DenoisePlan, GuidanceOrder};

use super::{ConditioningTensors, Prompt, Sampling, filled};
use crate::task::AttemptError;

/// The passes of a step, by the plan: the positive conditioning and the negative one together, if
/// there are no others, or each by itself.
pub(super) fn passes<'a>(sampling: &'a Sampling, plan: &DenoisePlan) -> Vec<Pass<'a>> {
    let prompts = sampling.prompts();
    // Texts of different lengths can't be in one tensor: padding would be attended to.
    let tokens = prompts[0].tensors.text.size()[1];
    let is_alike = |prompt: &&Prompt| prompt.is_whole() && prompt.tensors.text.size()[1] == tokens;
    let together = plan.guidance == GuidanceOrder::Together
        && prompts.len() == 2
        && sampling.positive.len() == 1
        && prompts.iter().all(is_alike);
    match together {
        true => vec![Pass { conditionings: prompts }],
        false => prompts.into_iter().map(|of| Pass { conditionings: vec![of] }).collect(),
    }
}

/// The output of a pass for each of its conditionings.
pub(super) fn apart(velocity: Tensor, pass: &Pass<'_>) -> tilewright_torch::Result<Vec<Tensor>> {
    let count = pass.conditionings.len() as i64;
    if count == 1 {
        return Ok(vec![velocity]);
    }
    let batch = velocity.size()[0] / count;
    (0..count).map(|place| Ok(velocity.f_narrow(0, place * batch, batch)?)).collect()
}

/// A pass's conditionings: one, or two that go through the network together.
pub(super) struct Pass<'a> {
    pub conditionings: Vec<&'a Prompt>,
}

impl Pass<'_> {
    /// True if a conditioning of it counts at a sigma.
    pub fn counts(&self, sigma: f64) -> bool {
        self.conditionings.iter().any(|prompt| prompt.counts(sigma))
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

    pub fn prepare(
        &self,
        network: &LoadedDenoiser,
        guidance: Option<f32>,
        size: &[i64],
        patch: i64,
        device: Device,
    ) -> std::result::Result<Context<Tensor>, AttemptError> {
        type Of = fn(&ConditioningTensors) -> Option<&Tensor>;
        let joined = |of: Of| -> std::result::Result<Option<Tensor>, AttemptError> {
            let rows = self.conditionings.iter().filter_map(|given| of(&given.tensors));
            let rows = rows.map(|tensor| for_batch(tensor, size[0])).collect::<tilewright_torch::Result<Vec<_>>>()?;
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
        let Some(text) = text else { return Err(AttemptError::Cancelled) };
        let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance };
        Ok(network.prepare(&inputs, filled(size, patch))?)
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
