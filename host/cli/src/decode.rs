//! `tilewright decode`: from arguments to jobs, and from their results to files and tables.

mod decoder;

use std::path::Path;

use tilewright_media::{Kind, Options, Output};
use tilewright_outputs::folder_of;
use tilewright_pipeline::Model;

use crate::{
    args::Decode,
    batch::Batch,
    failure::{Failure, Outcome},
    files,
    inputs::{Input, list_inputs},
    model,
    naming::Naming,
};
use decoder::Decoder;

/// Endings of latents in a folder.
const LATENTS: [&str; 3] = ["latent", "safetensors", "pt"];

/// Default endings of outputs.
const PICTURE: &str = "png";
const CLIP: &str = "mp4";

/// Decodes pictures or clips, depending on the VAE.
pub fn run(mut arguments: Decode) -> Outcome {
    arguments.vae = model::find(&arguments.vae)?;
    let arguments = &arguments;
    let inputs = list_inputs(&arguments.latents, "latents", Some(&LATENTS))?;
    let several = arguments.latents.len() > 1 || arguments.latents.iter().any(|path| path.is_dir());
    let naming = Naming::of(arguments.output.as_deref(), &inputs, several)?;
    let beside = [("--preview", &arguments.clip.preview), ("--explain-image", &arguments.explain_image)];
    let beside = beside.map(|(option, path)| (option, path.as_deref()));
    if let Some((option, _)) = beside.iter().find(|(_, path)| several && path.is_some()) {
        return Err(Failure::input(format!("{option} is one file: decode one latent with it")));
    }
    let aside = arguments.report.goes_aside(arguments.output.as_deref(), "picture")?;
    let report = (&arguments.report, arguments.report.shown(several, aside));
    let roles = inputs.iter().fold(files::roles(), |roles, input| input.kept_by(roles, "the latent"));
    let mut batch = Batch::new(roles, naming, (&arguments.vae, &arguments.run.governed.policy), report, &beside)?;
    let is_clip = Model::is_video_file(&arguments.vae)?;
    if !is_clip {
        batch.naming = batch.naming.of_files();
    }
    // A clip's name may still change with its frames.
    let ending = arguments.writing.format.map_or(if is_clip { CLIP } else { PICTURE }, |format| format.ending());
    batch.naming.check(&inputs, ending)?;
    if !batch.naming.is_numbered() {
        batch.check(&inputs.iter().map(|input| batch.naming.path(input, ending)).collect::<Vec<_>>())?;
    }
    arguments.report.record.check()?;
    let ended = batch.run(&inputs, "decoded", || Decoder::open(arguments, &batch, &inputs, is_clip));
    // Inputs that were decoded count, not the others.
    arguments.report.profile.finish(aside || arguments.report.json, ended)
}

/// The output of an input's pictures or clips.
fn output(arguments: &Decode, batch: &Batch, input: &Input, kind: Kind, ending: &str) -> Outcome<Output> {
    let options = arguments.writing.options();
    let ending = options.format.map_or(ending, |format| format.ending());
    let (path, numbering) = (batch.naming.path(input, ending), batch.naming.numbering(input));
    writable(batch, &path, kind, Options { numbering, ..options })
}

/// An output that can be written.
fn writable(batch: &Batch, path: &Path, kind: Kind, options: Options) -> Outcome<Output> {
    Ok(match &batch.naming {
        // A dry run does not make the folder.
        Naming::Inside(folder) if batch.dry_run && folder_of(path) == folder.as_path() => {
            Output::ahead(path, kind, options)?
        }
        _ => Output::with(path, kind, options)?,
    })
}
