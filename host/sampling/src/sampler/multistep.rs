//! Samplers that know slopes or denoised latents of earlier steps.

use num_traits::{Float, One, Zero};

use super::{Next, Step, along, ancestral, noisy, slope};
use crate::latents::{Latents, Real};

type Result<T> = std::result::Result<Next<T>, <T as Latents>::Error>;

/// The most slopes that linear multistep methods know, with that of the step.
const MOST_SLOPES: usize = 4;

/// As [`MOST_SLOPES`], of [`deis`].
const MOST_DEIS: usize = 3;

/// The sum of latents and slopes, the step's first, each times a weight.
fn extrapolated<T: Latents>(latents: &T, slopes: &[&T], weights: &[T::Scalar]) -> std::result::Result<T, T::Error> {
    let terms: Vec<(T::Scalar, &T)> = weights.iter().copied().zip(slopes.iter().copied()).collect();
    let way = T::combine(&terms)?;
    T::combine(&[(T::Scalar::one(), latents), (T::Scalar::one(), &way)])
}

/// The step's slope and those before, newest first.
fn slopes<'a, T: Latents>(newest: &'a T, before: &'a [T]) -> Vec<&'a T> {
    std::iter::once(newest).chain(before).collect()
}

/// The nodes of the 21-point rule of Gauss and Kronrod from the middle of an interval outwards, and
/// their weights (QUADPACK, `qk21`): the rule that SciPy's `quad` begins with.
const NODES: [(f64, f64); 11] = [
    (0.0, 0.149_445_554_002_916_9),
    (0.148_874_338_981_631_22, 0.147_739_104_901_338_49),
    (0.294_392_862_701_460_2, 0.142_775_938_577_060_09),
    (0.433_395_394_129_247_2, 0.134_709_217_311_473_34),
    (0.562_757_134_668_604_7, 0.123_491_976_262_065_84),
    (0.679_409_568_299_024_4, 0.109_387_158_802_297_64),
    (0.780_817_726_586_416_9, 0.093_125_454_583_697_6),
    (0.865_063_366_688_984_5, 0.075_039_674_810_919_96),
    (0.930_157_491_355_708_2, 0.054_755_896_574_351_995),
    (0.973_906_528_517_171_7, 0.032_558_162_307_964_725),
    (0.995_657_163_025_808_1, 0.011_694_638_867_371_874),
];

/// The integrals of the Lagrange polynomials through times, the newest first, from the newest time
/// to another one. In f32 the polynomials round at each point, as ComfyUI's do.
fn adams_weights<F: Real>(times: &[F], to: F) -> Vec<F> {
    let (start, end) = (times[0].wide(), to.wide());
    let [middle, half] = [(start + end) / 2.0, (end - start) / 2.0];
    let weight = |own: usize| {
        let product = |at: f64| {
            let at = F::of(at);
            let factor = |other: usize| (at - times[other]) / (times[own] - times[other]);
            let others = (0..times.len()).filter(|other| *other != own);
            others.map(factor).fold(F::one(), |product, factor| product * factor).wide()
        };
        let sum = NODES.iter().fold(0.0, |sum, (node, weight)| match *node {
            0.0 => sum + weight * product(middle),
            node => sum + weight * (product(middle - half * node) + product(middle + half * node)),
        });
        F::of(sum * half)
    };
    (0..times.len()).map(weight).collect()
}

/// The sigmas of the step and of those before it, newest first.
fn times<T: Latents>(step: &Step<'_, T>, count: usize) -> Vec<T::Scalar> {
    (0..count).map(|back| step.sigmas[step.index - back]).collect()
}

/// The linear multistep method of Adams and Bashforth, up to the fourth order, for steps of any
/// length.
pub(super) fn lms<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    by_weights(step, |step, count, _| adams_weights(&times(step, count), step.sigmas()[1]))
}

/// Improved pseudo linear multistep (arXiv:2204.13902): Adams and Bashforth's weights for steps of
/// one length.
pub(super) fn ipndm<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    const WEIGHTS: [&[f64]; MOST_SLOPES] = [&[1.0], &[3.0, -1.0], &[23.0, -16.0, 5.0], &[55.0, -59.0, 37.0, -9.0]];
    const DIVISORS: [f64; MOST_SLOPES] = [1.0, 2.0, 12.0, 24.0];
    by_weights(step, |_, count, span| {
        let divisor = DIVISORS[count - 1];
        WEIGHTS[count - 1].iter().map(|weight| span * T::Scalar::of(*weight) / T::Scalar::of(divisor)).collect()
    })
}

