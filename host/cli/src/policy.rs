//! `tilewright policy …`, and the policy that a decode is given. One module per verb.

mod check;
mod diff;
mod inspect;
mod list;

use std::io::{self, Write};

use tilewright_plan::Planner;
use tilewright_policy::{Admission, Admitted, CacheDir, Limits, PolicyError, PolicyHost};

use crate::{
    args,
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
    Ok(Box::new(admitted(&host()?, name_or_file, settings)?.policy))
}

/// Puts a policy to work, a file after it has passed the gate; says so where it does not pass.
pub fn admitted(host: &PolicyHost, name_or_file: &str, settings: &[(String, String)]) -> Result<Admitted, PolicyError> {
    let admitted = host.admit(name_or_file, settings, admission())?;
    if let Some(warning) = admitted.warning() {
        eprintln!("warning: {warning}");
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
        args::Policy::Inspect { policy, json } => inspect::run(policy, *json),
        args::Policy::Check(arguments) => check::run(arguments),
        args::Policy::Diff(arguments) => diff::run(arguments),
    }
}

/// Prints a report as JSON.
fn print(report: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}
