//! `tilewright encode`: from pictures or clips to latent files, and from decisions to tables.

mod clip;
mod latent_file;
mod picture;
mod source;

use std::{cell::RefCell, fs, path::Path};

use tilewright_decode::SHARE_OF_FREE;
use tilewright_engine::{Error, Machine, MemoryLimit, Unfinished};
use tilewright_media::{STANDARD, Texts, read_texts};
use tilewright_models::{Checkpoint, Identity, Kind, Scaling};
use tilewright_outputs::Roles;
use tilewright_plan::Recorder;

use crate::{
    args::Encode,
    batch::work_through,
    failure::{Failure, Outcome},
    files,
    history::Trials,
    inputs::{Input, listed},
    naming::Naming,
    printer,
    report::{Shown, keep, print_json},
};
use latent_file::LatentFile;

pub use latent_file::Kind as LatentKind;

/// Endings of pictures in a folder.
const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Encodes pictures or clips, depending on the VAE.
pub fn run(arguments: &Encode) -> Outcome {
    // Checked before standard input is read.
    Plan::check_shown(arguments)?;
    let is_clip = || -> Outcome<bool> {
        Ok(matches!(Identity::of(&Checkpoint::open(&arguments.vae)?).kind, Kind::VideoAutoencoder))
    };
    let has_folder = arguments.inputs.iter().any(|path| path.is_dir());
    // For a video VAE, a folder is one clip.
    let several_inside = has_folder && !is_clip()?;
    let inputs = listed(&arguments.inputs, "pictures", several_inside.then_some(&PICTURES))?;
    let several = arguments.inputs.len() > 1 || several_inside;
    let plan = Plan::new(arguments, &inputs, several)?;
    arguments.record.check()?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    let is_clip = is_clip()?;
    plan.naming.check(&inputs, plan.ending())?;
    let made = if arguments.dry_run { None } else { plan.naming.make_folder()? };
    let done = match is_clip {
        true => clip::Clips::open(arguments, &plan, &inputs)
            .and_then(|mut clips| work_through(&mut clips, &inputs, several, "encoded")),
        false => picture::Pictures::open(arguments, &plan, &inputs)
            .and_then(|mut pictures| work_through(&mut pictures, &inputs, several, "encoded")),
    };
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
        match aside && arguments.json {
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
        roles = files::reads_policy(roles, &arguments.policy);
        roles = files::check_file(roles, "--record", arguments.record.file())?;
        if aside {
            roles = roles.occupies_open("-o", "standard output", printer::raw_stdout());
            roles.check()?;
        }
        let shown = Shown { json: arguments.json, explain: arguments.explain, several, aside };
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
    fn output(&self, input: &Input) -> Outcome<LatentFile> {
        let Encode { format, no_clobber, dry_run, .. } = self.arguments;
        let path = self.naming.path(input, self.ending());
        // In a dry run, no folder was made.
        let ahead = *dry_run && matches!(self.naming, Naming::Inside(_));
        let output = LatentFile::new(&path, *format, *no_clobber, ahead)?;
        if let Some(name) = output.name() {
            self.check(&name)?;
        }
        Ok(output)
    }
}

/// The texts of an input, such as its workflow, for its latent.
fn texts(input: &Input) -> Texts {
    tilewright_decode::carried(read_texts(&input.path))
}

/// The scaling to apply, if it was asked for; `advice` is the remedy if none is known.
fn scaling(arguments: &Encode, output: &LatentFile, known: Option<Scaling>, advice: &str) -> Outcome<Option<Scaling>> {
    if !arguments.scaled {
        return Ok(None);
    }
    if output.kind == LatentKind::ComfyUi {
        return Err(Failure::input(format!(
            "{}: a ComfyUI latent carries no scaling: leave --scaled out, or write .safetensors",
            output.path().display()
        )));
    }
    let unknown = || Failure::input(format!("{}: no scaling is known of this VAE: {advice}", arguments.vae.display()));
    known.ok_or_else(unknown).map(Some)
}

/// The given limit, or else a share of the free memory.
fn limit(arguments: &Encode, machine: &Machine) -> MemoryLimit {
    let free = (machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64;
    MemoryLimit { bytes: arguments.memory_limit.unwrap_or(free), counts_weights: arguments.count_weights }
}

/// Records and shows an encode that did not end.
fn unfinished(
    arguments: &Encode,
    shown: Shown,
    history: &mut Trials,
    planner: &mut Recorder,
    unfinished: Unfinished,
) -> Failure {
    let Unfinished { error, record } = unfinished;
    let kept = record.as_deref().map_or(Ok(()), |record| {
        // An interruption or an unreadable source says nothing of the plan.
        if !matches!(error, Error::Interrupted | Error::Source(_)) {
            history.keep(record);
        }
        keep(&arguments.record, record, planner)?;
        if arguments.json { print_json(shown, record, &[]) } else { Ok(()) }
    });
    kept.err().unwrap_or_else(|| error.into())
}
