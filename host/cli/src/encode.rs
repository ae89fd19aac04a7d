//! `tilewright encode`: from pictures or clips to latent files, and from decisions to tables.

mod encoder;

use tilewright_pipeline::{LatentKind, LatentOutput, Model};

use crate::{
    args::Encode,
    batch::Batch,
    failure::Outcome,
    files,
    inputs::{Input, list_inputs},
    model,
    naming::Naming,
};
use encoder::Encoder;

/// Endings of pictures in a folder.
const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Encodes pictures or clips, depending on the VAE.
pub fn run(mut arguments: Encode) -> Outcome {
    arguments.vae = model::find(&arguments.vae)?;
    let arguments = &arguments;
    // Checked before standard input is read.
    let aside = arguments.report.goes_aside(arguments.output.as_deref(), "latent")?;
    let has_folder = arguments.inputs.iter().any(|path| path.is_dir());
    // For a video VAE, a folder is one clip.
    let several_inside = has_folder && !Model::is_video_file(&arguments.vae)?;
    let inputs = list_inputs(&arguments.inputs, "pictures", several_inside.then_some(&PICTURES))?;
    let several = arguments.inputs.len() > 1 || several_inside;
    let naming = Naming::of(arguments.output.as_deref(), &inputs, several)?.of_files();
    let report = (&arguments.report, arguments.report.shown(several, aside));
    let roles = inputs.iter().fold(files::roles(), |roles, input| input.kept_by(roles, "the input"));
    let batch = Batch::new(roles, naming, (&arguments.vae, &arguments.run.governed.policy), report, &[])?;
    let ending = arguments.format.unwrap_or(LatentKind::ComfyUi).ending();
    inputs.iter().try_for_each(|input| batch.check(&[batch.naming.path(input, ending)]))?;
    arguments.report.record.check()?;
    batch.naming.check(&inputs, ending)?;
    let ended = batch.run(&inputs, "encoded", || Encoder::open(arguments, &batch, &inputs));
    arguments.report.profile.finish(aside || arguments.report.json, ended)
}

/// The latent file of an input.
fn output(arguments: &Encode, batch: &Batch, input: &Input) -> Outcome<LatentOutput> {
    let Encode { format, no_clobber, .. } = *arguments;
    let path = batch.naming.path(input, format.unwrap_or(LatentKind::ComfyUi).ending());
    // In a dry run, no folder was made.
    let ahead = batch.dry_run && matches!(batch.naming, Naming::Inside(_));
    let output = LatentOutput::numbered(&path, format, no_clobber, batch.naming.numbering(input), ahead)?;
    batch.check(output.name().as_slice())?;
    Ok(output)
}
