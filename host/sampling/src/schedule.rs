//! The sigmas of a sample's steps.

use std::{fmt, str::FromStr};
use tilewright_wording::Setting;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tilewright_plan::words::did_you_mean;

use crate::{ModelSampling, Sampler, Scheduler, model_sampling::shifted};

/// The most steps of a sample.
pub const MOST_STEPS: u32 = 10_000;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Sigmas that can't be sampled along.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// A number of steps that none can have.
    #[error("{0} steps: 1 to {MOST_STEPS} can be taken")]
    Steps(u32),
    /// A denoise strength that leaves no step.
    #[error("a denoise strength of {strength} leaves none of {steps} steps, as diffusers counts them: raise either")]
    NoStep {
        /// The steps of the whole way.
        steps: u32,
        /// The strength.
        strength: f64,
    },
    /// A denoise strength outside of its range.
    #[error("a denoise strength of {0}: above 0 and at most 1 was expected")]
    Strength(f64),
    /// A shift outside of its range.
    #[error("a shift of {0}: a number above 0 was expected")]
    Shift(f64),
    /// Text that is no list of sigmas.
    #[error("'{0}' is no sigma: write numbers from 1 down to 0, as in 1,0.75,0.5,0.25,0")]
    NotANumber(String),
    /// Sigmas that are too few.
    #[error("{0} sigmas: at least two are needed, one more than steps")]
    TooFew(usize),
    /// A scheduler that has no sigmas for a number of steps.
    #[error("the scheduler {scheduler} has no sigmas for {steps} step(s): try more, or another scheduler")]
    Scheduler {
        /// The scheduler.
        scheduler: Scheduler,
        /// Steps.
        steps: u32,
    },
    /// A part of the steps that has none.
    #[error(
        "steps {start} to {end} of {steps}: none is left; {} is below {} and the number of steps",
        Setting::StartStep,
        Setting::EndStep
    )]
    Span {
        /// The first step.
        start: u32,
        /// The step before which it ends.
        end: u32,
        /// All steps.
        steps: u32,
    },
    /// Sigmas of which a sampler makes no numbers.
    #[error(
        "{sampler} comes to no numbers in step {step} of {steps}: {}: take fewer steps, or another scheduler or sampler",
        cause(.repeated, .between)
    )]
    NotFinite {
        /// The sampler.
        sampler: Sampler,
        /// The step, from 1.
        step: usize,
        /// All steps.
        steps: usize,
        /// The place of a sigma that is that of the place before it, from 1, and its value.
        repeated: Option<(usize, f32)>,
        /// The sigmas of the step.
        between: [f32; 2],
    },
    /// A sigma outside of its range.
    #[error("sigma {number} is {sigma}: a flow model's are from 1 to 0")]
    OutOfRange {
        /// The sigma's place, from 1.
        number: usize,
        /// The sigma's value.
        sigma: f64,
    },
    /// A sigma that does not fall.
    #[error("sigma {number} is {sigma} after {before}: sigmas fall from step to step")]
    Rises {
        /// The sigma's place, from 1.
        number: usize,
        /// The sigma's value.
        sigma: f64,
        /// The one before.
        before: f64,
    },
}

/// The cause of numbers that are none, in words.
fn cause(repeated: &Option<(usize, f32)>, [from, to]: &[f32; 2]) -> String {
    match repeated {
        Some((place, sigma)) => {
            format!("sigmas {} and {place} are both {sigma}, and it divides by their difference", place - 1)
        }
        None => format!("sigmas {from} and {to} are too close for it in 32 bits"),
    }
}

tilewright_plan::names! {
    /// The reference whose choices are followed where references differ.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Convention {
        /// ComfyUI's.
        #[default]
        ComfyUi = "comfyui",
        /// diffusers'.
        Diffusers = "diffusers",
    }
}

impl FromStr for Convention {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::of_name(text).ok_or_else(|| {
            let meant = did_you_mean(text, Self::names());
            format!("unknown convention '{text}'{meant}: expected comfyui or diffusers")
        })
    }
}

/// The way in which times become sigmas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shift {
    /// s·t / (1 + (s − 1)·t), as WAN's and Stable Diffusion 3's.
    Flow(f64),
    /// eᵘ / (eᵘ + 1/t − 1), as Flux.1 dev's, for a `u` that is the same at every size.
    Exponential(f64),
    /// The same, with a `u` that grows with the tokens of the image: 0.5 at 256 and 1.15 at 4096.
    BySize,
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shift::Flow(shift) => write!(f, "shift {shift}"),
            Shift::Exponential(mu) => write!(f, "shift e^{mu}"),
            Shift::BySize => f.write_str("shift by size"),
        }
    }
}

