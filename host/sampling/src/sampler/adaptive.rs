//! DPM-Solver (arXiv:2206.00927) with steps of several orders, and with steps of a length that it
//! finds itself.

use num_traits::{Float, One};

use super::{Next, State, Step};
use crate::latents::{Latents, Real};

/// The tolerances of [`dpm_adaptive`], and the length of its first step.
const RELATIVE: f64 = 0.05;
const ABSOLUTE: f64 = 0.0078;
const FIRST_LENGTH: f64 = 0.05;

/// A step is kept if the next one may be at least so long, as a part of it.
const KEPT: f64 = 0.81;

/// The order of [`dpm_adaptive`].
const ORDER: f64 = 3.0;

/// The path ends so close before its end.
const CLOSE: f64 = 1e-5;

/// The times (−ln σ) at which a path begins and ends; it never reaches a sigma of 0.
fn ends<F: Real>(sigmas: &[F]) -> [F; 2] {
    let last = sigmas[sigmas.len() - 1];
    let last = if last == F::zero() { sigmas[sigmas.len() - 2] } else { last };
    [-sigmas[0].ln(), -last.ln()]
}

fn sigma_of<F: Real>(time: F) -> F {
    (-time).exp()
}

/// The orders of the steps of [`dpm_fast`] that ask the model so often.
pub(super) fn orders(calls: usize) -> Vec<usize> {
    let steps = calls / 3 + 1;
    match calls % 3 {
        0 => [vec![3; steps - 2], vec![2, 1]].concat(),
        rest => [vec![3; steps - 1], vec![rest]].concat(),
    }
}

/// The time at which a step of [`dpm_fast`] begins.
fn time_of<F: Real>(step: usize, sigmas: &[F]) -> F {
    let steps = orders(sigmas.len() - 1).len();
    let [start, end] = ends(sigmas);
    let apart = (end - start) / F::of(steps as f64);
    match step < steps.div_ceil(2) {
        true => start + apart * F::of(step as f64),
        false => end - apart * F::of((steps - step.min(steps)) as f64),
    }
}

/// The sigma at which a step of [`dpm_fast`] begins.
pub(super) fn fast_sigma<F: Real>(step: usize, sigmas: &[F]) -> F {
    sigma_of(time_of(step, sigmas))
}

/// The noise in latents at a time.
fn noise_in<T: Latents>(step: &mut Step<'_, T>, latents: &T, time: T::Scalar) -> Result<T, T::Error> {
    let sigma = sigma_of(time);
    let denoised = step.denoise(latents, sigma)?.guided;
    super::slope(latents, &denoised, sigma)
}

/// Steps of the second and third order between two times that share what they ask the model.
struct Solver<'a, T: Latents> {
    latents: &'a T,
    noise: T,
    start: T::Scalar,
    span: T::Scalar,
}

impl<'a, T: Latents> Solver<'a, T> {
    fn new(step: &mut Step<'a, T>, latents: &'a T, start: T::Scalar, end: T::Scalar) -> Result<Self, T::Error> {
        Ok(Self { latents, noise: noise_in(step, latents, start)?, start, span: end - start })
    }

    /// The factor of the noise at a part of the way.
    fn factor(&self, part: T::Scalar) -> T::Scalar {
        -sigma_of(self.start + part * self.span) * (part * self.span).exp_m1()
    }

    fn first(&self) -> Result<T, T::Error> {
        let one = T::Scalar::one();
        T::combine(&[(one, self.latents), (self.factor(one), &self.noise)])
    }

    /// The noise at a part of the way that the first order reaches.
    fn noise_at(&self, step: &mut Step<'_, T>, part: T::Scalar) -> Result<T, T::Error> {
        let there = T::combine(&[(T::Scalar::one(), self.latents), (self.factor(part), &self.noise)])?;
        noise_in(step, &there, self.start + part * self.span)
    }

    /// The second order, by the noise at a part of the way.
    fn second(&self, part: T::Scalar, noise: &T) -> Result<T, T::Error> {
        let one = T::Scalar::one();
        let whole = self.factor(one);
        let change = T::combine(&[(one, noise), (-one, &self.noise)])?;
        let weight = whole / (T::Scalar::of(2.0) * part);
        T::combine(&[(one, self.latents), (whole, &self.noise), (weight, &change)])
    }

    /// The factor of the change of the noise over a part of the way.
    fn change(&self, part: T::Scalar) -> T::Scalar {
        let span = part * self.span;
        -sigma_of(self.start + span) * (span.exp_m1() / span - T::Scalar::one())
    }

