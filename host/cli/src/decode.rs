//! `tilewright decode`: arguments to a job, and its result to files and tables.

mod clip;
mod delivery;
mod picture;
mod pinned;

use std::path::Path;

use tilewright_decode::SHARE_OF_FREE;
use tilewright_engine::Machine;
use tilewright_models::{Checkpoint, Identity, Kind};

use crate::{
    args::Decode,
    failure::{Failure, Outcome},
};

/// Decodes as asked: pictures or clips, as the VAE has it.
pub fn run(arguments: &Decode) -> Outcome {
    distinct(arguments)?;
    arguments.record.check()?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    match Identity::of(&Checkpoint::open(&arguments.vae)?).kind {
        Kind::VideoAutoencoder => clip::run(arguments),
        _ => picture::run(arguments),
    }
}

/// What is written goes into files of their own.
fn distinct(arguments: &Decode) -> Outcome {
    let files: [(&str, Option<&Path>); 4] = [
        ("-o", arguments.output.as_deref()),
        ("--preview", arguments.clip.preview.as_deref()),
        ("--explain-image", arguments.explain_image.as_deref()),
        ("--record", arguments.record.file()),
    ];
    for (index, (name, path)) in files.iter().enumerate() {
        let same = files[..index].iter().find(|(_, other)| path.is_some() && other == path);
        if let (Some((other, _)), Some(path)) = (same, path) {
            return Err(Failure::input(format!(
                "{}: is given as {other} and as {name}: one file can't be both",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The limit asked for, or else a share of what is free.
fn limit(arguments: &Decode, machine: &Machine) -> u64 {
    arguments.memory_limit.unwrap_or((machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64)
}
