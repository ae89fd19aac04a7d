//! Schedulers: the sigmas of a number of steps (comfy/samplers.py and comfy/k_diffusion/sampling.py
//! of ComfyUI 0.30.0). Each operation rounds to f32 where PyTorch's do.

use crate::{ModelSampling, Sampler};

tilewright_plan::names! {
    /// A scheduler, with its name in ComfyUI and in its order.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Scheduler {
        /// The model's sigmas, evenly apart.
        #[default]
        Simple = "simple",
        /// Timesteps evenly apart, the last step's left out.
        SgmUniform = "sgm_uniform",
        /// Karras et al. (arXiv:2206.00364), equation 5, with ρ = 7.
        Karras = "karras",
        /// Logarithms evenly apart.
        Exponential = "exponential",
        /// The model's sigmas, a whole number of them apart.
        DdimUniform = "ddim_uniform",
        /// Quantiles of the beta distribution (arXiv:2407.12173).
        Beta = "beta",
        /// Timesteps evenly apart.
        Normal = "normal",
        /// Small steps first, and steps that grow after the half (Mochi's).
        LinearQuadratic = "linear_quadratic",
        /// Arcs evenly apart ("Align your steps", arXiv:2404.14507, theorem 3.1).
        KlOptimal = "kl_optimal",
    }
}

/// The exponent of Karras' sigmas.
const RHO: f64 = 7.0;

/// Both parameters of the beta distribution.
const BETA: f64 = 0.6;

/// The part of the noise that is gone after the linear half of [`Scheduler::LinearQuadratic`].
const LINEAR_PART: f64 = 0.025;

/// A sigma below this is 0.
const NEARLY_NONE: f32 = 1e-5;

tilewright_plan::from_name!(Scheduler, "scheduler", "");

impl Scheduler {
    /// The sigmas of a sampler's steps: those of one more, without the last above 0, for samplers
    /// that skip it.
    pub fn steps(self, sampler: Sampler, model: &ModelSampling, steps: u32) -> Vec<f32> {
        if !sampler.skips_last() {
            return self.sigmas(model, steps);
        }
        let mut sigmas = self.sigmas(model, steps.saturating_add(1));
        if sigmas.len() > 2 {
            sigmas.remove(sigmas.len() - 2);
        }
        sigmas
    }

    /// The sigmas of `steps` steps, at least one: usually one more than the steps, the last one 0.
    /// [`Scheduler::DdimUniform`] gives more where the model's do not divide, and
    /// [`Scheduler::Beta`] fewer where two are the same. [`Scheduler::KlOptimal`] has no single
    /// step.
    pub fn sigmas(self, model: &ModelSampling, steps: u32) -> Vec<f32> {
        let steps = steps.max(1);
        let (min, max) = (f64::from(model.sigma_min()), f64::from(model.sigma_max()));
        let known = model.sigmas();
        match self {
            Scheduler::Simple => {
                let apart = known.len() as f64 / f64::from(steps);
                let sigma = |step: u32| known[known.len() - 1 - (f64::from(step) * apart) as usize];
                with_end((0..steps).map(sigma))
            }
            Scheduler::SgmUniform => with_end(
                linspace(model.timestep(max), model.timestep(min), steps + 1)
                    .take(steps as usize)
                    .map(|timestep| model.sigma(timestep)),
            ),
            Scheduler::Normal => {
                let end = model.timestep(min);
                let ends = model.sigma(end as f32).abs() <= NEARLY_NONE;
                let timesteps = linspace(model.timestep(max), end, steps + u32::from(ends));
                let sigmas = timesteps.map(|timestep| model.sigma(timestep));
                if ends { sigmas.collect() } else { with_end(sigmas) }
            }
            Scheduler::Karras => {
                let [min, max] = [min, max].map(|sigma| sigma.powf(1.0 / RHO));
                let sigma = |part: f32| (max as f32 + part * (min - max) as f32).powf(RHO as f32);
                with_end(linspace(0.0, 1.0, steps).map(sigma))
            }
            Scheduler::Exponential => with_end(linspace(max.ln(), min.ln(), steps).map(f32::exp)),
            Scheduler::DdimUniform => {
                let ends = known[1].abs() <= NEARLY_NONE;
                let apart = (known.len() / (steps as usize + usize::from(ends))).max(1);
                let rising = known.iter().skip(1).step_by(apart).copied();
                let mut sigmas: Vec<f32> = (!ends).then_some(0.0).into_iter().chain(rising).collect();
                sigmas.reverse();
                sigmas
            }
            Scheduler::Beta => {
                let last = (known.len() - 1) as f64;
                let place = |step: u32| {
                    let part = 1.0 - f64::from(step) / f64::from(steps);
                    (beta_quantile(part) * last).round_ties_even() as usize
                };
                let mut places: Vec<usize> = (0..steps).map(place).collect();
                places.dedup();
                with_end(places.into_iter().map(|place| known[place]))
            }
            Scheduler::LinearQuadratic => {
                linear_quadratic(steps).into_iter().map(|sigma| sigma as f32 * max as f32).collect()
            }
            Scheduler::KlOptimal => {
                let [min, max] = [min, max].map(|sigma| sigma.atan() as f32);
                let last = (steps - 1) as f32;
                let sigma = |step: u32| {
                    let part = step as f32 / last;
                    (part * min + (1.0 - part) * max).tan()
                };
                with_end((0..steps).map(sigma))
            }
        }
    }
}

