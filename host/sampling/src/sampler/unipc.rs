//! UniPC (arXiv:2302.04867): on latents of one variance, as ComfyUI takes it for every model, or in
//! the model's own space, as diffusers' `UniPCMultistepScheduler` does.

use num_traits::{Float, One};

use super::{Next, Step};
use crate::{
    ModelSampling,
    latents::{Latents, Real},
};

/// The sigma that stands for 0.
pub(super) const LAST: f64 = 0.001;

/// A form of the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// B(h) is eʰ − 1 (`bh2`), or h (`bh1`).
    pub second: bool,
    /// The most denoised latents that a step knows.
    pub order: usize,
    /// Latents stay in the model's own space; else they are brought to one variance.
    pub native: bool,
}

/// A sigma in a process: the signal, the noise, and half the logarithm of their ratio.
struct Level<F> {
    signal: F,
    noise: F,
    lambda: F,
}

impl<F: Real> Level<F> {
    /// In the process that preserves variance, or in a flow.
    fn new(sigma: F, model: &ModelSampling, form: Form) -> Self {
        let (half, one) = (F::of(0.5), F::one());
        if form.native && model.is_flow() {
            let signal = one - sigma;
            return Self { signal, noise: sigma, lambda: signal.ln() - sigma.ln() };
        }
        let log = half * (one / (sigma * sigma + one)).ln();
        let left = one - (F::of(2.0) * log).exp();
        Self { signal: log.exp(), noise: left.sqrt(), lambda: log - half * left.ln() }
    }
}

/// Latents in the process that preserves variance.
pub(super) fn start<T: Latents>(latents: T, sigmas: &[T::Scalar]) -> Result<T, T::Error> {
    let one = T::Scalar::one();
    T::combine(&[(one / (one + sigmas[0] * sigmas[0]).sqrt(), &latents)])
}

/// The same latents in the model's space.
pub(super) fn finish<T: Latents>(latents: &T, sigmas: &[T::Scalar]) -> Result<T, T::Error> {
    let last = sigmas[sigmas.len() - 1];
    let signal = (T::Scalar::of(0.5) * (T::Scalar::one() / (last * last + T::Scalar::one())).ln()).exp();
    T::combine(&[(T::Scalar::one() / signal, latents)])
}

/// Denoised latents at a sigma, by the noise that the model finds.
fn denoised<T: Latents>(step: &mut Step<'_, T>, latents: &T, sigma: T::Scalar, form: Form) -> Result<T, T::Error> {
    if form.native {
        return Ok(step.denoise(latents, sigma)?.guided);
    }
    let (level, one) = (Level::new(sigma, step.model, form), T::Scalar::one());
    let input = T::combine(&[((sigma * sigma + one).sqrt(), latents)])?;
    let found = step.denoise(&input, sigma)?.guided;
    let factor = level.noise / sigma / level.signal;
    T::combine(&[(one / level.signal, latents), (-factor, &input), (factor, &found)])
}

/// A step: the first one asks the model alone, each later one goes to its own sigma, and the last
/// one to the end as well.
pub(super) fn step<T: Latents>(step: &mut Step<'_, T>, form: Form) -> Result<Next<T>, T::Error> {
    let (index, steps) = (step.index, step.sigmas.len() - 1);
    let order = if form.native { form.order } else { form.order.min(steps - 1).max(1) };
    let latents = step.latents();
    if index == 0 {
        let found = denoised(step, latents, step.sigmas[0], form)?;
        let history = vec![found];
        // A single step has no other to go on from. ComfyUI's gives the latents back as they were.
        let latents = match form.native && steps == 1 {
            true => update(step, latents, &history, 1, 1, form, false)?.0,
            false => latents.share(),
        };
        return Ok(Next { latents, history, numbers: Vec::new() });
    }
    let known = &step.state.history;
    let own = order.min(index).min(steps + 1 - index);
    let (there, found) = update(step, latents, known, index, own, form, true)?;
    let next = newest(there, found, known, form);
    if index + 1 < steps {
        return Ok(next);
    }
    let (end, _) = update(step, &next.latents, &next.history, steps, 1, form, false)?;
    Ok(Next { latents: end, ..next })
}

fn newest<T: Latents>(latents: T, found: Option<T>, known: &[T], form: Form) -> Next<T> {
    match found {
        Some(found) => Next::with(latents, found, known, form.order),
        None => Next { latents, history: known.iter().map(Latents::share).collect(), numbers: Vec::new() },
    }
}

/// The way to the sigma of a place, by denoised latents of the places before it, newest first; with
/// the corrector also the denoised latents there.
fn update<T: Latents>(
    step: &mut Step<'_, T>,
    latents: &T,
    known: &[T],
    place: usize,
    order: usize,
    form: Form,
    corrects: bool,
) -> Result<(T, Option<T>), T::Error> {
    let (one, half) = (T::Scalar::one(), T::Scalar::of(0.5));
    let sigmas = step.sigmas;
    let model = step.model;
    let level = |back: usize| Level::new(sigmas[place - back], model, form);
    let (last, here) = (level(1), level(0));
    let span = here.lambda - last.lambda;
    let mut ratios: Vec<T::Scalar> = (1..order).map(|back| (level(back + 1).lambda - last.lambda) / span).collect();
    let newest = &known[0];
    let slopes =
        ratios.iter().zip(&known[1..]).map(|(ratio, old)| T::combine(&[(one / *ratio, old), (-one / *ratio, newest)]));
    let slopes = slopes.collect::<Result<Vec<T>, T::Error>>()?;
    ratios.push(one);
    let way = -span;
    let phi = way.exp_m1();
    let scale = if form.second { phi } else { way };
    let (mut rows, mut right) = (Vec::new(), Vec::new());
    let (mut term, mut factorial) = (phi / way - one, one);
    for power in 1..=order {
        rows.push(ratios.iter().map(|ratio| ratio.powi(power as i32 - 1)).collect::<Vec<_>>());
        right.push(term * factorial / scale);
        factorial = factorial * T::Scalar::of(power as f64 + 1.0);
        term = term / way - one / factorial;
    }
    let mut terms = vec![(here.noise / last.noise, latents), (-here.signal * phi, newest)];
    let part = -here.signal * scale;
    let predictor = match order {
        1 => Vec::new(),
        2 => vec![half],
        _ => {
            let smaller = rows[..order - 1].iter().map(|row| row[..order - 1].to_vec()).collect();
            super::solve(smaller, right[..order - 1].to_vec())
        }
    };
    let plain = terms.len();
    terms.extend(predictor.into_iter().map(|weight| part * weight).zip(&slopes));
    let predicted = T::combine(&terms)?;
    if !corrects {
        return Ok((predicted, None));
    }
    let found = denoised(step, &predicted, sigmas[place], form)?;
    let corrector = if order == 1 { vec![half] } else { super::solve(rows, right) };
    let change = T::combine(&[(one, &found), (-one, newest)])?;
    terms.truncate(plain);
    terms.extend(corrector.into_iter().map(|weight| part * weight).zip(slopes.iter().chain([&change])));
    let corrected = T::combine(&terms)?;
    Ok((corrected, Some(found)))
}
