//! `tilewright decode`: from arguments to jobs, and from their results to files and tables.

mod decoder;

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
};

use tilewright_media::{Kind, Options, Output, STANDARD, Shape};
use tilewright_outputs::{Roles, folder_of};
use tilewright_pipeline::Model;

use crate::{
    args::Decode,
    batch::work_through,
    failure::{Failure, Outcome},
    files,
    inputs::{Input, list_inputs},
    model,
    naming::Naming,
    printer,
    report::Shown,
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
    let mut plan = Plan::new(arguments, &inputs, several)?;
    let is_clip = Model::is_video_file(&arguments.vae)?;
    if !is_clip {
        plan.naming = plan.naming.of_files();
    }
    let ending = arguments.writing.format.map_or(if is_clip { CLIP } else { PICTURE }, |format| format.ending());
    plan.check_names(&inputs, ending)?;
    arguments.report.record.check()?;
    let made = if arguments.report.dry_run { None } else { plan.naming.make_folder()? };
    let done = Decoder::open(arguments, &plan, &inputs, is_clip)
        .and_then(|mut decoder| work_through(&mut decoder, &inputs, several, "decoded"));
    if let Some(folder) = made {
        // Succeeds only if the folder is still empty.
        let _ = fs::remove_dir(folder);
    }
    done
}

/// The files that are read and written, and the form of the report.
struct Plan {
    naming: Naming,
    /// All inputs, the files written beside the outputs, and the outputs of the inputs so far.
    roles: RefCell<Roles>,
    options: Options,
    shown: Shown,
    dry_run: bool,
}

impl Plan {
    /// Refuses arguments that can't be carried out, before any file is read or written.
    fn new(arguments: &Decode, inputs: &[Input], several: bool) -> Outcome<Self> {
        let naming = Naming::of(arguments.output.as_deref(), inputs, several)?;
        let (clip, drawing) = (&arguments.clip, arguments.explain_image.as_deref());
        let one_file = [("--preview", clip.preview.is_some()), ("--explain-image", drawing.is_some())];
        if let Some((option, _)) = one_file.iter().find(|(_, given)| several && *given) {
            return Err(Failure::input(format!("{option} is one file: decode one latent with it")));
        }
        let aside = arguments.output.as_ref().is_some_and(|path| path.as_os_str() == STANDARD);
        if aside && arguments.report.json {
            return Err(Failure::input(
                "-o - and --json: standard output is the picture or the record: write one into a file",
            ));
        }
        let mut roles = inputs.iter().fold(files::roles(), |roles, input| input.kept_by(roles, "the latent"));
        roles = files::reads_vae(roles, &arguments.vae);
        roles = files::reads_policy(roles, &arguments.governed.policy);
        roles = files::check_file(roles, "--preview", clip.preview.as_deref())?;
        roles = files::check_file(roles, "--explain-image", drawing)?;
        roles = files::check_file(roles, "--record", arguments.report.record.file())?;
        if aside {
            roles = roles.occupies_open("-o", "standard output", printer::raw_stdout());
            roles.check()?;
        }
        let shown = Shown { json: arguments.report.json, explain: arguments.report.explain, several, aside };
        let roles = RefCell::new(roles);
        Ok(Self { naming, roles, options: arguments.writing.options(), shown, dry_run: arguments.report.dry_run })
    }

    /// The output of an input's pictures or clips.
    fn output(&self, input: &Input, kind: Kind, ending: &str) -> Outcome<Output> {
        let ending = self.options.format.map_or(ending, |format| format.ending());
        let (path, numbering) = (self.naming.path(input, ending), self.naming.numbering(input));
        self.check_output(&path, kind, Options { numbering, ..self.options })
    }

    /// An output that can be written.
    fn check_output(&self, path: &Path, kind: Kind, options: Options) -> Outcome<Output> {
        Ok(match &self.naming {
            // A dry run does not make the folder.
            Naming::Inside(folder) if self.dry_run && folder_of(path) == folder.as_path() => {
                Output::ahead(path, kind, options)?
            }
            _ => Output::with(path, kind, options)?,
        })
    }

    /// Compares the outputs with all inputs and with each other; a clip's name may still change
    /// with its frames.
    fn check_names(&self, inputs: &[Input], ending: &str) -> Outcome {
        self.naming.check(inputs, ending)?;
        let paths = inputs.iter().map(|input| self.naming.path(input, ending));
        let named = paths.filter(|path| path.as_os_str() != STANDARD && !self.naming.is_numbered());
        Ok(named.fold(self.roles.borrow().clone(), |roles, path| roles.occupies("-o", &path)).check()?)
    }

    /// Checks the final names of all that will be written, also against the outputs of the inputs
    /// before.
    fn check(&self, output: &Output, shape: &Shape) -> Outcome {
        output.check(shape)?;
        if output.is_standard() {
            return Ok(());
        }
        Ok(self.with_files(output, shape).check()?)
    }

    /// Remembers the final names of written files, so that no later input's output replaces them.
    /// Names with `{n}` are free ones.
    fn keep_names(&self, output: &Output, shape: &Shape) {
        if !output.is_standard() && !output.is_numbered() {
            let roles = self.with_files(output, shape);
            *self.roles.borrow_mut() = roles;
        }
    }

    fn with_files(&self, output: &Output, shape: &Shape) -> Roles {
        let files: Vec<PathBuf> = output.files(shape);
        files.iter().fold(self.roles.borrow().clone(), |roles, file| roles.occupies("-o", file))
    }
}