impl Shift {
    /// The sigma of a time, for `tokens` tokens of the image.
    pub fn sigma(self, time: f64, tokens: u64) -> f64 {
        let exponential = |mu: f64| mu.exp() / (mu.exp() + 1.0 / time - 1.0);
        match self {
            Shift::Flow(shift) => shifted(shift, time),
            Shift::Exponential(mu) => exponential(mu),
            Shift::BySize => exponential(by_size(tokens)),
        }
    }

    /// The shift's number, for `tokens` tokens of the image.
    pub fn number(self, tokens: u64) -> f64 {
        match self {
            Shift::Flow(number) | Shift::Exponential(number) => number,
            Shift::BySize => by_size(tokens),
        }
    }

    /// Checks that there is such a shift.
    ///
    /// # Errors
    /// It is not finite, or not above 0.
    pub fn check(self) -> Result<()> {
        match self {
            Shift::Flow(shift) if !(shift.is_finite() && shift > 0.0) => Err(Error::Shift(shift)),
            Shift::Exponential(mu) if !mu.is_finite() => Err(Error::Shift(mu)),
            _ => Ok(()),
        }
    }
}

/// BFL's flux, src/flux/sampling.py, `get_lin_function`; diffusers' `calculate_shift`.
fn by_size(tokens: u64) -> f64 {
    let slope = (1.15 - 0.5) / (4096.0 - 256.0);
    slope * tokens as f64 + 0.5 - slope * 256.0
}

/// Times of a table by which ComfyUI looks sigmas of flow models up.
const FLOW_TIMES: u32 = 1_000;

impl Shift {
    /// A model with these sigmas, for `tokens` tokens of the image.
    pub fn model(self, tokens: u64) -> ModelSampling {
        match self {
            Shift::Flow(shift) => ModelSampling::shifted(shift),
            Shift::Exponential(mu) => ModelSampling::exponential(mu),
            Shift::BySize => ModelSampling::exponential(by_size(tokens)),
        }
    }
}

/// The sigmas of ComfyUI's KSampler.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The sampler that goes along them.
    pub sampler: Sampler,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The model.
    pub model: ModelSampling,
}

impl Schedule {
    /// The sigmas of `steps` steps, one more than the steps. With a denoise `strength` below 1 they
    /// are the last ones of `steps / strength` steps.
    ///
    /// # Errors
    /// There can be no such steps or strength, or the scheduler has no sigmas for them.
    pub fn sigmas(&self, steps: u32, strength: f64) -> Result<Vec<f64>> {
        let all = all_steps(steps, strength)?;
        let sigmas = self.scheduler.steps(self.sampler, &self.model, all);
        let first = if all == steps { 0 } else { sigmas.len().saturating_sub(steps as usize + 1) };
        let sigmas: Vec<f64> = sigmas[first..].iter().map(|sigma| f64::from(*sigma)).collect();
        match sigmas.iter().all(|sigma| sigma.is_finite()) {
            true => Ok(sigmas),
            false => Err(Error::Scheduler { scheduler: self.scheduler, steps: all }),
        }
    }
}

/// The steps of the whole way, of which a denoise `strength` leaves the last `steps`.
fn all_steps(steps: u32, strength: f64) -> Result<u32> {
    if !(1..=MOST_STEPS).contains(&steps) {
        return Err(Error::Steps(steps));
    }
    if !(strength > 0.0 && strength <= 1.0) {
        return Err(Error::Strength(strength));
    }
    let all = match strength > 0.9999 {
        true => steps,
        false => (f64::from(steps) / strength) as u32,
    };
    if all > MOST_STEPS { Err(Error::Steps(all)) } else { Ok(all) }
}

/// The first of `steps` steps that a denoise `strength` leaves, as diffusers' pipelines count
/// (`get_timesteps`).
fn first_step(steps: u32, strength: f64) -> Result<u32> {
    let all = all_steps(steps, 1.0)?;
    if !(strength > 0.0 && strength <= 1.0) {
        return Err(Error::Strength(strength));
    }
    let first = (f64::from(all) - (f64::from(all) * strength).min(f64::from(all))) as u32;
    if first < all { Ok(first) } else { Err(Error::NoStep { steps, strength }) }
}

