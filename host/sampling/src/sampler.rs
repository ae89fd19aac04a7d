//! Samplers: ways along sigmas, by a model that takes the noise out of latents.
//!
//! A sampler goes step by step, and all that it knows between two steps is in its [`State`], so
//! that a step can be tried again, and a sample goes on from where it was kept.

mod adams;
mod adaptive;
mod exponential;
mod multistep;
mod single;
mod table;
mod unipc;

pub use table::{NoiseKind, Sampler};

use num_traits::{One, Zero};

use crate::{
    ModelSampling,
    latents::{Latents, Real},
};

/// Latents without their noise, as a model sees them.
#[derive(Debug)]
pub struct Denoised<T> {
    /// With guidance.
    pub guided: T,
    /// By the negative conditioning alone; the same as with guidance if there is none.
    pub negative: T,
}

/// A model that samplers ask.
pub trait Denoiser<T: Latents> {
    /// Takes the noise of a sigma out of latents.
    ///
    /// # Errors
    /// The model fails, or the user ended it.
    fn denoise(&mut self, latents: &T, sigma: T::Scalar) -> Result<Denoised<T>, T::Error>;
}

/// The noise that stochastic samplers add.
pub trait Noise<T: Latents> {
    /// Noise of variance 1 for the way between two sigmas.
    ///
    /// # Errors
    /// Memory is out.
    fn draw(&mut self, from: T::Scalar, to: T::Scalar) -> Result<T, T::Error>;
}

/// The state of a sample between two steps.
#[derive(Debug)]
pub struct State<T: Latents> {
    /// The latents, as the next step takes them.
    pub latents: T,
    /// Finished steps.
    pub steps: usize,
    /// Latents that earlier steps leave to later ones, in the sampler's own order.
    pub history: Vec<T>,
    /// Numbers that go with them.
    pub numbers: Vec<T::Scalar>,
    /// The times that noise was drawn.
    pub draws: usize,
}

/// A sampler on its way along the sigmas of one sample.
#[derive(Clone, Debug)]
pub struct Course<F> {
    sampler: Sampler,
    model: ModelSampling,
    /// As the sampler takes them.
    sigmas: Vec<F>,
}

impl<F: Real> Course<F> {
    /// A course along sigmas, of which there are at least two.
    pub fn new(sampler: Sampler, model: &ModelSampling, sigmas: &[F]) -> Self {
        let mut sigmas = sigmas.to_vec();
        let method = sampler.method();
        if sampler.needs_signal() && model.is_flow() && sigmas.first().is_some_and(|sigma| *sigma >= F::one()) {
            // Pure noise has no ratio of signal to noise.
            sigmas[0] = F::of(model.sigma_at(1e-4));
        }
        if let (true, Some(last)) = (method.never_ends(), sigmas.last_mut().filter(|sigma| **sigma == F::zero())) {
            *last = F::of(unipc::LAST);
        }
        Self { sampler, model: model.clone(), sigmas }
    }

    /// The state before the first step: latents with the noise of the first sigma.
    ///
    /// # Errors
    /// Memory is out.
    pub fn start<T: Latents<Scalar = F>>(&self, latents: T) -> Result<State<T>, T::Error> {
        let latents = match self.sampler.method() {
            Method::UniPc(form) if !form.native => unipc::start(latents, &self.sigmas)?,
            _ => latents,
        };
        Ok(State { latents, steps: 0, history: Vec::new(), numbers: Vec::new(), draws: 0 })
    }

    /// The number of steps; `dpm_adaptive` finds its own, and this is what others take.
    pub fn steps(&self) -> usize {
        match self.sampler.method() {
            Method::DpmFast => adaptive::orders(self.sigmas.len() - 1).len(),
            _ => self.sigmas.len() - 1,
        }
    }

    /// True after the last step.
    pub fn is_done<T: Latents<Scalar = F>>(&self, state: &State<T>) -> bool {
        match self.sampler.method() {
            Method::DpmAdaptive => adaptive::is_done(state, &self.sigmas),
            _ => state.steps >= self.steps(),
        }
    }

    /// The part of the way that is gone.
    pub fn part<T: Latents<Scalar = F>>(&self, state: &State<T>) -> f64 {
        match self.sampler.method() {
            Method::DpmAdaptive => adaptive::part(state, &self.sigmas),
            _ => (state.steps as f64 / self.steps().max(1) as f64).min(1.0),
        }
    }

