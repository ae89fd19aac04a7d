//! Work on several files in order: a failed file does not stop those after it.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
};

use tilewright_media::STANDARD;
use tilewright_outputs::{OutputRefused, Roles};

use crate::{
    args::ReportOptions,
    failure::{Failure, Outcome},
    files,
    inputs::Input,
    naming::Naming,
    printer,
    report::Shown,
    signals,
    tell::tell,
};

/// The files that a VAE's command reads and writes, and the form of its report.
pub struct Batch {
    pub naming: Naming,
    pub shown: Shown,
    pub dry_run: bool,
    /// All inputs, the files written beside the outputs, and the outputs of the inputs so far.
    roles: RefCell<Roles>,
}

impl Batch {
    /// Refuses an output that would replace an input: `roles` has those of the command alone.
    pub fn new(
        roles: Roles,
        naming: Naming,
        (vae, policy): (&Path, &str),
        (report, shown): (&ReportOptions, Shown),
        beside: &[(&str, Option<&Path>)],
    ) -> Outcome<Self> {
        let mut roles = files::reads_policy(files::reads_vae(roles, vae), policy);
        for (option, path) in beside.iter().chain(&[("--record", report.record.file())]) {
            roles = files::check_file(roles, option, *path)?;
        }
        roles = report.begin(roles)?;
        if shown.aside {
            roles = roles.occupies_open("-o", "standard output", printer::raw_stdout());
            roles.check()?;
        }
        Ok(Self { naming, shown, dry_run: report.dry_run, roles: RefCell::new(roles) })
    }

    /// Compares outputs with each other, with all inputs, and with the outputs of the inputs
    /// before.
    pub fn check(&self, files: &[PathBuf]) -> Outcome {
        Ok(self.roles_with(files).check()?)
    }

    /// Remembers the final names of written files, so that no later input's output replaces them:
    /// two names lead to one file through links, and in a folder that does not tell upper case from
    /// lower case. Names with `{n}` are free ones.
    pub fn keep(&self, files: &[PathBuf]) {
        if !self.naming.is_numbered() {
            let roles = self.roles_with(files);
            *self.roles.borrow_mut() = roles;
        }
    }

    fn roles_with(&self, files: &[PathBuf]) -> Roles {
        let files = files.iter().filter(|file| file.as_os_str() != STANDARD);
        files.fold(self.roles.borrow().clone(), |roles, file| roles.occupies("-o", file))
    }

    /// Works through the inputs, as [`work_through`], in a folder that is made for the outputs.
    pub fn run<W: Work>(&self, inputs: &[Input], done: &str, open: impl FnOnce() -> Outcome<W>) -> Outcome {
        let made = if self.dry_run { None } else { self.naming.make_folder()? };
        let ended = open().and_then(|mut work| work_through(&mut work, inputs, self.shown.several, done));
        if let Some(folder) = made {
            // Succeeds only if the folder is still empty.
            let _ = fs::remove_dir(folder);
        }
        ended
    }
}

/// Work on one file at a time.
pub trait Work {
    /// Works on a file.
    fn work(&mut self, input: &Input) -> Outcome;
}

/// Works through the files. The failure of a single file is the command's; of several files, each
/// failure is printed at once and the command fails with their number. Only an output that is
/// another file of the same command ends the command there. `done` is the word for the work, such
/// as `decoded`.
fn work_through(work: &mut dyn Work, inputs: &[Input], several: bool, done: &str) -> Outcome {
    if !several {
        return inputs.iter().try_for_each(|input| work.work(input).map_err(|failure| input.rename(failure)));
    }
    let (mut failed, count) = (Vec::new(), inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        tell!("{} of {count}: {}", index + 1, input.shown);
        let outcome = work.work(input);
        let is_clash = matches!(&outcome, Err(Failure::Input(error)) if error.is::<OutputRefused>());
        match outcome.map_err(|failure| input.rename(failure)) {
            Ok(()) => {}
            Err(failure) if is_clash => {
                let before = index - failed.len();
                return Err(failure.and(format!("{} is left; {before} of {count} were {done}", input.shown)));
            }
            Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
            Err(failure) if signals::is_received() => {
                return Err(failure.and(format!("{} of {count} were {done}", index - failed.len())));
            }
            Err(failure) => {
                tell!("failed: {failure}");
                failed.push(input.shown.clone());
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::work(format!("{} of {count} could not be {done}: {}", failed.len(), failed.join(", "))))
}
