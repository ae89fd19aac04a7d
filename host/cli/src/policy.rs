//! `tilewright policy …`, and the policy that a decode is given. One module per verb.

mod bench;
mod inspect;
mod list;

use std::io::{self, Write};

use tilewright_plan::Planner;
use tilewright_policy::{CacheDir, Limits, PolicyError, PolicyHost};

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
    Ok(Box::new(host()?.find(name_or_file)?.configure(settings)?))
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
    }
}

/// Prints a report as JSON.
fn print(report: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}
