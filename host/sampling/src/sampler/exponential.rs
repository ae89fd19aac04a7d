//! Samplers that integrate the linear part of the path exactly, in half the logarithm of the ratio
//! of signal to noise (λ).

use num_traits::{Float, One, Zero};

use super::{Next, Step, ancestral, noisy};
use crate::latents::{Latents, Real};

type Result<T> = std::result::Result<Next<T>, <T as Latents>::Error>;

/// φ₁(h)·h.
fn phi_1<F: Real>(h: F) -> F {
    h.exp_m1()
}

/// φ₂(h)·h.
fn phi_2<F: Real>(h: F) -> F {
    (h.exp_m1() - h) / h
}

/// The root of 1 − eʰ.
fn spread<F: Real>(h: F) -> F {
    (-h.exp_m1()).sqrt()
}

/// The two λ of a step, and the signal at its end.
fn lambdas<T: Latents>(step: &Step<'_, T>) -> ([T::Scalar; 2], T::Scalar) {
    let [from, to] = step.sigmas();
    let [start, end] = [from, to].map(|sigma| step.model.lambda(sigma));
    ([start, end], to * end.exp())
}

/// The stochastic DPM-Solver++ of second order in one step (k-diffusion's `sample_dpmpp_sde`, r =
/// ½).
pub(super) fn dpmpp_sde<T: Latents>(step: &mut Step<'_, T>, denoised: T) -> Result<T> {
    let from = step.sigmas()[0];
    let (latents, model, one) = (step.latents(), step.model, T::Scalar::one());
    let ([start, end], signal) = lambdas(step);
    let middle = start + T::Scalar::of(0.5) * (end - start);
    let between = model.sigma_of(middle);
    let signals = [from * start.exp(), between * middle.exp()];
    let ratio = |lambda: T::Scalar| (-lambda).exp();
    // r = ½ makes the step's slope the middle's alone.
    let [down, up] = ancestral(ratio(start), ratio(middle), one);
    let span = -down.ln() - start;
    let terms = [(signals[1] / signals[0] * (-span).exp(), latents), (-signals[1] * phi_1(-span), &denoised)];
    let there = T::combine(&terms)?;
    let noise = step.noise(from, between)?;
    let there = noisy(there, signals[1] * up, &noise)?;
    let second = step.denoise(&there, between)?.guided;
    let [down, up] = ancestral(ratio(start), ratio(end), one);
    let span = -down.ln() - start;
    let terms = [(signal / signals[0] * (-span).exp(), latents), (-signal * phi_1(-span), &second)];
    let there = T::combine(&terms)?;
    step.renoise(there, [one, signal * up])
}

/// DPM-Solver++ of second order, over steps, without noise (diffusers'
/// `DPMSolverMultistepScheduler`, midpoint): the last step is of first order.
pub(super) fn dpmpp_2m<T: Latents>(step: &mut Step<'_, T>, denoised: T) -> Result<T> {
    let [from, to] = step.sigmas();
    let ([start, end], signal) = lambdas(step);
    let span = end - start;
    let new = -signal * phi_1(-span);
    by_last(step, denoised, span, [to / from, new, T::Scalar::of(0.5) * new])
}

/// A step with factors of the latents, of the denoised ones, and of their change since the last
/// step.
fn by_last<T: Latents>(
    step: &Step<'_, T>,
    denoised: T,
    span: T::Scalar,
    [kept, new, change]: [T::Scalar; 3],
) -> Result<T> {
    let mut terms = vec![(kept, step.latents()), (new, &denoised)];
    if let ([old], [old_span]) = (&step.state.history[..], &step.state.numbers[..]) {
        let part = change / (*old_span / span);
        terms.extend([(part, &denoised), (-part, old)]);
    }
    let latents = T::combine(&terms)?;
    Ok(Next { latents, history: vec![denoised], numbers: vec![span] })
}

/// The first part of a stochastic multistep solver (η = 1): latents and denoised latents.
struct Multistep<F> {
    span: F,
    doubled: F,
    signal: F,
    kept: F,
    new: F,
    noise: F,
}

impl<F: Real> Multistep<F> {
    fn new<T: Latents<Scalar = F>>(step: &Step<'_, T>) -> Self {
        let [from, to] = step.sigmas();
        let ([start, end], signal) = lambdas(step);
        let span = end - start;
        let doubled = span * F::of(2.0);
        Self {
            span,
            doubled,
            signal,
            kept: to / from * (-span).exp(),
            new: -signal * phi_1(-doubled),
            noise: to * spread(-doubled),
        }
    }
}

/// The stochastic DPM-Solver++ of second order, over steps; the correction is that of the midpoint
/// method or of Heun's.
pub(super) fn dpmpp_2m_sde<T: Latents>(step: &mut Step<'_, T>, denoised: T, heun: bool) -> Result<T> {
    let [from, to] = step.sigmas();
    let Multistep { span, doubled, signal, kept, new, noise } = Multistep::new(step);
    let change = match heun {
        true => signal * (-phi_1(-doubled) / -doubled + T::Scalar::one()),
        false => T::Scalar::of(0.5) * new,
    };
    let next = by_last(step, denoised, span, [kept, new, change])?;
    let drawn = step.noise(from, to)?;
    Ok(Next { latents: noisy(next.latents, noise, &drawn)?, ..next })
}

