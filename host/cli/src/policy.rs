//! `tilewright policy …`, and the policy that a decode is given. One module per verb.

mod build;
mod inspect;
mod list;
mod new;

use std::io::{self, Write};

use tilewright_plan::Planner;
use tilewright_policy::{CacheDir, PolicyError, PolicyHost};

use crate::{
    args::{self, PolicyGrants},
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
pub fn configured(
    name_or_file: &str,
    settings: &[(String, String)],
    grants: PolicyGrants,
) -> Outcome<Box<dyn Planner>> {
    Ok(Box::new(host(grants)?.find(name_or_file)?.configure(settings)?))
}

/// A host whose policies may use what is granted.
pub fn host(grants: PolicyGrants) -> Outcome<PolicyHost> {
    Ok(PolicyHost::new(grants.limits(), &CacheDir::User)?)
}

/// What the verbs of `tilewright policy` do.
pub fn run(command: &args::Policy) -> Outcome {
    match command {
        args::Policy::List { json } => list::run(*json),
        args::Policy::Inspect { policy, json, grants } => inspect::run(policy, *json, *grants),
        args::Policy::New { name, lang, into, json } => new::run(name, *lang, into, *json),
        args::Policy::Build { project, output, json, grants } => build::run(project, output.as_deref(), *json, *grants),
    }
}

/// Prints a report as JSON.
fn print(report: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}
