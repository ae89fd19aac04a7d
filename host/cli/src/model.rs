//! The VAE of a command.

use std::path::{Path, PathBuf};

use tilewright_engine::{Error, Overrides, Refusal};
use tilewright_media::Rate;
use tilewright_pipeline::{Error as PipelineError, Model, published_rate};

use crate::failure::{Failure, Outcome};

/// A VAE's folder within that of a pipeline.
const FOLDERS: [&str; 1] = ["vae"];

/// The VAE's file: the path itself, or the file in a folder as diffusers saves it.
pub fn find(path: &Path) -> Outcome<PathBuf> {
    Ok(tilewright_models::find_part(path, &FOLDERS).map_err(tilewright_models::Error::from)?)
}

/// Opens a VAE with the settings from the command line.
pub fn open(path: &Path, overrides: Overrides) -> Outcome<Model> {
    Model::open(path, overrides).map_err(|error| match error {
        PipelineError::Engine(Error::Refused(Refusal::NothingToOverride { .. })) => Failure::input(
            "--family, --scaling-factor and --shift-factor are for image VAEs: a video VAE's scaling is one per channel, from its config.json or as published",
        ),
        error => error.into(),
    })
}

/// The frame rate of a clip; none for pictures.
pub fn rate(given: Option<Rate>, model: &Model) -> Outcome<Option<Rate>> {
    if !model.is_video() {
        return Ok(None);
    }
    let rate = given.or_else(|| Rate::new(published_rate(&model.facts().family), 1));
    rate.ok_or_else(|| Failure::work("no frame rate")).map(Some)
}