/// [`ipndm`] with weights for the lengths of the steps (github.com/zju-pi/diff-sampler, `ipndm_v`).
pub(super) fn ipndm_v<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    by_weights(step, |step, count, span| {
        let (one, two, three) = (T::Scalar::one(), T::Scalar::of(2.0), T::Scalar::of(3.0));
        // Lengths of the step and of those before it.
        let length = |back: usize| step.sigmas[step.index + 1 - back] - step.sigmas[step.index - back];
        let h: Vec<T::Scalar> = (0..count).map(length).collect();
        let mut weights = vec![one];
        if count > 1 {
            weights = vec![(two + h[0] / h[1]) / two, -(h[0] / h[1]) / two];
        }
        if count > 2 {
            let third = (one - h[0] / (three * (h[0] + h[1])) * (h[0] * (h[0] + h[1])) / (h[1] * (h[1] + h[2]))) / two;
            weights[0] = weights[0] + third;
            weights[1] = weights[1] - (one + h[1] / h[2]) * third;
            weights.push(third * h[1] / h[2]);
            if count > 3 {
                let whole = h[0] + h[1] + h[2];
                let fourth = ((one - h[0] / (three * (h[0] + h[1]))) / two
                    + (one - h[0] / (two * (h[0] + h[1]))) * h[0] / (T::Scalar::of(6.0) * whole))
                    * (h[0] * (h[0] + h[1]) * whole)
                    / (h[1] * (h[1] + h[2]) * (h[1] + h[2] + h[3]));
                let ratio = h[1] * (h[1] + h[2]) / (h[2] * (h[2] + h[3]));
                weights[0] = weights[0] + fourth;
                weights[1] = weights[1] - (one + h[1] / h[2] + ratio) * fourth;
                weights[2] = weights[2] + (h[1] / h[2] + ratio * (one + h[2] / h[3])) * fourth;
                weights.push(-fourth * ratio * h[1] / h[2]);
            }
        }
        weights.into_iter().map(|weight| span * weight).collect()
    })
}

/// A step by the `weights` of its slopes, which are given the number of slopes and the length of
/// the step.
fn by_weights<T: Latents>(
    step: &mut Step<'_, T>,
    weights: impl Fn(&Step<'_, T>, usize, T::Scalar) -> Vec<T::Scalar>,
) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, before) = (step.latents(), &step.state.history[..]);
    let denoised = step.denoised()?.guided;
    let newest = slope(latents, &denoised, from)?;
    let next = match to == T::Scalar::zero() {
        true => denoised,
        false => {
            let slopes = slopes(&newest, before);
            extrapolated(latents, &slopes, &weights(step, slopes.len(), to - from))?
        }
    };
    Ok(Next::with(next, newest, before, MOST_SLOPES - 1))
}

/// Diffusion exponential integrator (arXiv:2204.13902, tAB-DEIS): weights integrated over the time
/// of a process that preserves variance (github.com/zju-pi/diff-sampler, `get_deis_coeff_list`).
pub(super) fn deis<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, before) = (step.latents(), &step.state.history[..]);
    let denoised = step.denoised()?.guided;
    let newest = slope(latents, &denoised, from)?;
    let slopes = slopes(&newest, before);
    let next = match to <= T::Scalar::zero() || slopes.len() == 1 {
        true => along(latents, &denoised, from, to)?,
        false => extrapolated(latents, &slopes, &deis_weights(&times(step, slopes.len()), to))?,
    };
    Ok(Next::with(next, newest, before, MOST_DEIS - 1))
}

