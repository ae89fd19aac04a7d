//! `tilewright decode`: arguments to a job, and its result to files and tables.

mod clip;
mod delivery;
mod picture;
mod pinned;

use std::path::Path;

use tilewright_decode::SHARE_OF_FREE;
use tilewright_engine::Machine;
use tilewright_models::{Checkpoint, Identity, Kind, Latent, Origin, Scaling};

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

/// Undoes the scaling where the latent carries it; what to do where none is known is `advice`.
fn unscale(latent: &mut Latent, scaling: Option<Scaling>, file: &Path, advice: &str) -> Outcome {
    if latent.origin != Origin::Plain {
        return Err(Failure::input(format!(
            "{}: a ComfyUI latent carries no scaling: leave --scaled out",
            latent.path.display()
        )));
    }
    let scaling = scaling
        .ok_or_else(|| Failure::input(format!("{}: no scaling is known of this VAE: {advice}", file.display())))?;
    Ok(latent.unscale(&scaling)?)
}