/// The giver of the times that a scheduler of diffusers shifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The pipeline, as Flux's: from 1 to 1/steps.
    Pipeline,
    /// The scheduler itself, as for WAN: from 1 to its least sigma, which is shifted already.
    Scheduler,
}

/// The sigmas of `steps` steps as diffusers' pipelines with `FlowMatchEulerDiscreteScheduler` have
/// them; with a denoise `strength` below 1, the last ones of these steps.
///
/// # Errors
/// There can be no such steps, strength or shift.
fn flow_match_sigmas(shift: Shift, tokens: u64, steps: u32, strength: f64, times: Times) -> Result<Vec<f64>> {
    shift.check()?;
    let (first, all) = (first_step(steps, strength)?, steps);
    let last = match (times, shift) {
        (Times::Scheduler, Shift::Flow(shift)) => shifted(shift, 1.0 / f64::from(FLOW_TIMES)),
        (Times::Scheduler, _) => 1.0 / f64::from(FLOW_TIMES),
        (Times::Pipeline, _) => 1.0 / f64::from(all),
    };
    let time = |step: u32| match all {
        1 => 1.0,
        _ => 1.0 + (last - 1.0) * f64::from(step) / f64::from(all - 1),
    };
    let sigma = |step| f64::from(shift.sigma(time(step), tokens) as f32);
    Ok((first..all).map(sigma).chain([0.0]).collect())
}

/// A scheduler of diffusers, for models of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowScheduler {
    /// `FlowMatchEulerDiscreteScheduler`.
    #[default]
    Euler,
    /// `UniPCMultistepScheduler`.
    UniPc,
    /// `DPMSolverMultistepScheduler`.
    DpmSolver,
}

/// The schedulers by their class, with the sampler's name that stands for each.
const FLOW_SCHEDULERS: [(&str, &str, FlowScheduler); 3] = [
    ("FlowMatchEulerDiscreteScheduler", "euler", FlowScheduler::Euler),
    ("UniPCMultistepScheduler", "uni_pc", FlowScheduler::UniPc),
    ("DPMSolverMultistepScheduler", "dpmpp_2m", FlowScheduler::DpmSolver),
];

impl FlowScheduler {
    /// The scheduler of a class, if it is known.
    pub fn of_class(name: &str) -> Option<Self> {
        FLOW_SCHEDULERS.iter().find(|(class, _, _)| *class == name).map(|(_, _, scheduler)| *scheduler)
    }

    /// The scheduler that a sampler stands for; Euler's for those that diffusers does not have.
    pub fn of(sampler: Sampler) -> Self {
        let name = sampler.to_string();
        let name = if name == "uni_pc_bh2" { "uni_pc" } else { &name };
        let known = FLOW_SCHEDULERS.iter().find(|(_, sampler, _)| *sampler == name);
        known.map_or(Self::Euler, |(_, _, scheduler)| *scheduler)
    }

    /// The name of the sampler that stands for it.
    pub fn sampler(self) -> &'static str {
        FLOW_SCHEDULERS.iter().find(|(_, _, scheduler)| *scheduler == self).map_or("euler", |(_, name, _)| *name)
    }

    /// True if the network is given whole timesteps, cut off.
    pub fn has_whole_timesteps(self) -> bool {
        self != Self::Euler
    }

    /// The sigmas of `steps` steps; with a denoise `strength` below 1, of those from the one at
    /// which diffusers' pipelines begin with a picture.
    ///
    /// # Errors
    /// There can be no such steps, strength or shift.
    pub fn sigmas(self, shift: Shift, tokens: u64, steps: u32, strength: f64, times: Times) -> Result<Vec<f64>> {
        /// The amount that a first sigma of 1, which has no signal, is lowered by.
        const LOWERED: f64 = 1e-6;
        shift.check()?;
        if ![1.0, 0.5].iter().all(|time| shift.sigma(*time, tokens).is_finite()) {
            // e to its power is no number any more.
            return Err(Error::Shift(shift.sigma(0.5, tokens)));
        }
        if self == Self::Euler {
            return flow_match_sigmas(shift, tokens, steps, strength, times);
        }
        let (start, all) = (first_step(steps, strength)?, steps);
        let least = 1.0 / f64::from(FLOW_TIMES);
        // Evenly from 1 down to the least time, or from what that leaves of 1 down to 0; the end is
        // left out.
        let [first, last] = if self == Self::UniPc { [1.0, least] } else { [1.0 - least, 0.0] };
        let time = |step: u32| first + (last - first) * f64::from(step) / f64::from(all);
        let mut sigmas: Vec<f64> = (0..all).map(|step| shift.sigma(time(step), tokens)).collect();
        if self == Self::UniPc && (sigmas[0] - 1.0).abs() < LOWERED {
            sigmas[0] -= LOWERED;
        }
        Ok(sigmas.split_off(start as usize).into_iter().map(|sigma| f64::from(sigma as f32)).chain([0.0]).collect())
    }
}