    /// The sigma that the next step begins at.
    pub fn sigma<T: Latents<Scalar = F>>(&self, state: &State<T>) -> F {
        match self.sampler.method() {
            Method::DpmAdaptive => adaptive::sigma(state, &self.sigmas),
            Method::DpmFast => adaptive::fast_sigma(state.steps, &self.sigmas),
            _ => self.sigmas[state.steps.min(self.sigmas.len() - 1)],
        }
    }

    /// The next step. The state before it stays as it is.
    ///
    /// # Errors
    /// Those of the model and the noise.
    pub fn step<T: Latents<Scalar = F>>(
        &self,
        state: &State<T>,
        denoiser: &mut dyn Denoiser<T>,
        noise: &mut dyn Noise<T>,
    ) -> Result<State<T>, T::Error> {
        let mut step = Step {
            index: state.steps,
            sigmas: &self.sigmas,
            model: &self.model,
            state,
            denoiser,
            noise,
            draws: state.draws,
        };
        let Next { latents, history, numbers } = self.sampler.method().step(&mut step)?;
        let draws = step.draws;
        Ok(State { latents, steps: state.steps + 1, history, numbers, draws })
    }

    /// The result after the last step, in the network's own space.
    ///
    /// # Errors
    /// Memory is out.
    pub fn finish<T: Latents<Scalar = F>>(&self, state: &State<T>) -> Result<T, T::Error> {
        let factor = self.model.result_factor(self.sigmas[self.sigmas.len() - 1]);
        let latents = self.noisy(state)?;
        if factor == F::one() { Ok(latents) } else { T::combine(&[(factor, &latents)]) }
    }

    /// The latents after the last step, with the noise of the last sigma as the model has it.
    ///
    /// # Errors
    /// Memory is out.
    pub fn noisy<T: Latents<Scalar = F>>(&self, state: &State<T>) -> Result<T, T::Error> {
        match self.sampler.method() {
            Method::UniPc(form) if !form.native => unipc::finish(&state.latents, &self.sigmas),
            _ => Ok(state.latents.share()),
        }
    }
}

/// The way of a step. Numbers are the parameters that samplers of a family differ in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Method {
    Euler,
    EulerAncestral,
    EulerCfgPp { eta: f64 },
    Heun,
    HeunPp2,
    Dpm2,
    Dpm2Ancestral,
    Dpmpp2sAncestral,
    Dpmpp2sAncestralCfgPp,
    Ddpm,
    Lcm,
    Lms,
    Ipndm,
    IpndmV,
    Deis,
    CfgPpHistory,
    ResMultistep { eta: f64, cfg_pp: bool },
    GradientEstimation { cfg_pp: bool },
    Dpmpp2m,
    Dpmpp2mCfgPp,
    DpmppSde,
    Dpmpp2mSde { heun: bool },
    Dpmpp3mSde,
    ErSde,
    Seeds2 { eta: f64, ratio: f64, second_order: bool },
    Seeds3,
    SaSolver { evaluates_twice: bool },
    UniPc(unipc::Form),
    Dpmpp2mNative,
    DpmFast,
    DpmAdaptive,
}

impl Method {
    /// True of methods that have no step down to a sigma of 0.
    fn never_ends(self) -> bool {
        matches!(self, Method::UniPc(form) if !form.native)
    }

