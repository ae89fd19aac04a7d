//! Reuse of the network's output from step to step, where latents change little: EasyCache's rule
//! (arXiv:2507.02860), as ComfyUI's node of that name has it, with every value looked at.

use tch::Tensor;
use tilewright_sampling::ModelSampling;

use super::{Reused, mean_size};

/// The parts of the way before and after which each step is computed.
const WITHIN: [f64; 2] = [0.15, 0.95];

/// The last computed call, and the changes that were passed over since.
pub(in super::super) struct OutputReuse {
    threshold: f64,
    /// The sigmas between which calls may be reused.
    within: [f64; 2],
    last: Option<Computed>,
    /// The change of the output over that of the input, at the last two computed calls.
    rate: Option<f64>,
    /// The change of the output since the last computed call, as estimated, over its size.
    change: f64,
    pub(super) reused: Reused,
}

/// A call of the network that was computed.
struct Computed {
    input: Tensor,
    /// The output of the conditioning by which changes are measured.
    output: Tensor,
    /// The mean size of all outputs.
    size: f64,
    /// Outputs without the input, one for each conditioning.
    differences: Vec<Tensor>,
}

impl OutputReuse {
    /// Reuse within a threshold of the estimated change of the output.
    pub fn new(threshold: f64, model: &ModelSampling) -> Self {
        Self {
            threshold,
            within: WITHIN.map(|part| model.sigma_at(part)),
            last: None,
            rate: None,
            change: 0.0,
            reused: Reused::default(),
        }
    }

    /// The outputs for an input at a sigma, if the last ones serve.
    ///
    /// # Errors
    /// Memory is out.
    pub fn outputs(&mut self, input: &Tensor, sigma: f64) -> tilewright_torch::Result<Option<Vec<Tensor>>> {
        let (Some(last), Some(rate)) = (&self.last, self.rate) else { return Ok(None) };
        if sigma > self.within[0] || sigma <= self.within[1] {
            return Ok(None);
        }
        self.change += rate * mean_size(&input.f_sub(&last.input)?)? / last.size;
        // NaN compares false: the call is computed.
        let serves = self.change < self.threshold;
        if !serves {
            self.change = 0.0;
            return Ok(None);
        }
        self.reused.note(self.change);
        let outputs = last.differences.iter().map(|difference| Ok(input.f_add(difference)?));
        outputs.collect::<tilewright_torch::Result<Vec<Tensor>>>().map(Some)
    }

    /// Takes note of a call that was computed.
    ///
    /// # Errors
    /// Memory is out.
    pub fn note(&mut self, input: &Tensor, sigma: f64, outputs: &[Tensor]) -> tilewright_torch::Result<()> {
        let Some(output) = outputs.last().filter(|_| sigma <= self.within[0]) else { return Ok(()) };
        if let Some(last) = &self.last {
            let changed = mean_size(&input.f_sub(&last.input)?)?;
            self.rate = (changed > 0.0).then_some(mean_size(&output.f_sub(&last.output)?)? / changed);
        }
        let sizes = outputs.iter().map(mean_size).collect::<tilewright_torch::Result<Vec<f64>>>()?;
        let differences = outputs.iter().map(|output| Ok(output.f_sub(input)?));
        self.last = Some(Computed {
            input: input.shallow_clone(),
            output: output.shallow_clone(),
            size: (sizes.iter().sum::<f64>() / sizes.len() as f64).max(f64::MIN_POSITIVE),
            differences: differences.collect::<tilewright_torch::Result<Vec<Tensor>>>()?,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn tensor(value: f32) -> Tensor {
        Tensor::ones([4], (Kind::Float, Device::Cpu)) * f64::from(value)
    }

    #[test]
    fn small_changes_are_reused_until_they_add_up() {
        let model = ModelSampling::shifted(1.0);
        let mut reuse = OutputReuse::new(0.25, &model);
        // Two computed calls give a rate of 2: the output changes twice as much as the input.
        reuse.note(&tensor(9.0), 0.9, &[tensor(0.0)]).unwrap();
        reuse.note(&tensor(1.0), 0.6, &[tensor(3.0)]).unwrap();
        assert!(reuse.outputs(&tensor(1.0), 0.5).unwrap().is_none(), "no rate yet");
        reuse.note(&tensor(2.0), 0.55, &[tensor(5.0)]).unwrap();
        // 2 · 0.25 / 5 = 0.1; the second adds 2 · 0.3 / 5, and the third goes over.
        let outputs = reuse.outputs(&tensor(2.25), 0.5).unwrap().unwrap();
        assert!((f64::try_from(outputs[0].get(0)).unwrap() - 5.25).abs() < 1e-6);
        assert!(reuse.outputs(&tensor(2.25), 0.9).unwrap().is_none(), "too early on the way");
        assert!(reuse.outputs(&tensor(2.25), 0.04).unwrap().is_none(), "too late");
        assert!(reuse.outputs(&tensor(2.3), 0.5).unwrap().is_some());
        assert!(reuse.outputs(&tensor(2.4), 0.5).unwrap().is_none());
        assert_eq!(reuse.reused.calls, 2);
        assert!((reuse.reused.deviation - 0.22).abs() < 1e-6, "{:?}", reuse.reused);
    }
}
