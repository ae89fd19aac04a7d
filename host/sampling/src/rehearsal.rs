//! A sampler's way along sigmas with a number in the place of latents, before a model is asked: of
//! sigmas that repeat, some samplers' formulas make no numbers, as the references' do not.

use std::convert::Infallible;

use crate::{
    Course, Denoised, Denoiser, Error, Latents, ModelSampling, Noise, NoiseKind, Result, Sampler, State,
    sampler::Method,
};

/// The mean and the variance of the latents that the number stands for.
const MEAN: f32 = 0.4;
const VARIANCE: f32 = 0.25;

/// A latent of one value.
#[derive(Clone, Copy, Debug)]
struct Number(f32);

impl Latents for Number {
    type Scalar = f32;
    type Error = Infallible;

    fn combine(terms: &[(f32, &Self)]) -> std::result::Result<Self, Infallible> {
        Ok(Self(terms.iter().map(|(factor, number)| factor * number.0).sum()))
    }

    fn share(&self) -> Self {
        *self
    }

    fn deviation(
        low: &Self,
        high: &Self,
        previous: &Self,
        absolute: f32,
        relative: f32,
    ) -> std::result::Result<f32, Infallible> {
        Ok((low.0 - high.0).abs() / absolute.max(relative * low.0.abs().max(previous.0.abs())))
    }
}

/// The best denoiser of latents that are normally distributed.
struct Ideal<'a>(&'a ModelSampling);

impl Denoiser<Number> for Ideal<'_> {
    fn denoise(&mut self, latents: &Number, sigma: f32) -> std::result::Result<Denoised<Number>, Infallible> {
        let signal = if self.0.is_flow() { 1.0 - sigma } else { 1.0 };
        let share = signal * VARIANCE / (signal * signal * VARIANCE + sigma * sigma);
        let guided = Number(MEAN + share * (latents.0 - signal * MEAN));
        Ok(Denoised { guided, negative: guided })
    }
}

/// Noise of one value.
struct Steady(NoiseKind);

impl Noise<Number> for Steady {
    fn draw(&mut self, from: f32, to: f32) -> std::result::Result<Number, Infallible> {
        // A Brownian path goes nowhere between two equal sigmas, and is divided by their distance.
        Ok(Number(if self.0 == NoiseKind::Brownian && from == to { f32::NAN } else { 1.0 }))
    }
}

/// Checks that a sampler comes to numbers along sigmas.
///
/// # Errors
/// [`Error::NotFinite`] if it does not, with the step.
pub fn check_finite(sampler: Sampler, model: &ModelSampling, sigmas: &[f64]) -> Result<()> {
    let sigmas: Vec<f32> = sigmas.iter().map(|sigma| *sigma as f32).collect();
    // dpm_adaptive finds its own steps.
    if sampler.method() == Method::DpmAdaptive || sigmas.len() < 2 {
        return Ok(());
    }
    let course = Course::new(sampler, model, &sigmas);
    let never = |error: Infallible| match error {};
    let (mut denoiser, mut noise) = (Ideal(model), Steady(sampler.noise()));
    let mut state: State<Number> = course.start(Number(sigmas[0])).unwrap_or_else(never);
    while !course.is_done(&state) {
        let step = state.steps + 1;
        state = course.step(&state, &mut denoiser, &mut noise).unwrap_or_else(never);
        if !state.latents.0.is_finite() {
            let [from, to] = [step - 1, step].map(|place| sigmas[place.min(sigmas.len() - 1)]);
            let (steps, repeated) = (course.steps(), repeated(&sigmas, step));
            return Err(Error::NotFinite { sampler, step, steps, repeated, between: [from, to] });
        }
    }
    Ok(())
}

/// The last place up to a step, from 1, whose sigma is that of the place before it; of one behind
/// it otherwise.
fn repeated(sigmas: &[f32], step: usize) -> Option<(usize, f32)> {
    let repeats = || (1..sigmas.len()).filter(|place| sigmas[*place] == sigmas[place - 1]);
    let place = repeats().take_while(|place| *place <= step).last().or_else(|| repeats().next())?;
    Some((place + 1, sigmas[place]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Schedule, Scheduler};

    fn check(sampler: &str, scheduler: Scheduler, steps: u32) -> Result<()> {
        let (sampler, model) = (sampler.parse().unwrap(), ModelSampling::shifted(3.0));
        let schedule = Schedule { sampler, scheduler, model: model.clone() };
        check_finite(sampler, &model, &schedule.sigmas(steps, 1.0).unwrap())
    }

    #[test]
    fn sigmas_that_repeat_are_named() {
        // WAN's 1000 sigmas are one too few for the step more that uni_pc asks for.
        assert_eq!(check("uni_pc", Scheduler::Simple, 999), Ok(()));
        let error = check("uni_pc", Scheduler::Simple, 1000).unwrap_err();
        assert!(matches!(error, Error::NotFinite { step: 3, steps: 1000, repeated: Some((2, 1.0)), .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "uni_pc comes to no numbers in step 3 of 1000: sigmas 1 and 2 are both 1, and it divides by their \
             difference: take fewer steps, or another scheduler or sampler"
        );
        let error = check("uni_pc", Scheduler::Exponential, 1000).unwrap_err().to_string();
        assert!(error.contains("uni_pc comes to no numbers in step 993 of 1000: sigmas 0.0031"), "{error}");
        assert!(error.contains("are too close for it in 32 bits: take fewer steps"), "{error}");
        assert_eq!(check("euler", Scheduler::Simple, 1000), Ok(()));
        assert_eq!(check("dpmpp_2m", Scheduler::Karras, 1000), Ok(()));
    }
}