    fn step<T: Latents>(self, step: &mut Step<'_, T>) -> Result<Next<T>, T::Error> {
        match self {
            Method::Euler => single::euler(step),
            Method::EulerAncestral => single::euler_ancestral(step),
            Method::EulerCfgPp { eta } => single::euler_cfg_pp(step, T::Scalar::of(eta)),
            Method::Heun => single::heun(step),
            Method::HeunPp2 => single::heunpp2(step),
            Method::Dpm2 => single::dpm_2(step),
            Method::Dpm2Ancestral => single::dpm_2_ancestral(step),
            Method::Dpmpp2sAncestral => single::dpmpp_2s_ancestral(step),
            Method::Dpmpp2sAncestralCfgPp => single::dpmpp_2s_ancestral_cfg_pp(step),
            Method::Ddpm => single::ddpm(step),
            Method::Lcm => single::lcm(step),
            Method::Lms => multistep::lms(step),
            Method::Ipndm => multistep::ipndm(step),
            Method::IpndmV => multistep::ipndm_v(step),
            Method::Deis => multistep::deis(step),
            Method::CfgPpHistory => multistep::cfgpp_history(step),
            Method::ResMultistep { eta, cfg_pp } => multistep::res_multistep(step, T::Scalar::of(eta), cfg_pp),
            Method::GradientEstimation { cfg_pp } => multistep::gradient_estimation(step, cfg_pp),
            Method::Dpmpp2m => multistep::dpmpp_2m(step),
            Method::Dpmpp2mCfgPp => multistep::dpmpp_2m_cfg_pp(step),
            Method::DpmppSde => step.unless_last(exponential::dpmpp_sde),
            Method::Dpmpp2mSde { heun } => {
                step.unless_last(|step, denoised| exponential::dpmpp_2m_sde(step, denoised, heun))
            }
            Method::Dpmpp3mSde => step.unless_last(exponential::dpmpp_3m_sde),
            Method::ErSde => step.unless_last(exponential::er_sde),
            Method::Seeds2 { eta, ratio, second_order } => {
                let [eta, ratio] = [eta, ratio].map(T::Scalar::of);
                step.unless_last(|step, denoised| exponential::seeds_2(step, denoised, eta, ratio, second_order))
            }
            Method::Seeds3 => step.unless_last(exponential::seeds_3),
            Method::SaSolver { evaluates_twice } => adams::sa_solver(step, evaluates_twice),
            Method::UniPc(form) => unipc::step(step, form),
            Method::Dpmpp2mNative => step.unless_last(exponential::dpmpp_2m),
            Method::DpmFast => adaptive::dpm_fast(step),
            Method::DpmAdaptive => adaptive::dpm_adaptive(step),
        }
    }
}

/// A step under way: its beginning, and the model and the noise that it asks.
pub(crate) struct Step<'a, T: Latents> {
    /// The step's number, from 0.
    pub index: usize,
    pub sigmas: &'a [T::Scalar],
    pub model: &'a ModelSampling,
    pub state: &'a State<T>,
    denoiser: &'a mut dyn Denoiser<T>,
    noise: &'a mut dyn Noise<T>,
    draws: usize,
}

/// The end of a step.
pub(crate) struct Next<T: Latents> {
    pub latents: T,
    pub history: Vec<T>,
    pub numbers: Vec<T::Scalar>,
}

impl<T: Latents> Next<T> {
    /// Latents alone.
    pub fn plain(latents: T) -> Self {
        Self { latents, history: Vec::new(), numbers: Vec::new() }
    }

    /// Latents, and a history with its newest part first, of which the next step sees at most
    /// `most` parts.
    pub fn with(latents: T, newest: T, before: &[T], most: usize) -> Self {
        let before = before.iter().take(most.saturating_sub(1)).map(Latents::share);
        Self { latents, history: std::iter::once(newest).chain(before).collect(), numbers: Vec::new() }
    }
}

impl<'a, T: Latents> Step<'a, T> {
    /// The latents that the step begins from.
    pub fn latents(&self) -> &'a T {
        &self.state.latents
    }

    /// The sigma that it begins at, and the one that it goes to.
    pub fn sigmas(&self) -> [T::Scalar; 2] {
        [self.sigmas[self.index], self.sigmas[self.index + 1]]
    }

    /// Asks the model.
    pub fn denoise(&mut self, latents: &T, sigma: T::Scalar) -> Result<Denoised<T>, T::Error> {
        self.denoiser.denoise(latents, sigma)
    }

    /// The latents at the beginning, without their noise.
    pub fn denoised(&mut self) -> Result<Denoised<T>, T::Error> {
        self.denoise(self.latents(), self.sigmas[self.index])
    }

    /// A step that ends at the denoised latents if it goes down to no noise, and else as `next`
    /// goes on from them.
    fn unless_last(
        &mut self,
        next: impl FnOnce(&mut Self, T) -> Result<Next<T>, T::Error>,
    ) -> Result<Next<T>, T::Error> {
        let denoised = self.denoised()?.guided;
        if self.sigmas()[1] == T::Scalar::zero() { Ok(Next::plain(denoised)) } else { next(self, denoised) }
    }

    /// The sigma to step down to, the factor of what is reached there, and that of the noise for
    /// the step's own end to be reached.
    pub fn ancestral(&self) -> [T::Scalar; 3] {
        let [from, to] = self.sigmas();
        if self.model.is_flow() {
            return renoised(from, to);
        }
        let [down, up] = ancestral(from, to, T::Scalar::one());
        [down, T::Scalar::one(), up]
    }

    /// The end of the step at latents times a factor, with noise times another one.
    pub fn renoise(&mut self, there: T, [factor, up]: [T::Scalar; 2]) -> Result<Next<T>, T::Error> {
        let [from, to] = self.sigmas();
        let noise = self.noise(from, to)?;
        Ok(Next::plain(T::combine(&[(factor, &there), (up, &noise)])?))
    }

    /// Noise for the way between two sigmas.
    pub fn noise(&mut self, from: T::Scalar, to: T::Scalar) -> Result<T, T::Error> {
        self.draws += 1;
        self.noise.draw(from, to)
    }
}

