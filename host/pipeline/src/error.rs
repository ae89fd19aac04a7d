//! Errors.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
};

use thiserror::Error;
#[cfg(feature = "torch")]
use tilewright_models::Origin;
use tilewright_sampling::Error as SamplingError;
use tilewright_wording::Setting;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason that a stage can't be run. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A file is unsound or of the wrong kind, or the device failed.
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Engine(#[from] tilewright_engine::Error),
    /// A file is unsound or of the wrong kind, or the request has no plan.
    #[cfg(not(feature = "torch"))]
    #[error(transparent)]
    Refused(#[from] tilewright_prices::Error),
    /// A capture can't be read.
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Capture(#[from] tilewright_capture::Error),
    /// Frames can't be read or written.
    #[error(transparent)]
    Media(#[from] tilewright_media::Error),
    /// ComfyUI's latents are in the autoencoder's own space already.
    #[error("{}: a ComfyUI latent carries no scaling: leave {} out", .0.display(), Setting::Scaled)]
    Unscaled(PathBuf),
    /// The scaling is unknown.
    #[error("{}: no scaling is known of this VAE: {}", path.display(), match is_video {
        true => "put its config.json beside it".to_owned(),
        false => format!("give {}, or {}", Setting::Family, Setting::ScalingFactor),
    })]
    NoScaling {
        /// The VAE's file.
        path: PathBuf,
        /// True for a video VAE.
        is_video: bool,
    },
    /// A setting that the model can't be run with.
    #[error("{setting}: {reason}")]
    Setting {
        /// The setting.
        setting: Setting,
        /// The fault, and what to do.
        reason: String,
    },
    /// The input does not suit the model.
    #[error("{}: {reason}", path.display())]
    Input {
        /// The input.
        path: PathBuf,
        /// The fault, and what to do.
        reason: String,
    },
    /// A prompt can't be encoded as it stands.
    #[error("{0}")]
    Prompt(String),
    /// A prompt or a tokenizer can't be read.
    #[error(transparent)]
    Text(#[from] tilewright_tokenizer::Error),
    /// A text encoder's run ended without states.
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Encoder(Box<crate::UnfinishedRun>),
    /// A part of the model is missing.
    #[error("no {part}: give {option} ({files}), or {} that has one", Setting::Model)]
    Part {
        /// The part.
        part: &'static str,
        /// The option that names it.
        option: Setting,
        /// Files that it usually comes in.
        files: &'static str,
    },
    /// No encoder of the picture that a clip begins with is given.
    #[error(
        "no vision encoder: the transformer takes a picture's states {width} wide: give {} (clip_vision_h.safetensors)",
        Setting::VisionEncoder
    )]
    NoVisionEncoder {
        /// The width of the states that the transformer takes.
        width: i64,
    },
    /// A part that a transformer needs is nowhere.
    #[error("{}: needs {need}, and no file that was found is one: give {}", transformer.display(), need.option())]
    Lacks {
        /// The transformer.
        transformer: PathBuf,
        /// The part.
        need: crate::Need,
    },
    /// The device could not be measured for an earlier file.
    #[error("measuring the device failed for an earlier file, and is not tried again")]
    Unmeasured,
    /// A file can't be read.
    #[error("{}: can't be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("{}: can't be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The plan beside the frames of an interrupted decode can't be opened.
    #[error("{}: {source}", path.display())]
    KeptPlan {
        /// The file or its folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The plan beside the frames of a decode that is done can't be removed.
    #[error("{}: can't be removed: {source}", path.display())]
    NotRemoved {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// The error of an input that does not suit the model.
    pub(crate) fn input(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Error::Input { path: path.into(), reason: reason.into() }
    }

    /// True if the arguments or files are wrong, false if the work failed.
    pub fn is_input(&self) -> bool {
        match self {
            #[cfg(feature = "torch")]
            Error::Engine(error) => error.is_input(),
            #[cfg(feature = "torch")]
            Error::Encoder(unfinished) => unfinished.error.is_input(),
            #[cfg(feature = "torch")]
            Error::Capture(_) => true,
            #[cfg(not(feature = "torch"))]
            Error::Refused(_) => true,
            Error::Media(error) => error.is_input(),
            // A link of the user's files that leads nowhere, for one.
            Error::Read { source, .. } => source.kind() == ErrorKind::NotFound,
            Error::Unmeasured | Error::Write { .. } | Error::NotRemoved { .. } => false,
            Error::Prompt(_)
            | Error::Part { .. }
            | Error::NoVisionEncoder { .. }
            | Error::Lacks { .. }
            | Error::Text(_)
            | Error::Unscaled(_)
            | Error::NoScaling { .. }
            | Error::Input { .. }
            | Error::Setting { .. }
            | Error::KeptPlan { .. } => true,
        }
    }

    /// The refusal of a setting.
    pub(crate) fn wrong(setting: Setting, reason: impl std::fmt::Display) -> Self {
        Error::Setting { setting, reason: reason.to_string() }
    }

    /// Refuses a latent that carries no scaling, as ComfyUI's do.
    #[cfg(feature = "torch")]
    pub(crate) fn check_carries_scaling(origin: Origin, path: &std::path::Path) -> Result<()> {
        if origin == Origin::Plain { Ok(()) } else { Err(Error::Unscaled(path.to_owned())) }
    }
}

#[cfg(feature = "torch")]
impl From<tilewright_prices::Error> for Error {
    fn from(error: tilewright_prices::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl From<tilewright_models::Error> for Error {
    fn from(error: tilewright_models::Error) -> Self {
        tilewright_prices::Error::from(error).into()
    }
}

#[cfg(feature = "torch")]
impl From<tilewright_torch::Error> for Error {
    fn from(error: tilewright_torch::Error) -> Self {
        Error::Engine(error.into())
    }
}

#[cfg(feature = "torch")]
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Error::Engine(error.into())
    }
}

impl From<SamplingError> for Error {
    fn from(error: SamplingError) -> Self {
        let setting = match error {
            SamplingError::Steps(_) | SamplingError::NotFinite { .. } => Setting::Steps,
            SamplingError::NoStep { .. } | SamplingError::Strength(_) => Setting::Denoise,
            SamplingError::Shift(_) => Setting::Shift,
            SamplingError::Scheduler { .. } => Setting::Scheduler,
            SamplingError::Span { .. } => Setting::Span,
            SamplingError::NotANumber(_)
            | SamplingError::TooFew(_)
            | SamplingError::OutOfRange { .. }
            | SamplingError::Rises { .. } => Setting::Sigmas,
        };
        Error::wrong(setting, error)
    }
}