fn with_end(sigmas: impl Iterator<Item = f32>) -> Vec<f32> {
    sigmas.chain([0.0]).collect()
}

/// Values evenly apart, as `torch.linspace` has them in f32: from either end to the middle.
pub(crate) fn linspace(start: f64, end: f64, count: u32) -> impl Iterator<Item = f32> {
    let (start, end) = (start as f32, end as f32);
    let step = if count > 1 { (end - start) / (count - 1) as f32 } else { 0.0 };
    (0..count).map(move |index| match index < count / 2 || count == 1 {
        true => start + step * index as f32,
        false => end - step * (count - 1 - index) as f32,
    })
}

/// Genmo's schedule for Mochi (github.com/genmoai/models, mochi_preview/infer.py): half of the
/// steps remove [`LINEAR_PART`] of the noise evenly, the rest goes on from there quadratically.
fn linear_quadratic(steps: u32) -> Vec<f64> {
    if steps == 1 {
        return vec![1.0, 0.0];
    }
    let (all, linear) = (f64::from(steps), f64::from(steps / 2));
    let rest = all - linear;
    let difference = linear - LINEAR_PART * all;
    let square = difference / (linear * rest * rest);
    let slope = LINEAR_PART / linear - 2.0 * difference / (rest * rest);
    let offset = square * linear * linear;
    let gone = |step: u32| {
        let step = f64::from(step);
        if step < linear { step * LINEAR_PART / linear } else { square * step * step + slope * step + offset }
    };
    (0..steps).map(|step| 1.0 - gone(step)).chain([0.0]).collect()
}

/// The value below which a part of the beta distribution lies, by bisection.
fn beta_quantile(part: f64) -> f64 {
    if part <= 0.0 || part >= 1.0 || part == 0.5 {
        return part.clamp(0.0, 1.0);
    }
    if part > 0.5 {
        return 1.0 - beta_quantile(1.0 - part);
    }
    let [mut low, mut high] = [0.0_f64, 0.5];
    // A bit of the result each.
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if beta_part(middle) < part { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The part of the beta distribution of two equal parameters below a value up to ½: the
/// regularised incomplete beta function, by its power series, which converges fast there
/// (Abramowitz and Stegun, 26.5.4).
fn beta_part(value: f64) -> f64 {
    let unscaled = |value: f64| {
        // Σ (a + b)ₙ / (a + 1)ₙ · xⁿ
        let (mut term, mut sum) = (1.0, 1.0);
        for n in 0..200 {
            let n = f64::from(n);
            term *= (2.0 * BETA + n) / (BETA + 1.0 + n) * value;
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        (value * (1.0 - value)).powf(BETA) * sum
    };
    // Half of the distribution lies below a half, which spares the gamma function.
    0.5 * unscaled(value) / unscaled(0.5)
}
