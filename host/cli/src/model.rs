//! The VAE of a command.

use std::path::Path;

use tilewright_engine::Overrides;
use tilewright_pipeline::{Error, Model};

use crate::failure::{Failure, Outcome};

/// Opens a VAE with the settings from the command line.
pub fn open(path: &Path, overrides: Overrides) -> Outcome<Model> {
    Model::open(path, overrides).map_err(|error| match error {
        Error::ForPictures(_) => Failure::input(
            "--family, --scaling-factor and --shift-factor are for image VAEs: a video VAE's scaling is one per channel, from its config.json or as published",
        ),
        error => error.into(),
    })
}