/// Latents on the straight way from a sigma to another one, by their denoised form.
pub(crate) fn along<T: Latents>(latents: &T, denoised: &T, from: T::Scalar, to: T::Scalar) -> Result<T, T::Error> {
    let ratio = to / from;
    T::combine(&[(ratio, latents), (T::Scalar::one() - ratio, denoised)])
}

/// The slope of latents over sigma.
pub(crate) fn slope<T: Latents>(latents: &T, denoised: &T, sigma: T::Scalar) -> Result<T, T::Error> {
    let one = T::Scalar::one();
    // The rest of two large values is exact in this order.
    let noise = T::combine(&[(one, latents), (-one, denoised)])?;
    T::combine(&[(one / sigma, &noise)])
}

/// Latents plus noise.
pub(crate) fn noisy<T: Latents>(latents: T, factor: T::Scalar, noise: &T) -> Result<T, T::Error> {
    T::combine(&[(T::Scalar::one(), &latents), (factor, noise)])
}

/// A sigma to step down to, and the noise to add for another one to be reached, of latents
/// x + σ·noise (k-diffusion's `get_ancestral_step`).
pub(crate) fn ancestral<F: Real>(from: F, to: F, eta: F) -> [F; 2] {
    if eta == F::zero() {
        return [to, F::zero()];
    }
    let free = eta * (to * to * (from * from - to * to) / (from * from)).sqrt();
    // From an infinite sigma the noise is not a number, and all of it is new.
    let up = if free < to { free } else { to };
    [(to * to - up * up).sqrt(), up]
}

/// The same of flow models: the sigma to step down to, the factor of what is reached there, and
/// that of the noise.
pub(crate) fn renoised<F: Real>(from: F, to: F) -> [F; 3] {
    let one = F::one();
    let down = to * (one + (to / from - one));
    let factor = (one - to) / (one - down);
    let noise = (to * to - down * down * (one - to) * (one - to) / ((one - down) * (one - down))).sqrt();
    [down, factor, noise]
}

/// The mean of two sigmas' logarithms.
pub(crate) fn middle<F: Real>(from: F, to: F) -> F {
    let [from, to] = [from.ln(), to.ln()];
    (to - (to - from) * F::of(0.5)).exp()
}

/// The solution of linear equations, by elimination with the largest pivot of each column.
pub(crate) fn solve<F: Real>(mut matrix: Vec<Vec<F>>, mut right: Vec<F>) -> Vec<F> {
    let size = right.len();
    for column in 0..size {
        let largest = (column..size)
            .fold(column, |best, row| if matrix[row][column].abs() > matrix[best][column].abs() { row } else { best });
        matrix.swap(column, largest);
        right.swap(column, largest);
        for row in column + 1..size {
            let factor = matrix[row][column] / matrix[column][column];
            let (above, below) = matrix.split_at_mut(row);
            for (own, pivot) in below[0].iter_mut().zip(&above[column]).skip(column + 1) {
                *own = *own - factor * *pivot;
            }
            right[row] = right[row] - factor * right[column];
        }
    }
    for row in (0..size).rev() {
        let (own, known) = (&matrix[row], &right[row + 1..]);
        let rest = own[row + 1..].iter().zip(known).fold(right[row], |left, (factor, value)| left - *factor * *value);
        right[row] = rest / own[row];
    }
    right
}