fn deis_weights<F: Real>(sigmas: &[F], to: F) -> Vec<F> {
    /// The least and the largest sigma of the process, its least time, and the points of an
    /// integral.
    const SIGMAS: [f64; 2] = [0.002, 80.0];
    const LEAST_TIME: f64 = 1e-3;
    const POINTS: u32 = 10_000;

    let [low, high] = SIGMAS.map(|sigma| F::of((sigma * sigma + 1.0).ln()));
    let least = F::of(LEAST_TIME);
    let (one, two, half) = (F::one(), F::of(2.0), F::of(0.5));
    let slope = two * (low / least - high) / (least - one);
    let start = high - half * slope;
    let time = |sigma: F| ((start * start + two * slope * (sigma * sigma + one).ln()).sqrt() - start) / slope;
    let end = slope + start;
    let (times, to): (Vec<F>, F) = (sigmas.iter().map(|sigma| time(*sigma)).collect(), time(to));
    let length = (to - times[0]) / F::of(f64::from(POINTS));
    let mut sums = vec![F::zero(); times.len()];
    let apart = (to - times[0]) / F::of(f64::from(POINTS - 1));
    for point in 0..POINTS {
        let at = match point < POINTS / 2 {
            true => times[0] + apart * F::of(f64::from(point)),
            false => to - apart * F::of(f64::from(POINTS - 1 - point)),
        };
        let alpha = (-half * at * at * (end - start) - at * start).exp();
        let falls = at * (end - start) + start;
        let integrand = half * falls / (alpha * (one - alpha)).sqrt();
        for (own, sum) in sums.iter_mut().enumerate() {
            let factor = |other: usize| (at - times[other]) / (times[own] - times[other]);
            let others = (0..times.len()).filter(|other| *other != own);
            *sum = *sum + others.map(factor).fold(integrand, |product, factor| product * factor);
        }
    }
    sums.into_iter().map(|sum| sum * length).collect()
}

/// Euler's method with the noise of the negative conditioning, a part of a slope of second order,
/// and denoised latents extrapolated to no noise at the end (ComfyUI 0.35, `cfgpp_ud10_ab`).
pub(super) fn cfgpp_history<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    /// The parts of the slope of second order, and of the change of the noise.
    const SECOND_ORDER: f64 = 0.25;
    const NOISE_CHANGE: f64 = 0.1;

    let [from, to] = step.sigmas();
    let (latents, model, one, zero) = (step.latents(), step.model, T::Scalar::one(), T::Scalar::zero());
    let denoised = step.denoised()?;
    let signal = |sigma: T::Scalar| sigma * model.lambda(sigma).exp();
    let (before, after) = (signal(from), if to == zero { one } else { signal(to) });
    let noise = T::combine(&[(one, latents), (-before, &denoised.negative)])?;
    let noise = T::combine(&[(one / from, &noise)])?;
    let span = to - from;
    let mut led = noise.share();
    // The history holds the slope, the noise and the denoised latents of the last step.
    let last = match &step.state.history[..] {
        [slope, noise, denoised] => Some((slope, noise, denoised, step.sigmas[step.index - 1])),
        _ => None,
    };
    if let Some((_, last, _, sigma)) = last {
        let part = T::Scalar::of(NOISE_CHANGE) * (span / (from - sigma));
        led = T::combine(&[(one + part, &noise), (-part, last)])?;
    }
    let euler = T::combine(&[(after, &denoised.guided), (to, &led), (-one, latents)])?;
    let slope = T::combine(&[(one / span, &euler)])?;
    let next = match last {
        None => T::combine(&[(one, latents), (one, &euler)])?,
        Some((_, _, old, sigma)) if to == zero => {
            // All of the result is denoised latents on a straight line down to no noise.
            let part = from / (from - sigma);
            T::combine(&[(one - part, &denoised.guided), (part, old)])?
        }
        Some((old, _, _, sigma)) => {
            let weights = adams_weights(&[from, sigma], to);
            let part = T::Scalar::of(SECOND_ORDER);
            let second = T::combine(&[(weights[0], &slope), (weights[1], old)])?;
            let change = T::combine(&[(one, &second), (-one, &euler)])?;
            let way = T::combine(&[(one, &euler), (part, &change)])?;
            T::combine(&[(one, latents), (one, &way)])?
        }
    };
    Ok(Next { latents: next, history: vec![slope, noise, denoised.guided], numbers: Vec::new() })
}