/// A part of a sample's steps, as KSampler (Advanced) takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first step, from 0.
    pub start: Option<u32>,
    /// The step before which it ends.
    pub end: Option<u32>,
    /// The noise of the last sigma stays in the latents; else the last step takes it out.
    pub leftover: bool,
}

impl Span {
    /// The sigmas of this part.
    ///
    /// # Errors
    /// It begins at or behind its end, or behind the last step.
    pub fn of(self, mut sigmas: Vec<f64>) -> Result<Vec<f64>> {
        let steps = sigmas.len() as u32 - 1;
        let (start, end) = (self.start.unwrap_or(0), self.end.unwrap_or(steps).min(steps));
        if start >= end {
            return Err(Error::Span { start, end, steps });
        }
        if end < steps {
            sigmas.truncate(end as usize + 1);
            if let (false, Some(last)) = (self.leftover, sigmas.last_mut()) {
                *last = 0.0;
            }
        }
        Ok(sigmas.split_off(start as usize))
    }
}

/// Reads sigmas written one after the other, with commas or blanks between them.
///
/// # Errors
/// One is no number; as [`check_sigmas`].
pub fn parse_sigmas(text: &str) -> Result<Vec<f64>> {
    let words = text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
    let sigmas =
        words.map(|word| word.parse().map_err(|_| Error::NotANumber(word.to_owned()))).collect::<Result<Vec<f64>>>()?;
    check_sigmas(&sigmas)?;
    Ok(sigmas)
}

