//! `tilewright encode`: a picture or a clip to a latent's file, and what was decided to tables.

mod clip;
mod latent_file;
mod picture;
mod source;

use std::path::{Path, PathBuf};

use tilewright_decode::SHARE_OF_FREE;
use tilewright_engine::{Error, Machine, Unfinished};
use tilewright_models::{Checkpoint, Identity, Kind, Scaling};
use tilewright_plan::Recorder;

use crate::{
    args::Encode,
    failure::{Failure, Outcome},
    history::Trials,
    report::{keep, print_json},
};
use latent_file::LatentFile;

/// Encodes as asked: pictures or a clip, as the VAE has it.
pub fn run(arguments: &Encode) -> Outcome {
    arguments.record.check()?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    match Identity::of(&Checkpoint::open(&arguments.vae)?).kind {
        Kind::VideoAutoencoder => clip::run(arguments),
        _ => picture::run(arguments),
    }
}

/// Where the latent goes; it has been found writable if anything will be written.
fn output(arguments: &Encode) -> Outcome<(PathBuf, LatentFile)> {
    let input = &arguments.input;
    let named = || Path::new(input.file_stem().unwrap_or(input.as_os_str())).with_extension("latent");
    let path = arguments.output.clone().unwrap_or_else(named);
    let output = LatentFile::new(&path)?;
    if !arguments.dry_run {
        output.check()?;
    }
    Ok((path, output))
}

/// The scaling to apply, where that was asked for; what to do where none is known is `advice`.
fn scaling(arguments: &Encode, output: &LatentFile, known: Option<Scaling>, advice: &str) -> Outcome<Option<Scaling>> {
    if !arguments.scaled {
        return Ok(None);
    }
    if output.kind == latent_file::Kind::ComfyUi {
        return Err(Failure::input(format!(
            "{}: a ComfyUI latent carries no scaling: leave --scaled out, or write .safetensors",
            output.path().display()
        )));
    }
    let unknown = || Failure::input(format!("{}: no scaling is known of this VAE: {advice}", arguments.vae.display()));
    known.ok_or_else(unknown).map(Some)
}

/// The limit asked for, or else a share of what is free.
fn limit(arguments: &Encode, machine: &Machine) -> u64 {
    arguments.memory_limit.unwrap_or((machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64)
}

/// Keeps and shows how far an encode came that did not end.
fn unfinished(arguments: &Encode, history: &mut Trials, planner: &mut Recorder, unfinished: Unfinished) -> Failure {
    let Unfinished { error, record } = unfinished;
    let kept = record.as_deref().map_or(Ok(()), |record| {
        // What the user ended, or could not be read, says nothing of the plan.
        if !matches!(error, Error::Interrupted | Error::Source(_)) {
            history.keep(record);
        }
        keep(&arguments.record, record, planner)?;
        if arguments.json { print_json(record) } else { Ok(()) }
    });
    kept.err().unwrap_or_else(|| error.into())
}
