//! Samplers that know no earlier step.

use num_traits::{Float, One, Zero};

use super::{Next, Step, along, ancestral, middle, renoised, slope};
use crate::latents::{Latents, Real};

type Result<T> = std::result::Result<Next<T>, <T as Latents>::Error>;

/// Euler's method on the slope of latents over sigma (arXiv:2206.00364, algorithm 2).
pub(super) fn euler<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let denoised = step.denoised()?.guided;
    Ok(Next::plain(along(step.latents(), &denoised, from, to)?))
}

/// Euler's method down to less noise than asked for, and new noise.
pub(super) fn euler_ancestral<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let denoised = step.denoised()?.guided;
    let [down, factor, up] = step.ancestral();
    let end = if step.model.is_flow() { to } else { down };
    if end == T::Scalar::zero() {
        return Ok(Next::plain(denoised));
    }
    let there = along(step.latents(), &denoised, from, down)?;
    step.renoise(there, [factor, up])
}

/// Euler's method with the noise of the negative conditioning (CFG++, arXiv:2406.08070), with a
/// part `eta` of new noise.
pub(super) fn euler_cfg_pp<T: Latents>(step: &mut Step<'_, T>, eta: T::Scalar) -> Result<T> {
    let [from, to] = step.sigmas();
    let (zero, model) = (T::Scalar::zero(), step.model);
    let denoised = step.denoised()?;
    if to == zero {
        return Ok(Next::plain(denoised.guided));
    }
    let signal = |sigma: T::Scalar| sigma * model.lambda(sigma).exp();
    let [before, after] = [signal(from), signal(to)];
    let [down, up] = ancestral(from / before, to / after, eta);
    let down = after * down;
    // The noise is (latents − signal · denoised) / sigma.
    let terms = [(after, &denoised.guided), (down / from, step.latents()), (-down * before / from, &denoised.negative)];
    let there = T::combine(&terms)?;
    if eta == zero {
        return Ok(Next::plain(there));
    }
    step.renoise(there, [T::Scalar::one(), after * up])
}

/// Heun's method (arXiv:2206.00364, algorithm 2).
pub(super) fn heun<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let latents = step.latents();
    let denoised = step.denoised()?.guided;
    let there = along(latents, &denoised, from, to)?;
    if to == T::Scalar::zero() {
        return Ok(Next::plain(there));
    }
    let second = step.denoise(&there, to)?.guided;
    let slopes = [slope(latents, &denoised, from)?, slope(&there, &second, to)?];
    let half = (to - from) / T::Scalar::of(2.0);
    Ok(Next::plain(T::combine(&[(T::Scalar::one(), latents), (half, &slopes[0]), (half, &slopes[1])])?))
}

/// Heun's method with a slope more, weighted by sigma
/// (github.com/Carzit/sd-webui-samplers-scheduler).
pub(super) fn heunpp2<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, sigmas, one) = (step.latents(), step.sigmas, T::Scalar::one());
    let last = sigmas[sigmas.len() - 1];
    let denoised = step.denoised()?.guided;
    let there = along(latents, &denoised, from, to)?;
    if to == last {
        return Ok(Next::plain(there));
    }
    let first = slope(latents, &denoised, from)?;
    let second = step.denoise(&there, to)?.guided;
    let second_slope = slope(&there, &second, to)?;
    let beyond = sigmas[step.index + 2];
    let span = to - from;
    if beyond == last {
        let weight = to / (T::Scalar::of(2.0) * sigmas[0]);
        let terms = [(one, latents), (span * (one - weight), &first), (span * weight, &second_slope)];
        return Ok(Next::plain(T::combine(&terms)?));
    }
    let further = T::combine(&[(one, &there), (beyond - to, &second_slope)])?;
    let third = step.denoise(&further, beyond)?.guided;
    let third_slope = slope(&further, &third, beyond)?;
    let weights = [to, beyond].map(|sigma| sigma / (T::Scalar::of(3.0) * sigmas[0]));
    let terms = [
        (one, latents),
        (span * (one - weights[0] - weights[1]), &first),
        (span * weights[0], &second_slope),
        (span * weights[1], &third_slope),
    ];
    Ok(Next::plain(T::combine(&terms)?))
}

/// The second slope is that of the middle of the sigmas' logarithms (arXiv:2206.00927).
pub(super) fn dpm_2<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    Ok(Next::plain(by_middle(step, from, to)?))
}

/// [`dpm_2`] down to less noise than asked for, and new noise.
pub(super) fn dpm_2_ancestral<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let from = step.sigmas()[0];
    let [down, factor, up] = step.ancestral();
    let there = by_middle(step, from, down)?;
    if down == T::Scalar::zero() { Ok(Next::plain(there)) } else { step.renoise(there, [factor, up]) }
}

fn by_middle<T: Latents>(step: &mut Step<'_, T>, from: T::Scalar, to: T::Scalar) -> std::result::Result<T, T::Error> {
    let latents = step.latents();
    let denoised = step.denoised()?.guided;
    if to == T::Scalar::zero() {
        return along(latents, &denoised, from, to);
    }
    let between = middle(from, to);
    let there = along(latents, &denoised, from, between)?;
    let second = step.denoise(&there, between)?.guided;
    let slope = slope(&there, &second, between)?;
    T::combine(&[(T::Scalar::one(), latents), (to - from, &slope)])
}

