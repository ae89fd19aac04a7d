//! `tilewright encode`: from pictures or clips to latent files, and from decisions to tables.

mod encoder;

use std::{cell::RefCell, fs, path::Path};

use tilewright_media::STANDARD;
use tilewright_outputs::Roles;
use tilewright_pipeline::{LatentKind, LatentOutput, Model};

use crate::{
    args::Encode,
    batch::work_through,
    failure::{Failure, Outcome},
    files,
    inputs::{Input, list_inputs},
    model,
    naming::Naming,
    printer,
    report::Shown,
};
use encoder::Encoder;

/// Endings of pictures in a folder.
const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Encodes pictures or clips, depending on the VAE.
pub fn run(mut arguments: Encode) -> Outcome {
    arguments.vae = model::find(&arguments.vae)?;
    let arguments = &arguments;
    // Checked before standard input is read.
    Plan::check_shown(arguments)?;
    let has_folder = arguments.inputs.iter().any(|path| path.is_dir());
    // For a video VAE, a folder is one clip.
    let several_inside = has_folder && !Model::is_video_file(&arguments.vae)?;
    let inputs = list_inputs(&arguments.inputs, "pictures", several_inside.then_some(&PICTURES))?;
    let several = arguments.inputs.len() > 1 || several_inside;
    let plan = Plan::new(arguments, &inputs, several)?;
    arguments.report.record.check()?;
    plan.naming.check(&inputs, plan.ending())?;
    let made = if arguments.report.dry_run { None } else { plan.naming.make_folder()? };
    let done = Encoder::open(arguments, &plan, &inputs)
        .and_then(|mut encoder| work_through(&mut encoder, &inputs, several, "encoded"));
    if let Some(folder) = made {
        // Succeeds only if the folder is still empty.
        let _ = fs::remove_dir(folder);
    }
    done
}

/// The files that are read and written, and the form of the report.
struct Plan<'a> {
    arguments: &'a Encode,
    naming: Naming,
    /// All inputs, the files written beside the outputs, and the outputs of the inputs so far.
    roles: RefCell<Roles>,
    shown: Shown,
}

impl<'a> Plan<'a> {
    fn check_shown(arguments: &Encode) -> Outcome<bool> {
        let aside = arguments.output.as_ref().is_some_and(|path| path.as_os_str() == STANDARD);
        match aside && arguments.report.json {
            true => Err(Failure::input(
                "-o - and --json: standard output is the latent or the record: write one into a file",
            )),
            false => Ok(aside),
        }
    }

    /// Refuses arguments that can't be carried out, before anything is written.
    fn new(arguments: &'a Encode, inputs: &[Input], several: bool) -> Outcome<Self> {
        let aside = Self::check_shown(arguments)?;
        let naming = Naming::of(arguments.output.as_deref(), inputs, several)?.of_files();
        let mut roles = inputs.iter().fold(files::roles(), |roles, input| input.kept_by(roles, "the input"));
        roles = files::reads_vae(roles, &arguments.vae);
        roles = files::reads_policy(roles, &arguments.governed.policy);
        roles = files::check_file(roles, "--record", arguments.report.record.file())?;
        if aside {
            roles = roles.occupies_open("-o", "standard output", printer::raw_stdout());
            roles.check()?;
        }
        let shown = Shown { json: arguments.report.json, explain: arguments.report.explain, several, aside };
        let plan = Self { arguments, naming, roles: RefCell::new(roles), shown };
        inputs.iter().try_for_each(|input| plan.check(&plan.naming.path(input, plan.ending())))?;
        Ok(plan)
    }

    fn ending(&self) -> &'static str {
        self.arguments.format.unwrap_or(LatentKind::ComfyUi).ending()
    }

    fn check(&self, path: &Path) -> Outcome {
        if path.as_os_str() == STANDARD {
            return Ok(());
        }
        Ok(self.roles.borrow().clone().occupies("-o", path).check()?)
    }

    /// Remembers the name of a written file, so that no later input's output replaces it: two names
    /// lead to one file through links, and in a folder that does not tell upper case from lower
    /// case.
    fn keep_name(&self, path: &Path) {
        if path.as_os_str() != STANDARD {
            let roles = self.roles.borrow().clone().occupies("-o", path);
            *self.roles.borrow_mut() = roles;
        }
    }

    /// The latent file of an input.
    fn output(&self, input: &Input) -> Outcome<LatentOutput> {
        let Encode { format, no_clobber, .. } = self.arguments;
        let path = self.naming.path(input, self.ending());
        // In a dry run, no folder was made.
        let ahead = self.arguments.report.dry_run && matches!(self.naming, Naming::Inside(_));
        let numbering = self.naming.numbering(input);
        let output = LatentOutput::numbered(&path, *format, *no_clobber, numbering, ahead)?;
        if let Some(name) = output.name() {
            self.check(&name)?;
        }
        Ok(output)
    }
}
