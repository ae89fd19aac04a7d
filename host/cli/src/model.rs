//! The VAE of a command.

use std::path::Path;

use tilewright_engine::{Error, Overrides};
use tilewright_pipeline::{Error as PipelineError, Model};

use crate::failure::{Failure, Outcome};

/// Opens a VAE with the settings from the command line.
pub fn open(path: &Path, overrides: Overrides) -> Outcome<Model> {
    Model::open(path, overrides).map_err(|error| match error {
        PipelineError::Engine(Error::NothingToOverride { .. }) => Failure::input(
            "--family, --scaling-factor and --shift-factor are for image VAEs: a video VAE's scaling is one per channel, from its config.json or as published",
        ),
        error => error.into(),
    })
}