    /// The third order, by the noise at a third of the way.
    fn third(&self, step: &mut Step<'_, T>, noise: &T) -> Result<T, T::Error> {
        let (one, parts) = (T::Scalar::one(), [1.0 / 3.0, 2.0 / 3.0].map(T::Scalar::of));
        let change = |noise: &T| T::combine(&[(one, noise), (-one, &self.noise)]);
        let weight = self.change(parts[1]) * (parts[1] / parts[0]);
        let terms = [(one, self.latents), (self.factor(parts[1]), &self.noise), (weight, &change(noise)?)];
        let there = T::combine(&terms)?;
        let other = noise_in(step, &there, self.start + parts[1] * self.span)?;
        let weight = self.change(one) / parts[1];
        T::combine(&[(one, self.latents), (self.factor(one), &self.noise), (weight, &change(&other)?)])
    }
}

/// Steps of the third order, and shorter ones at the end, over times that are evenly apart.
pub(super) fn dpm_fast<T: Latents>(step: &mut Step<'_, T>) -> Result<Next<T>, T::Error> {
    let [start, end] = [step.index, step.index + 1].map(|index| time_of(index, step.sigmas));
    let order = orders(step.sigmas.len() - 1)[step.index];
    let latents = step.latents();
    let solver = Solver::new(step, latents, start, end)?;
    let next = match order {
        1 => solver.first()?,
        2 => {
            let half = T::Scalar::of(0.5);
            let noise = solver.noise_at(step, half)?;
            solver.second(half, &noise)?
        }
        _ => {
            let noise = solver.noise_at(step, T::Scalar::of(1.0 / 3.0))?;
            solver.third(step, &noise)?
        }
    };
    Ok(Next::plain(next))
}

/// The numbers of [`dpm_adaptive`]: the time, the length of the next step, and the reciprocals of
/// the last errors.
fn numbers<T: Latents>(state: &State<T>, sigmas: &[T::Scalar]) -> Vec<T::Scalar> {
    match &state.numbers[..] {
        [] => vec![ends(sigmas)[0], T::Scalar::of(FIRST_LENGTH)],
        numbers => numbers.to_vec(),
    }
}

pub(super) fn is_done<T: Latents>(state: &State<T>, sigmas: &[T::Scalar]) -> bool {
    numbers(state, sigmas)[0] >= ends(sigmas)[1] - T::Scalar::of(CLOSE)
}

pub(super) fn part<T: Latents>(state: &State<T>, sigmas: &[T::Scalar]) -> f64 {
    let ([start, end], now) = (ends(sigmas), numbers(state, sigmas)[0]);
    ((now - start).wide() / (end - start).wide()).clamp(0.0, 1.0)
}

pub(super) fn sigma<T: Latents>(state: &State<T>, sigmas: &[T::Scalar]) -> T::Scalar {
    sigma_of(numbers(state, sigmas)[0])
}

/// A step whose error, that between the second and the third order, is small enough; or a step that
/// is given up, after which a shorter one follows.
pub(super) fn dpm_adaptive<T: Latents>(step: &mut Step<'_, T>) -> Result<Next<T>, T::Error> {
    let numbers = numbers(step.state, step.sigmas);
    let (time, length) = (numbers[0], numbers[1].wide());
    let [_, last] = ends(step.sigmas);
    let end = last.min(time + T::Scalar::of(length));
    let latents = step.latents();
    let solver = Solver::new(step, latents, time, end)?;
    let third = T::Scalar::of(1.0 / 3.0);
    let noise = solver.noise_at(step, third)?;
    let low = solver.second(third, &noise)?;
    let high = solver.third(step, &noise)?;
    let previous = step.state.history.first().unwrap_or(latents);
    let error = T::deviation(&low, &high, previous, T::Scalar::of(ABSOLUTE), T::Scalar::of(RELATIVE))?;
    if !error.is_finite() || end <= time {
        // No length mends it: the values are out of their type's range.
        return Ok(Next { latents: high, history: vec![low], numbers: vec![last, numbers[1]] });
    }
    let inverse = 1.0 / (error.wide() + 1e-8);
    // A controller of the integral kind alone (PID with its other factors 0).
    let factor = 1.0 + (inverse.powf(1.0 / ORDER) - 1.0).atan();
    let length = T::Scalar::of(length * factor);
    Ok(match factor >= KEPT {
        true => Next { latents: high, history: vec![low], numbers: vec![end, length] },
        false => Next { latents: latents.share(), history: vec![previous.share()], numbers: vec![time, length] },
    })
}
