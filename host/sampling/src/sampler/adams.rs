//! The stochastic Adams solver (arXiv:2309.05019), predictor and corrector.

use num_traits::{Float, One, Zero};

use super::{Next, Step, noisy};
use crate::latents::{Latents, Real};

/// The orders of the predictor and the corrector.
const PREDICTOR: usize = 3;
const CORRECTOR: usize = 4;

/// The parts of the way between which noise is added.
const NOISY: [f64; 2] = [0.2, 0.8];

/// A step. The state's latents are the predicted ones. The history holds the latents that the
/// prediction was made from, the noise in it if there is any, and denoised latents, newest first;
/// the numbers are τ and the number of noises in the history.
pub(super) fn sa_solver<T: Latents>(step: &mut Step<'_, T>, evaluates_twice: bool) -> Result<Next<T>, T::Error> {
    let [from, to] = step.sigmas();
    let (zero, one) = (T::Scalar::zero(), T::Scalar::one());
    let (index, sigmas, model) = (step.index, step.sigmas, step.model);
    let lambda = |index: usize| model.lambda(sigmas[index]);
    let predicted = step.latents();
    let mut denoised = step.denoised()?.guided;
    let tau = step.state.numbers.first().copied().unwrap_or(zero);
    let noises = usize::from(step.state.numbers.get(1).is_some_and(|noises| *noises > zero));
    let (origin, noise, known) = match &step.state.history[..] {
        [] => (None, None, &[][..]),
        [origin, rest @ ..] => {
            (Some(origin), rest.first().filter(|_| noises > 0), rest.get(noises..).unwrap_or_default())
        }
    };
    let ends = sigmas[sigmas.len() - 1] == zero;
    let count = (known.len() + 1).min(CORRECTOR);
    let left = sigmas.len() - 1 - index;
    let limit = |order: usize, left: usize| if ends { order.min(left) } else { order };
    let predictor = limit(PREDICTOR.min(count), left - 1);
    let corrector = match index == 0 || (to == zero && !evaluates_twice) {
        true => 0,
        false => limit(CORRECTOR.min(count), left),
    };
    let corrected = match origin.filter(|_| corrector > 0) {
        None => predicted.share(),
        Some(origin) => {
            let before = sigmas[index - 1];
            let span = lambda(index) - lambda(index - 1);
            let points: Vec<T::Scalar> = (0..corrector).map(|back| lambda(index - back)).collect();
            let weights = weights(from, &points, lambda(index - 1), lambda(index), tau);
            let mut terms = vec![(from / before * (-(tau * tau) * span).exp(), origin)];
            terms.extend(weights.into_iter().zip(std::iter::once(&denoised).chain(known)));
            let there = T::combine(&terms)?;
            let there = match noise.filter(|_| tau > zero) {
                Some(noise) => noisy(there, one, noise)?,
                None => there,
            };
            if evaluates_twice {
                denoised = step.denoise(&there, from)?.guided;
            }
            there
        }
    };
    if to == zero {
        return Ok(Next::plain(denoised));
    }
    let within = NOISY.map(|part| T::Scalar::of(model.sigma_at(part)));
    let tau = if within[0] >= to && to >= within[1] { one } else { zero };
    let span = lambda(index + 1) - lambda(index);
    let points: Vec<T::Scalar> = (0..predictor).map(|back| lambda(index - back)).collect();
    let weights = weights(to, &points, lambda(index), lambda(index + 1), tau);
    let mut terms = vec![(to / from * (-(tau * tau) * span).exp(), &corrected)];
    terms.extend(weights.into_iter().zip(std::iter::once(&denoised).chain(known)));
    let mut next = T::combine(&terms)?;
    let mut added = None;
    if tau > zero {
        let factor = to * (-(-T::Scalar::of(2.0) * tau * tau * span).exp_m1()).sqrt();
        let noise = T::combine(&[(factor, &step.noise(from, to)?)])?;
        next = noisy(next, one, &noise)?;
        added = Some(noise);
    }
    let numbers = vec![tau, if added.is_some() { one } else { zero }];
    let known = known.iter().take(CORRECTOR - 2).map(Latents::share);
    let history = std::iter::once(corrected).chain(added).chain([denoised]).chain(known).collect();
    Ok(Next { latents: next, history, numbers })
}

/// The weights of denoised latents at points of λ, the newest first, on the way from one λ to
/// another one that ends at a sigma (equations 15 and 18). In f64: of points that are close, powers
/// in f32 are all but the same.
fn weights<F: Real>(sigma: F, points: &[F], start: F, end: F, tau: F) -> Vec<F> {
    let [sigma, start, end, tau] = [sigma, start, end, tau].map(F::wide);
    // Oldest first, as the reference solves it.
    let points: Vec<f64> = points.iter().rev().map(|point| point.wide()).collect();
    let powers = |power: usize| points.iter().map(|point| point.powi(power as i32)).collect();
    let matrix: Vec<Vec<f64>> = (0..points.len()).map(powers).collect();
    let signal = sigma * end.exp();
    let mut weights = super::solve(matrix, moments(start, end, points.len(), tau));
    weights.reverse();
    weights.into_iter().map(|weight| F::of(signal * weight)).collect()
}

/// (1 + τ²) times the integrals of e^((1 + τ²)·x)·xᵖ, over e^((1 + τ²)·end), for p from 0,
/// integrated by parts until no power of x is left.
fn moments(start: f64, end: f64, count: usize, tau: f64) -> Vec<f64> {
    let rate = 1.0 + tau * tau;
    let falls = (-rate * (end - start)).exp();
    let own = |power: usize| end.powi(power as i32) - start.powi(power as i32) * falls;
    let product = |powers: std::ops::RangeInclusive<usize>| powers.fold(1.0, |product, power| product * power as f64);
    let moment = |power: usize| {
        (0..=power).fold(0.0, |sum, part| {
            let depth = power - part;
            let factor = product(part + 1..=power) / rate.powi(depth as i32);
            let sign = if depth.is_multiple_of(2) { 1.0 } else { -1.0 };
            sum + sign * factor * own(part)
        })
    };
    (0..count).map(moment).collect()
}
