//! The way between a network's own input and output and the latents that samplers see, and the
//! sigmas that a model was trained at (comfy/model_sampling.py of ComfyUI 0.30.0).

use serde::{Deserialize, Serialize};

use crate::latents::Real;

/// The meaning of a network's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prediction {
    /// The noise, of latents x + σ·noise.
    Epsilon,
    /// The v of "Progressive distillation" (arXiv:2202.00512, appendix D), of such latents.
    Velocity,
    /// The velocity noise − x, of latents (1 − σ)·x + σ·noise.
    Flow,
}

/// The sigmas of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trained {
    /// The sigmas of 1000 timesteps, with what lies between found by their logarithms.
    Discrete,
    /// s·t / (1 + (s − 1)·t) at 1000 times.
    Shifted(f64),
    /// eᵘ / (eᵘ + 1/t − 1) at 10,000 times.
    Exponential(f64),
}

/// Timesteps of the published models.
const TIMESTEPS: usize = 1000;
const FLUX_TIMESTEPS: usize = 10_000;

/// The betas of Stable Diffusion's first and last timestep: their roots lie evenly between.
const BETAS: [f64; 2] = [0.00085, 0.012];

/// The sigma of a percentage of 0 where there is no largest one.
const NO_LIMIT: f64 = 999_999_999.9;

/// A model's sampling, as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Written {
    Discrete(Prediction),
    Shifted(f64),
    Exponential(f64),
}

impl From<ModelSampling> for Written {
    fn from(model: ModelSampling) -> Self {
        match model.trained {
            Trained::Discrete => Self::Discrete(model.prediction),
            Trained::Shifted(shift) => Self::Shifted(shift),
            Trained::Exponential(mu) => Self::Exponential(mu),
        }
    }
}

impl From<Written> for ModelSampling {
    fn from(written: Written) -> Self {
        match written {
            Written::Discrete(prediction) => Self::discrete(prediction),
            Written::Shifted(shift) => Self::shifted(shift),
            Written::Exponential(mu) => Self::exponential(mu),
        }
    }
}

/// A model's prediction and sigmas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct ModelSampling {
    prediction: Prediction,
    trained: Trained,
    sigmas: Vec<f32>,
    log_sigmas: Vec<f32>,
}

impl ModelSampling {
    /// Stable Diffusion's sigmas.
    pub fn discrete(prediction: Prediction) -> Self {
        let last = TIMESTEPS as f64 - 1.0;
        let [first, end] = BETAS.map(f64::sqrt);
        let mut product = 1.0;
        let sigmas = (0..TIMESTEPS).map(|step| {
            product *= 1.0 - (first + (end - first) * step as f64 / last).powi(2);
            ((1.0 - product) / product).sqrt()
        });
        let sigmas: Vec<f64> = sigmas.collect();
        let log_sigmas = sigmas.iter().map(|sigma| sigma.ln() as f32).collect();
        let sigmas = sigmas.into_iter().map(|sigma| sigma as f32).collect();
        Self { prediction, trained: Trained::Discrete, sigmas, log_sigmas }
    }

    /// The sigmas of a flow model with a shift, as WAN's and Stable Diffusion 3's.
    pub fn shifted(shift: f64) -> Self {
        let trained = Trained::Shifted(shift);
        let sigmas = (1..=TIMESTEPS).map(|step| trained.sigma(step as f32 / TIMESTEPS as f32 * TIMESTEPS as f32));
        Self { prediction: Prediction::Flow, trained, sigmas: sigmas.collect(), log_sigmas: Vec::new() }
    }

    /// The sigmas of a flow model with an exponential shift, as Flux.1 dev's.
    pub fn exponential(mu: f64) -> Self {
        let trained = Trained::Exponential(mu);
        let sigmas = (1..=FLUX_TIMESTEPS).map(|step| trained.sigma(step as f32 / FLUX_TIMESTEPS as f32));
        Self { prediction: Prediction::Flow, trained, sigmas: sigmas.collect(), log_sigmas: Vec::new() }
    }

    /// The meaning of the network's output.
    pub fn prediction(&self) -> Prediction {
        self.prediction
    }

    /// True of a flow model, whose noise replaces the latents.
    pub fn is_flow(&self) -> bool {
        self.prediction == Prediction::Flow
    }

    /// All sigmas, from the least.
    pub fn sigmas(&self) -> &[f32] {
        &self.sigmas
    }

    /// The least sigma above 0.
    pub fn sigma_min(&self) -> f32 {
        self.sigmas[0]
    }

    /// The largest sigma.
    pub fn sigma_max(&self) -> f32 {
        self.sigmas[self.sigmas.len() - 1]
    }

