//! The settings of a sample that an error may be about. Each edge calls them what its users do.

use tilewright_sampling::Error as SamplingError;

use crate::Error;

/// A setting of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The width in pixels.
    Width,
    /// The height in pixels.
    Height,
    /// The frames of a clip.
    Frames,
    /// The number of samples.
    Batch,
    /// The number of steps.
    Steps,
    /// Sigmas by hand.
    Sigmas,
    /// The first step that is taken, and the one before which it ends.
    Span,
    /// The sampler.
    Sampler,
    /// The scheduler.
    Scheduler,
    /// The shift of sigmas.
    Shift,
    /// The factor of guidance by a negative conditioning.
    Cfg,
    /// The guidance of a network that has it as an input.
    Guidance,
    /// The share of the way from noise.
    Denoise,
    /// The change up to which outputs serve once more.
    Reuse,
}

impl Error {
    /// The setting that is wrong, and why; none for other errors.
    pub fn setting(&self) -> Option<(Setting, String)> {
        match self {
            Error::Setting { setting, reason } => Some((*setting, reason.clone())),
            Error::Sigmas(error) => Some((of_sampling(error), error.to_string())),
            _ => None,
        }
    }
}

fn of_sampling(error: &SamplingError) -> Setting {
    match error {
        SamplingError::Steps(_) | SamplingError::NotFinite { .. } => Setting::Steps,
        SamplingError::NoStep { .. } | SamplingError::Strength(_) => Setting::Denoise,
        SamplingError::Shift(_) => Setting::Shift,
        SamplingError::Scheduler { .. } => Setting::Scheduler,
        SamplingError::Span { .. } => Setting::Span,
        SamplingError::NotANumber(_)
        | SamplingError::TooFew(_)
        | SamplingError::OutOfRange { .. }
        | SamplingError::Rises { .. } => Setting::Sigmas,
    }
}