/// DPM-Solver++ of second order in one step (arXiv:2211.01095), down to less noise than asked for,
/// and new noise.
pub(super) fn dpmpp_2s_ancestral<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one, zero, half) = (step.latents(), T::Scalar::one(), T::Scalar::zero(), T::Scalar::of(0.5));
    let denoised = step.denoised()?.guided;
    if step.model.is_flow() {
        if to == zero {
            return Ok(Next::plain(denoised));
        }
        let [down, factor, up] = renoised(from, to);
        let between = if from == one {
            T::Scalar::of(0.9999)
        } else {
            let lambda = |sigma: T::Scalar| ((one - sigma) / sigma).ln();
            let [first, last] = [lambda(from), lambda(down)];
            one / ((first + half * (last - first)).exp() + one)
        };
        let there = along(latents, &denoised, from, between)?;
        let second = step.denoise(&there, between)?.guided;
        let there = along(latents, &second, from, down)?;
        return step.renoise(there, [factor, up]);
    }
    let [down, up] = ancestral(from, to, one);
    let there = match down == zero {
        true => denoised,
        false => {
            let Halves { between, half, whole } = Halves::new(from, down);
            let middle = T::combine(&[(half[0], latents), (half[1], &denoised)])?;
            let second = step.denoise(&middle, between)?.guided;
            T::combine(&[(whole[0], latents), (whole[1], &second)])?
        }
    };
    if to == zero {
        return Ok(Next::plain(there));
    }
    step.renoise(there, [one, up])
}

/// [`dpmpp_2s_ancestral`] with the noise of the negative conditioning.
pub(super) fn dpmpp_2s_ancestral_cfg_pp<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one, zero) = (step.latents(), T::Scalar::one(), T::Scalar::zero());
    let [down, up] = ancestral(from, to, one);
    let denoised = step.denoised()?;
    let there = match down == zero {
        true => denoised.guided,
        false => {
            let Halves { between, half, whole } = Halves::new(from, down);
            // Latents with what guidance changes.
            let led = |negative: &T| T::combine(&[(one, latents), (one, &denoised.guided), (-one, negative)]);
            let middle = T::combine(&[(half[0], &led(&denoised.negative)?), (half[1], &denoised.guided)])?;
            let second = step.denoise(&middle, between)?;
            // The negative conditioning's are those of the middle here (k_diffusion/sampling.py of
            // ComfyUI, `sample_dpmpp_2s_ancestral_cfg_pp`).
            T::combine(&[(whole[0], &led(&second.negative)?), (whole[1], &second.guided)])?
        }
    };
    if to == zero {
        return Ok(Next::plain(there));
    }
    step.renoise(there, [one, up])
}

/// A step of DPM-Solver++ and its first half: the factors of the latents and of their denoised
/// form.
struct Halves<F> {
    between: F,
    half: [F; 2],
    whole: [F; 2],
}

impl<F: Real> Halves<F> {
    fn new(from: F, to: F) -> Self {
        let half = F::of(0.5);
        let [start, end] = [-from.ln(), -to.ln()];
        let span = end - start;
        let sigma = |time: F| (-time).exp();
        let middle = start + half * span;
        Self {
            between: sigma(middle),
            half: [sigma(middle) / sigma(start), -(-span * half).exp_m1()],
            whole: [sigma(end) / sigma(start), -(-span).exp_m1()],
        }
    }
}

/// DDPM's step (arXiv:2006.11239), between any two noise levels.
pub(super) fn ddpm<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let (latents, one) = (step.latents(), T::Scalar::one());
    let denoised = step.denoised()?.guided;
    let noise = slope(latents, &denoised, from)?;
    let [product, product_next] = [from, to].map(|sigma| one / (sigma * sigma + one));
    let alpha = product / product_next;
    let scale = (one / alpha).sqrt();
    let inner = one / (one + from * from).sqrt();
    let mut terms = vec![(scale * inner, latents), (-scale * (one - alpha) / (one - product).sqrt(), &noise)];
    if to == T::Scalar::zero() {
        return Ok(Next::plain(T::combine(&terms)?));
    }
    let new = step.noise(from, to)?;
    terms.push((((one - alpha) * (one - product_next) / (one - product)).sqrt(), &new));
    let outer = (one + to * to).sqrt();
    terms.iter_mut().for_each(|(factor, _)| *factor = *factor * outer);
    Ok(Next::plain(T::combine(&terms)?))
}

/// Denoised latents with new noise (latent consistency models, arXiv:2310.04378).
pub(super) fn lcm<T: Latents>(step: &mut Step<'_, T>) -> Result<T> {
    let [from, to] = step.sigmas();
    let denoised = step.denoised()?.guided;
    if to <= T::Scalar::zero() {
        return Ok(Next::plain(denoised));
    }
    let noise = step.noise(from, to)?;
    let [new, kept] = step.model.noise_factors(to, false);
    Ok(Next::plain(T::combine(&[(new, &noise), (kept, &denoised)])?))
}
