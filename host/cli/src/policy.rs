//! `tilewright policy …`, and the policy that a decode is given. One module per verb.

mod admission;
mod inspect;
mod keygen;
mod list;
mod pull;
mod push;
mod sign;
mod verify;

use std::{
    io::{self, Write},
    path::Path,
};

use tilewright_plan::Planner;
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, PolicyError, PolicyHost};

use crate::{
    args, config,
    failure::{Failure, Outcome},
};

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Sandbox { .. } => Failure::Work(error.into()),
            _ => Failure::Input(error.into()),
        }
    }
}

/// Loads a policy by name or file and puts it to work with the user's settings.
pub fn configured(name_or_file: &str, settings: &[(String, String)]) -> Outcome<Box<dyn Planner>> {
    Ok(Box::new(admitted(&host()?, name_or_file)?.configure(settings)?))
}

/// The one way from a name or file to a policy that is put to work: what ships is part of the program, and a file is let in by the
/// configuration. The bytes that were looked at are those that are loaded.
pub fn admitted(host: &PolicyHost, name_or_file: &str) -> Outcome<LoadedPolicy> {
    let config = config::current()?;
    if !PolicyHost::names_file(name_or_file) {
        return Ok(host.load_shipped(name_or_file)?);
    }
    let path = Path::new(name_or_file);
    let bytes = host.read_file(path)?;
    admission::signed(&config.policies, path, &bytes)?;
    Ok(host.load(name_or_file, &bytes)?)
}

fn host() -> Outcome<PolicyHost> {
    Ok(PolicyHost::new(Limits::default(), &CacheDir::User)?)
}

/// What the verbs of `tilewright policy` do.
pub fn run(command: &args::Policy) -> Outcome {
    match command {
        args::Policy::List { json } => list::run(*json),
        args::Policy::Inspect { policy, json } => inspect::run(policy, *json),
        args::Policy::Keygen(arguments) => keygen::run(arguments),
        args::Policy::Sign(arguments) => sign::run(arguments),
        args::Policy::Verify(arguments) => verify::run(arguments),
        args::Policy::Push(arguments) => push::run(arguments),
        args::Policy::Pull(arguments) => pull::run(arguments),
    }
}

/// Prints a report as JSON.
fn print(report: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}