/// The stochastic DPM-Solver++ of third order, over steps.
pub(super) fn dpmpp_3m_sde<T: Latents>(step: &mut Step<'_, T>, denoised: T) -> Result<T> {
    let (latents, one) = (step.latents(), T::Scalar::one());
    let Multistep { span, doubled, signal, kept, new, noise } = Multistep::new(step);
    let mut terms = vec![(kept, latents), (new, &denoised)];
    let second = (-doubled).exp_m1() / doubled + one;
    let third = second / doubled - T::Scalar::of(0.5);
    match (&step.state.history[..], &step.state.numbers[..]) {
        ([last, before], [last_span, before_span]) => {
            let ratios = [*last_span / span, *before_span / span];
            let whole = ratios[0] + ratios[1];
            // Divided differences of the last two, and of all three.
            let first = T::combine(&[(one / ratios[0], &denoised), (-one / ratios[0], last)])?;
            let other = T::combine(&[(one / ratios[1], last), (-one / ratios[1], before)])?;
            let change = T::combine(&[(one / whole, &first), (-one / whole, &other)])?;
            let slope = T::combine(&[(one, &first), (ratios[0], &change)])?;
            let terms = [&terms[..], &[(signal * second, &slope), (-signal * third, &change)]].concat();
            let there = T::combine(&terms)?;
            return with_noise(step, there, noise, denoised, span);
        }
        ([last], [last_span]) => {
            let part = signal * second / (*last_span / span);
            terms.extend([(part, &denoised), (-part, last)]);
        }
        _ => {}
    }
    let there = T::combine(&terms)?;
    with_noise(step, there, noise, denoised, span)
}

/// Ends a step of [`dpmpp_3m_sde`].
fn with_noise<T: Latents>(
    step: &mut Step<'_, T>,
    there: T,
    factor: T::Scalar,
    denoised: T,
    span: T::Scalar,
) -> Result<T> {
    let [from, to] = step.sigmas();
    let noise = step.noise(from, to)?;
    let numbers = std::iter::once(span).chain(step.state.numbers.iter().copied()).take(2).collect();
    Ok(Next { numbers, ..Next::with(noisy(there, factor, &noise)?, denoised, &step.state.history, 2) })
}

/// The extended reverse-time solver of third order (arXiv:2309.06169), with the noise of its
/// fifth form.
pub(super) fn er_sde<T: Latents>(step: &mut Step<'_, T>, denoised: T) -> Result<T> {
    /// The points of an integral.
    const POINTS: u32 = 200;

    let [from, to] = step.sigmas();
    let (latents, model, one) = (step.latents(), step.model, T::Scalar::one());
    let ratio = |sigma: T::Scalar| (-model.lambda(sigma)).exp();
    let scale = |ratio: T::Scalar| ratio * (ratio.powf(T::Scalar::of(0.3)).exp() + T::Scalar::of(10.0));
    let [start, end] = [from, to].map(ratio);
    let signals = [from / start, to / end];
    let falls = scale(end) / scale(start);
    let mut terms = vec![(signals[1] / signals[0] * falls, latents), (signals[1] * (one - falls), &denoised)];
    let span = end - start;
    let width = -span / T::Scalar::of(f64::from(POINTS));
    let (mut sum, mut moment) = (T::Scalar::zero(), T::Scalar::zero());
    for point in 0..POINTS {
        let at = end + T::Scalar::of(f64::from(point)) * width;
        sum = sum + one / scale(at);
        moment = moment + (at - start) / scale(at);
    }
    let before = |back: usize| ratio(step.sigmas[step.index - back]);
    // The history holds the last denoised latents and their slope.
    let slope = match step.state.history.first() {
        None => None,
        Some(old) => {
            let factor = one / (start - before(1));
            Some(T::combine(&[(factor, &denoised), (-factor, old)])?)
        }
    };
    let mut change = None;
    if let (Some(slope), Some(old)) = (&slope, step.state.history.get(1)) {
        let factor = T::Scalar::of(2.0) / (start - before(2));
        change = Some(T::combine(&[(factor, slope), (-factor, old)])?);
    }
    if let Some(slope) = &slope {
        terms.push((signals[1] * (span + sum * width * scale(end)), slope));
    }
    if let Some(change) = &change {
        let half = span * span / T::Scalar::of(2.0);
        terms.push((signals[1] * (half + moment * width * scale(end)), change));
    }
    let there = T::combine(&terms)?;
    let spread = (end * end - start * start * falls * falls).sqrt();
    let spread = if spread.is_nan() { T::Scalar::zero() } else { spread };
    let noise = step.noise(from, to)?;
    let latents = noisy(there, signals[1] * spread, &noise)?;
    Ok(Next { latents, history: std::iter::once(denoised).chain(slope).collect(), numbers: Vec::new() })
}

