//! Errors.

use std::path::PathBuf;

use thiserror::Error;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a decode can't begin. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A file is unsound or of the wrong kind, or the device failed.
    #[error(transparent)]
    Engine(#[from] tilewright_engine::Error),
    /// ComfyUI's latents are in the autoencoder's own space already.
    #[error("{}: a ComfyUI latent carries no scaling: leave --scaled out", .0.display())]
    Unscaled(PathBuf),
    /// Nobody knows the scaling.
    #[error("{}: no scaling is known of this VAE: {advice}", path.display())]
    NoScaling {
        /// The VAE's file.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
    },
    /// What is for pictures was asked of clips.
    #[error(
        "{}: a video VAE's scaling is one per channel, from its config.json or as published: leave family, scaling factor and shift factor out",
        .0.display()
    )]
    ForPictures(PathBuf),
}

impl From<tilewright_models::Error> for Error {
    fn from(error: tilewright_models::Error) -> Self {
        Error::Engine(error.into())
    }
}
