//! The sigmas of a sample's steps.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tilewright_plan::words::did_you_mean;

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
    /// A sigma outside of its range.
    #[error("sigma {number} is {sigma}: a flow model's are from 1 to 0")]
    OutOfRange {
        /// Its place, from 1.
        number: usize,
        /// Its value.
        sigma: f64,
    },
    /// A sigma that does not fall.
    #[error("sigma {number} is {sigma} after {before}: sigmas fall from step to step")]
    Rises {
        /// Its place, from 1.
        number: usize,
        /// Its value.
        sigma: f64,
        /// The one before.
        before: f64,
    },
}

/// The reference whose choices are followed where references differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Convention {
    /// ComfyUI's.
    #[default]
    ComfyUi,
    /// diffusers'.
    Diffusers,
}

const CONVENTIONS: [(&str, Convention); 2] = [("comfyui", Convention::ComfyUi), ("diffusers", Convention::Diffusers)];

impl FromStr for Convention {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = CONVENTIONS.iter().find(|(name, _)| *name == text).map(|(_, convention)| *convention);
        let meant = || did_you_mean(text, CONVENTIONS.iter().map(|(name, _)| *name));
        known.ok_or_else(|| format!("unknown convention '{text}'{}: expected comfyui or diffusers", meant()))
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
    /// The sigma of a time, for so many tokens of the image.
    pub fn sigma(self, time: f64, tokens: u64) -> f64 {
        let exponential = |mu: f64| mu.exp() / (mu.exp() + 1.0 / time - 1.0);
        match self {
            Shift::Flow(shift) => shift * time / (1.0 + (shift - 1.0) * time),
            Shift::Exponential(mu) => exponential(mu),
            Shift::BySize => exponential(by_size(tokens)),
        }
    }

    fn check(self) -> Result<()> {
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

/// The times of a table by which ComfyUI looks sigmas up: of Flux.1 dev, and of other flow models
/// (comfy/model_sampling.py, `ModelSamplingFlux` and `ModelSamplingDiscreteFlow`).
const FLUX_TIMES: u32 = 10_000;
const FLOW_TIMES: u32 = 1_000;

/// The sigmas of a model at a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The way from times to sigmas.
    pub shift: Shift,
    /// The reference that is followed.
    pub convention: Convention,
    /// Tokens of the image.
    pub tokens: u64,
}

impl Schedule {
    /// The sigmas of so many steps, one more than these. With a denoise `strength` below 1 they are
    /// the last ones of as many more steps.
    ///
    /// # Errors
    /// There can be no such steps, strength or shift.
    pub fn sigmas(&self, steps: u32, strength: f64) -> Result<Vec<f64>> {
        self.shift.check()?;
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
        if all > MOST_STEPS {
            return Err(Error::Steps(all));
        }
        let sigmas = match self.convention {
            Convention::ComfyUi => self.simple(all),
            Convention::Diffusers => self.euler(all),
        };
        Ok(sigmas[(all - steps) as usize..].to_vec())
    }

    /// Times evenly apart, from a table (comfy/samplers.py, `simple_scheduler`). The table is f32.
    fn simple(&self, steps: u32) -> Vec<f64> {
        let times = match self.shift {
            Shift::Flow(_) => FLOW_TIMES,
            Shift::Exponential(_) | Shift::BySize => FLUX_TIMES,
        };
        let apart = f64::from(times) / f64::from(steps);
        let sigma = |step: u32| {
            let index = times - (f64::from(step) * apart) as u32;
            f64::from(self.shift.sigma(f64::from(index) / f64::from(times), self.tokens) as f32)
        };
        (0..steps).map(sigma).chain([0.0]).collect()
    }

    /// As diffusers' pipelines with `FlowMatchEulerDiscreteScheduler`: Flux's gives the scheduler
    /// its times, from 1 to 1/steps; for others the scheduler takes them from 1 to its least sigma,
    /// which is shifted already.
    fn euler(&self, steps: u32) -> Vec<f64> {
        let last = match self.shift {
            Shift::Flow(shift) if shift != 1.0 => self.shift.sigma(1.0 / f64::from(FLOW_TIMES), self.tokens),
            _ => 1.0 / f64::from(steps),
        };
        let time = |step: u32| match steps {
            1 => 1.0,
            _ => 1.0 + (last - 1.0) * f64::from(step) / f64::from(steps - 1),
        };
        let sigma = |step| f64::from(self.shift.sigma(time(step), self.tokens) as f32);
        (0..steps).map(sigma).chain([0.0]).collect()
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
        if index > 0 && sigma >= sigmas[index - 1] {
            return Err(Error::Rises { number: index + 1, sigma, before: sigmas[index - 1] });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shift: Shift, convention: Convention, tokens: u64) -> Schedule {
        Schedule { shift, convention, tokens }
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 2e-6, "{found} for {expected}");
        }
    }

    #[test]
    fn comfyuis_simple_scheduler_looks_up_a_table() {
        // comfy/samplers.py of ComfyUI 0.3.75 on ModelSamplingFlux(shift=1.15) and
        // ModelSamplingDiscreteFlow(shift=8, multiplier=1000).
        let flux = schedule(Shift::Exponential(1.15), Convention::ComfyUi, 4096).sigmas(4, 1.0).unwrap();
        let of = |time: f64| 1.15f64.exp() / (1.15f64.exp() + 1.0 / time - 1.0);
        assert_close(&flux, &[1.0, of(0.75), of(0.5), of(0.25), 0.0]);
        let wan = schedule(Shift::Flow(8.0), Convention::ComfyUi, 0).sigmas(3, 1.0).unwrap();
        // 1000 / 3 = 333.33: the table's places 1000, 667 and 334.
        let of = |time: f64| 8.0 * time / (1.0 + 7.0 * time);
        assert_close(&wan, &[1.0, of(0.667), of(0.334), 0.0]);
        assert_close(
            &schedule(Shift::Flow(8.0), Convention::ComfyUi, 0).sigmas(2, 0.5).unwrap(),
            &[of(0.5), of(0.25), 0.0],
        );
    }

    #[test]
    fn diffusers_shifts_by_size() {
        // FluxPipeline with FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True).
        let found = schedule(Shift::BySize, Convention::Diffusers, 256).sigmas(4, 1.0).unwrap();
        let of = |time: f64| 0.5f64.exp() / (0.5f64.exp() + 1.0 / time - 1.0);
        assert_close(&found, &[1.0, of(0.75), of(0.5), of(0.25), 0.0]);
        assert_close(&schedule(Shift::Flow(1.0), Convention::Diffusers, 9).sigmas(2, 1.0).unwrap(), &[1.0, 0.5, 0.0]);
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
        let of = schedule(Shift::Flow(3.0), Convention::ComfyUi, 0);
        assert!(matches!(of.sigmas(0, 1.0), Err(Error::Steps(0))));
        assert!(matches!(of.sigmas(9000, 0.5), Err(Error::Steps(18_000))));
        assert!(matches!(of.sigmas(4, 0.0), Err(Error::Strength(_))));
        assert!(matches!(of.sigmas(4, f64::NAN), Err(Error::Strength(_))));
        let none = schedule(Shift::Flow(0.0), Convention::ComfyUi, 0);
        assert!(matches!(none.sigmas(4, 1.0), Err(Error::Shift(_))));
    }
}