/// A stage of SEEDS: the sigma that it reaches, and the factor of the latents there.
struct Stage<F> {
    sigma: F,
    signal: F,
    kept: F,
}

impl<F: Real> Stage<F> {
    /// The stage at a part of the way.
    fn new<T: Latents<Scalar = F>>(step: &Step<'_, T>, eta: F, part: F) -> Self {
        let from = step.sigmas()[0];
        let ([start, end], _) = lambdas(step);
        let span = end - start;
        // From the nearer end, as `torch.lerp` has it.
        let lambda = if part < F::of(0.5) { start + part * span } else { end - (F::one() - part) * span };
        let sigma = step.model.sigma_of(lambda);
        Self { sigma, signal: sigma * lambda.exp(), kept: sigma / from * (-part * span * eta).exp() }
    }
}

/// Noise of the way so far and of its next piece, of the variance of the whole.
fn grown<T: Latents>(
    before: &T,
    step: &mut Step<'_, T>,
    between: [T::Scalar; 2],
    fell: T::Scalar,
) -> std::result::Result<T, T::Error> {
    let noise = step.noise(between[0], between[1])?;
    T::combine(&[(fell.exp(), before), (spread(fell * T::Scalar::of(2.0)), &noise)])
}

/// SEEDS of two stages (arXiv:2305.14267), the second at a part `ratio` of the way; without noise
/// (`eta` = 0) an exponential method of Runge and Kutta.
pub(super) fn seeds_2<T: Latents>(
    step: &mut Step<'_, T>,
    denoised: T,
    eta: T::Scalar,
    ratio: T::Scalar,
    second_order: bool,
) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one) = (step.latents(), T::Scalar::one());
    let ([start, end], signal) = lambdas(step);
    let span = end - start;
    let full = span * (eta + one);
    let is_noisy = eta > T::Scalar::zero();
    let stage = Stage::new(step, eta, ratio);
    let mut there = T::combine(&[(stage.kept, latents), (-stage.signal * phi_1(-ratio * full), &denoised)])?;
    let mut noise = None;
    if is_noisy {
        let factor = spread(-T::Scalar::of(2.0) * ratio * span * eta);
        let drawn = T::combine(&[(factor, &step.noise(from, stage.sigma)?)])?;
        there = noisy(there, stage.sigma, &drawn)?;
        noise = Some(drawn);
    }
    let second = step.denoise(&there, stage.sigma)?.guided;
    let weights = match second_order {
        true => {
            let other = phi_2(-full) / ratio;
            [phi_1(-full) - other, other]
        }
        false => {
            let other = one / (T::Scalar::of(2.0) * ratio);
            [phi_1(-full) * (one - other), phi_1(-full) * other]
        }
    };
    let kept = to / from * (-span * eta).exp();
    let terms = [(kept, latents), (-signal * weights[0], &denoised), (-signal * weights[1], &second)];
    let mut next = T::combine(&terms)?;
    if let Some(noise) = noise {
        let all = grown(&noise, step, [stage.sigma, to], (ratio - one) * span * eta)?;
        next = noisy(next, to, &all)?;
    }
    Ok(Next::plain(next))
}

/// SEEDS of three stages (arXiv:2305.14267).
pub(super) fn seeds_3<T: Latents>(step: &mut Step<'_, T>, denoised: T) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one) = (step.latents(), T::Scalar::one());
    let parts = [1.0 / 3.0, 2.0 / 3.0].map(T::Scalar::of);
    let ([start, end], signal) = lambdas(step);
    let span = end - start;
    let full = span * T::Scalar::of(2.0);
    let [first, other] = parts.map(|part| Stage::new(step, one, part));
    let terms = [(first.kept, latents), (-first.signal * phi_1(-parts[0] * full), &denoised)];
    let there = T::combine(&terms)?;
    let factor = spread(-T::Scalar::of(2.0) * parts[0] * span);
    let noise = T::combine(&[(factor, &step.noise(from, first.sigma)?)])?;
    let there = noisy(there, first.sigma, &noise)?;
    let second = step.denoise(&there, first.sigma)?.guided;
    let weight = parts[1] / parts[0] * phi_2(-parts[1] * full);
    let rest = phi_1(-parts[1] * full) - weight;
    let terms = [(other.kept, latents), (-other.signal * rest, &denoised), (-other.signal * weight, &second)];
    let there = T::combine(&terms)?;
    let noise = grown(&noise, step, [first.sigma, other.sigma], (parts[0] - parts[1]) * span)?;
    let there = noisy(there, other.sigma, &noise)?;
    let third = step.denoise(&there, other.sigma)?.guided;
    let weight = phi_2(-full) / parts[1];
    let rest = phi_1(-full) - weight;
    let terms = [(to / from * (-span).exp(), latents), (-signal * rest, &denoised), (-signal * weight, &third)];
    let next = T::combine(&terms)?;
    let noise = grown(&noise, step, [other.sigma, to], (parts[1] - one) * span)?;
    Ok(Next::plain(noisy(next, to, &noise)?))
}