    /// The timestep that a network is given for a sigma.
    pub fn timestep(&self, sigma: f64) -> f64 {
        match self.trained {
            Trained::Discrete => {
                let log = sigma.ln() as f32;
                let nearest = |best: (usize, f32), (step, known): (usize, &f32)| {
                    let apart = (log - known).abs();
                    if apart < best.1 { (step, apart) } else { best }
                };
                self.log_sigmas.iter().enumerate().fold((0, f32::INFINITY), nearest).0 as f64
            }
            Trained::Shifted(_) => sigma * TIMESTEPS as f64,
            Trained::Exponential(_) => sigma,
        }
    }

    /// The sigma of a timestep.
    pub(crate) fn sigma(&self, timestep: f32) -> f32 {
        match self.trained {
            Trained::Discrete => {
                let step = timestep.clamp(0.0, TIMESTEPS as f32 - 1.0);
                let part = step.fract();
                let at = |step: f32| self.log_sigmas[step as usize];
                ((1.0 - part) * at(step.floor()) + part * at(step.ceil())).exp()
            }
            trained => trained.sigma(timestep),
        }
    }

    /// The sigma at a part of the way from noise (0) to latents (1).
    pub fn sigma_at(&self, percent: f64) -> f64 {
        let left = 1.0 - percent;
        match self.trained {
            Trained::Discrete if percent <= 0.0 => NO_LIMIT,
            _ if percent <= 0.0 => 1.0,
            _ if percent >= 1.0 => 0.0,
            Trained::Discrete => f64::from(self.sigma((left * (TIMESTEPS as f64 - 1.0)) as f32)),
            Trained::Shifted(shift) => shifted(shift, left),
            Trained::Exponential(mu) => mu.exp() / (mu.exp() + (1.0 / left - 1.0)),
        }
    }

    /// The factor of latents on the way into the network.
    pub fn input_factor<F: Real>(&self, sigma: F) -> F {
        match self.prediction {
            Prediction::Epsilon | Prediction::Velocity => F::one() / (sigma * sigma + F::one()).sqrt(),
            Prediction::Flow => F::one(),
        }
    }

    /// The factors of the latents and of the network's output in the denoised latents.
    pub fn denoised_factors<F: Real>(&self, sigma: F) -> [F; 2] {
        match self.prediction {
            Prediction::Epsilon | Prediction::Flow => [F::one(), -sigma],
            Prediction::Velocity => {
                let square = sigma * sigma + F::one();
                [F::one() / square, -sigma / square.sqrt()]
            }
        }
    }

    /// The factors of the noise and of latents in noisy latents; the first ones of a sample, at the
    /// model's largest sigma, are noise of the whole variance.
    pub fn noise_factors<F: Real>(&self, sigma: F, is_first: bool) -> [F; 2] {
        let largest = self.sigma_max().wide();
        let is_largest = (sigma.wide() - largest).abs() <= 1e-5 * sigma.wide().abs().max(largest);
        match self.prediction {
            Prediction::Flow => [sigma, F::one() - sigma],
            _ if is_first && (is_largest || sigma.wide() > largest) => [(F::one() + sigma * sigma).sqrt(), F::one()],
            _ => [sigma, F::one()],
        }
    }

    /// The factor of a result that still has noise of a sigma: [`ModelSampling::noise_factors`]
    /// without noise undoes it.
    pub fn result_factor<F: Real>(&self, sigma: F) -> F {
        if self.is_flow() { F::one() / (F::one() - sigma) } else { F::one() }
    }

    /// Half the logarithm of the ratio of signal to noise.
    pub(crate) fn lambda<F: Real>(&self, sigma: F) -> F {
        if self.is_flow() { -(sigma / (F::one() - sigma)).ln() } else { -sigma.ln() }
    }

    /// The sigma of such a half.
    pub(crate) fn sigma_of<F: Real>(&self, lambda: F) -> F {
        if self.is_flow() { F::one() / (F::one() + lambda.exp()) } else { (-lambda).exp() }
    }
}

impl Trained {
    /// The sigma of a timestep, of flow models; each operation rounds to f32, as PyTorch's do.
    fn sigma(self, timestep: f32) -> f32 {
        match self {
            Trained::Exponential(mu) => {
                let scale = mu.exp() as f32;
                scale / (scale + (1.0 / timestep - 1.0))
            }
            Trained::Shifted(shift) => {
                let time = timestep / TIMESTEPS as f32;
                match shift == 1.0 {
                    true => time,
                    false => shift as f32 * time / (1.0 + (shift - 1.0) as f32 * time),
                }
            }
            Trained::Discrete => 0.0,
        }
    }
}

/// The time t, shifted towards noise.
pub(crate) fn shifted(shift: f64, time: f64) -> f64 {
    shift * time / (1.0 + (shift - 1.0) * time)
}
