//! `tilewright policy …`, and the policy that a decode is given. One module per verb.

mod bench;
mod check;
mod diff;
mod inspect;
mod list;
mod replay;
mod simulate;
mod table;

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use tilewright_plan::{Recorder, bytes};
use tilewright_policy::{Admission, Admitted, CacheDir, Limits, PolicyError, PolicyHost};

use crate::{
    args,
    failure::{Failure, Outcome},
    tell::tell,
};

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Sandbox { .. } => Failure::Work(error.into()),
            _ => Failure::Input(error.into()),
        }
    }
}

/// Loads a policy by name or file and puts it to work with the user's settings, listened to where a full record is wanted.
pub fn configured(name_or_file: &str, settings: &[(String, String)], recording: &args::Recording) -> Outcome<Recorder> {
    let policy = admitted(&host()?, name_or_file, settings)?.policy;
    Ok(Recorder::new(Box::new(policy), recording.is_full()))
}

/// Puts a policy to work, a file after it has passed the gate; says so where it does not pass.
pub fn admitted(host: &PolicyHost, name_or_file: &str, settings: &[(String, String)]) -> Result<Admitted, PolicyError> {
    let admitted = host.admit(name_or_file, settings, admission())?;
    if let Some(warning) = admitted.warning() {
        tell!("warning: {warning}");
    }
    Ok(admitted)
}

/// What is asked of policies from files before they are put to work.
fn admission() -> Admission {
    Admission::default()
}

fn host() -> Outcome<PolicyHost> {
    Ok(PolicyHost::new(Limits::default(), &CacheDir::User)?)
}

/// What the verbs of `tilewright policy` do.
pub fn run(command: &args::Policy) -> Outcome {
    match command {
        args::Policy::List { json } => list::run(*json),
        args::Policy::Bench(arguments) => bench::run(arguments),
        args::Policy::Inspect { policy, json } => inspect::run(policy, *json),
        args::Policy::Replay(replay) => replay::run(replay),
        args::Policy::Simulate(simulate) => simulate::run(simulate),
        args::Policy::Table(table) => table::run(table),
        args::Policy::Check(arguments) => check::run(arguments),
        args::Policy::Diff(arguments) => diff::run(arguments),
    }
}

/// A file that is read whole, as far as that is reasonable.
fn bounded(path: &Path, most: usize) -> Outcome<Vec<u8>> {
    let unreadable = |error| Failure::input(format!("{}: can't be read: {error}", path.display()));
    let mut text = Vec::new();
    File::open(path).map_err(unreadable)?.take(most as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
    match text.len() > most {
        true => Err(Failure::input(format!("{}: larger than {}", path.display(), bytes::display(most as u64)))),
        false => Ok(text),
    }
}

/// Prints a report as JSON.
fn print(report: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}