/// The refined exponential solver of second order, over steps (arXiv:2308.02157).
pub(super) fn res_multistep<T: Latents>(step: &mut Step<'_, T>, eta: T::Scalar, cfg_pp: bool) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one, zero) = (step.latents(), T::Scalar::one(), T::Scalar::zero());
    let denoised = step.denoised()?;
    let [down, up] = ancestral(from, to, eta);
    let own = if cfg_pp { &denoised.negative } else { &denoised.guided };
    let last = match (&step.state.history[..], &step.state.numbers[..]) {
        ([old], [old_down]) if down != zero => Some((old, *old_down)),
        _ => None,
    };
    let mut next = match last {
        None if cfg_pp => {
            T::combine(&[(one, &denoised.guided), (down / from, latents), (-down / from, &denoised.negative)])?
        }
        None => along(latents, own, from, down)?,
        Some((old, old_down)) => {
            let time = |sigma: T::Scalar| -sigma.ln();
            let span = time(down) - time(from);
            let ratio = (time(step.sigmas[step.index - 1]) - time(old_down)) / span;
            let phi_1 = (-span).exp_m1() / -span;
            let phi_2 = (phi_1 - one) / -span;
            let finite = |number: T::Scalar| if number.is_nan() { zero } else { number };
            let (first, second) = (finite(phi_1 - phi_2 / ratio), finite(phi_2 / ratio));
            let falls = (-span).exp();
            let mut terms = vec![(falls, latents), (span * first, own), (span * second, old)];
            if cfg_pp {
                terms.extend([(falls, &denoised.guided), (-falls, &denoised.negative)]);
            }
            T::combine(&terms)?
        }
    };
    if to > zero && up != zero {
        let noise = step.noise(from, to)?;
        next = noisy(next, up, &noise)?;
    }
    let own = if cfg_pp { denoised.negative } else { denoised.guided };
    Ok(Next { latents: next, history: vec![own], numbers: vec![down] })
}

/// Euler's method with the change of the slope (openreview.net/pdf?id=o2ND9v0CeK), γ = 2.
pub(super) fn gradient_estimation<T: Latents>(step: &mut Step<'_, T>, cfg_pp: bool) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one, zero) = (step.latents(), T::Scalar::one(), T::Scalar::zero());
    let denoised = step.denoised()?;
    let own = if cfg_pp { &denoised.negative } else { &denoised.guided };
    let newest = slope(latents, own, from)?;
    let next = match to == zero {
        true => denoised.guided,
        false => {
            let span = to - from;
            let mut terms = match cfg_pp {
                true => vec![(one, &denoised.guided), (to, &newest)],
                false => vec![(one, latents), (span, &newest)],
            };
            if let Some(old) = step.state.history.first() {
                terms.extend([(span, &newest), (-span, old)]);
            }
            T::combine(&terms)?
        }
    };
    Ok(Next::with(next, newest, &[], 1))
}

/// DPM-Solver++ of second order, over steps (arXiv:2211.01095).
pub(super) fn dpmpp_2m<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one) = (step.latents(), T::Scalar::one());
    let denoised = step.denoised()?.guided;
    let time = |sigma: T::Scalar| -sigma.ln();
    let span = time(to) - time(from);
    let (kept, new) = (to / from, -(-span).exp_m1());
    let next = match step.state.history.first().filter(|_| to != T::Scalar::zero()) {
        None => T::combine(&[(kept, latents), (new, &denoised)])?,
        Some(old) => {
            let ratio = (time(from) - time(step.sigmas[step.index - 1])) / span;
            let part = one / (T::Scalar::of(2.0) * ratio);
            T::combine(&[(kept, latents), (new * (one + part), &denoised), (-new * part, old)])?
        }
    };
    Ok(Next::with(next, denoised, &[], 1))
}

/// [`dpmpp_2m`] with the noise of the negative conditioning.
pub(super) fn dpmpp_2m_cfg_pp<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one) = (step.latents(), T::Scalar::one());
    let denoised = step.denoised()?;
    let time = |sigma: T::Scalar| -sigma.ln();
    let span = time(to) - time(from);
    let kept = (-span).exp();
    let mut terms = vec![(one, &denoised.guided), (-kept, &denoised.negative), (kept, latents)];
    if let Some(old) = step.state.history.first().filter(|_| to != T::Scalar::zero()) {
        let ratio = (time(from) - time(step.sigmas[step.index - 1])) / span;
        let part = -(-span).exp_m1() / (T::Scalar::of(2.0) * ratio);
        terms.extend([(part, &denoised.guided), (-part, old)]);
    }
    let next = T::combine(&terms)?;
    Ok(Next::with(next, denoised.negative, &[], 1))
}