/// Checks that a flow model can be sampled along sigmas.
///
/// # Errors
/// They are too few or too many, outside of 0…1, or don't fall.
pub fn check_sigmas(sigmas: &[f64]) -> Result<()> {
    if sigmas.len() < 2 {
        return Err(Error::TooFew(sigmas.len()));
    }
    if sigmas.len() > MOST_STEPS as usize + 1 {
        return Err(Error::Steps(sigmas.len() as u32 - 1));
    }
    for (index, &sigma) in sigmas.iter().enumerate() {
        if !(0.0..=1.0).contains(&sigma) {
            return Err(Error::OutOfRange { number: index + 1, sigma });
        }
        // Samplers take them in f32.
        if index > 0 && sigma as f32 >= sigmas[index - 1] as f32 {
            return Err(Error::Rises { number: index + 1, sigma, before: sigmas[index - 1] });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 2e-6, "{found} for {expected}");
        }
    }

    fn simple(model: ModelSampling) -> Schedule {
        Schedule { sampler: Sampler::default(), scheduler: Scheduler::Simple, model }
    }

    #[test]
    fn a_strength_leaves_the_first_steps_out() {
        let all = simple(ModelSampling::shifted(8.0)).sigmas(4, 1.0).unwrap();
        assert_eq!(simple(ModelSampling::shifted(8.0)).sigmas(2, 0.5).unwrap(), all[2..]);
        // ddim_uniform has a step more here: the last ones count.
        let uneven = Schedule { scheduler: Scheduler::DdimUniform, ..simple(ModelSampling::shifted(3.0)) };
        assert_eq!((uneven.sigmas(7, 1.0).unwrap().len(), uneven.sigmas(4, 0.5).unwrap().len()), (9, 5));
        let none = Schedule { scheduler: Scheduler::KlOptimal, ..simple(ModelSampling::shifted(3.0)) };
        assert!(none.sigmas(1, 1.0).unwrap_err().to_string().contains("kl_optimal has no sigmas for 1 step"));
    }

    #[test]
    fn a_span_is_a_part_of_the_steps() {
        let all = || vec![1.0, 0.8, 0.5, 0.2, 0.0];
        let span = |start, end, leftover| Span { start, end, leftover }.of(all());
        assert_eq!(span(None, None, false).unwrap(), all());
        assert_eq!(span(Some(1), Some(3), true).unwrap(), [0.8, 0.5, 0.2]);
        assert_eq!(span(Some(1), Some(3), false).unwrap(), [0.8, 0.5, 0.0]);
        assert_eq!(span(Some(3), Some(100), false).unwrap(), [0.2, 0.0]);
        for (start, end) in [(Some(4), None), (Some(2), Some(2)), (None, Some(0)), (Some(u32::MAX), Some(u32::MAX))] {
            assert!(matches!(span(start, end, false), Err(Error::Span { .. })), "{start:?} {end:?}");
        }
    }

    #[test]
    fn diffusers_shifts_by_size() {
        // FluxPipeline with FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True).
        let found = flow_match_sigmas(Shift::BySize, 256, 4, 1.0, Times::Pipeline).unwrap();
        let of = |time: f64| 0.5f64.exp() / (0.5f64.exp() + 1.0 / time - 1.0);
        assert_close(&found, &[1.0, of(0.75), of(0.5), of(0.25), 0.0]);
        assert_close(&flow_match_sigmas(Shift::Flow(1.0), 9, 2, 1.0, Times::Pipeline).unwrap(), &[1.0, 0.5, 0.0]);
        // FlowMatchEulerDiscreteScheduler(shift=3).set_timesteps(sigmas=[1, 0.75, 0.5, 0.25])
        let found = flow_match_sigmas(Shift::Flow(3.0), 9, 4, 1.0, Times::Pipeline).unwrap();
        assert_close(&found, &[1.0, 0.9, 0.75, 0.5, 0.0]);
    }

    #[test]
    fn diffusers_leaves_the_first_of_the_steps_out() {
        // FluxImg2ImgPipeline.get_timesteps: of 10 steps, int(10 − 10 · strength) are left out.
        let all = flow_match_sigmas(Shift::BySize, 256, 10, 1.0, Times::Pipeline).unwrap();
        for (strength, left_out) in [(0.6, 4), (0.95, 0), (0.35, 6), (0.1, 9), (0.01, 9)] {
            let found = flow_match_sigmas(Shift::BySize, 256, 10, strength, Times::Pipeline).unwrap();
            assert_eq!(found, all[left_out..], "{strength}");
        }
        let unipc = |strength| FlowScheduler::UniPc.sigmas(Shift::Flow(3.0), 9, 8, strength, Times::Scheduler).unwrap();
        assert_eq!(unipc(0.5), unipc(1.0)[4..]);
        let none = flow_match_sigmas(Shift::BySize, 256, 10, 1e-17, Times::Pipeline);
        assert!(matches!(none, Err(Error::NoStep { steps: 10, .. })), "{none:?}");
    }

    #[test]
    fn sigmas_by_hand_fall_from_one_to_zero() {
        assert_eq!(parse_sigmas("1, 0.5,0").unwrap(), [1.0, 0.5, 0.0]);
        assert_eq!(parse_sigmas("0.9 0.1").unwrap(), [0.9, 0.1]);
        for (text, error) in [
            ("", "0 sigmas"),
            ("1", "1 sigmas"),
            ("1,x", "'x' is no sigma"),
            ("1,0.5,0.5", "sigma 3 is 0.5 after 0.5"),
            ("14.6,1,0", "sigma 1 is 14.6"),
            ("1,nan", "sigma 2 is NaN"),
            ("1,-0.1", "sigma 2 is -0.1"),
        ] {
            let found = parse_sigmas(text).unwrap_err().to_string();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn steps_and_strengths_that_none_can_have_are_refused() {
        let of = simple(ModelSampling::shifted(3.0));
        assert!(matches!(of.sigmas(0, 1.0), Err(Error::Steps(0))));
        assert!(matches!(of.sigmas(9000, 0.5), Err(Error::Steps(18_000))));
        assert!(matches!(of.sigmas(4, 0.0), Err(Error::Strength(_))));
        assert!(matches!(of.sigmas(4, f64::NAN), Err(Error::Strength(_))));
        assert!(matches!(flow_match_sigmas(Shift::Flow(0.0), 0, 4, 1.0, Times::Scheduler), Err(Error::Shift(_))));
    }
}
