//! `tilewright policy …`, and the policy that a decode is given.

use std::io::{self, Write};

use tilewright_plan::{Planner, bytes};
use tilewright_policy::{CacheDir, Inspection, Limits, PolicyError, PolicyHost, shipped_names};

use crate::{
    args,
    failure::{Failure, Outcome},
    table,
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

/// Lists policies or looks into one.
pub fn run(command: &args::Policy) -> Outcome {
    let mut stdout = io::stdout().lock();
    match command {
        args::Policy::List { json } => {
            let host = host()?;
            let policies: Vec<Inspection> = shipped_names()
                .map(|name| Ok(host.load_shipped(name)?.inspection().clone()))
                .collect::<Outcome<_>>()?;
            if *json {
                return print(&mut stdout, &policies);
            }
            let rows = policies.iter().map(|policy| {
                let policy = &policy.description;
                vec![policy.name.clone(), policy.version.clone(), policy.summary.clone()]
            });
            writeln!(stdout, "{}", table::listing(&["policy", "version", "what it does"], &[], rows))?;
        }
        args::Policy::Inspect { policy, json } => {
            let policy = host()?.find(policy)?;
            let inspection = policy.inspection();
            if *json {
                return print(&mut stdout, inspection);
            }
            writeln!(stdout, "{}", table::facts(rows(inspection)))?;
            let settings = inspection.description.settings.iter();
            let settings = settings
                .map(|setting| vec![setting.name.clone(), setting.default.to_string(), setting.summary.clone()]);
            if settings.len() > 0 {
                writeln!(stdout, "\n{}", table::listing(&["setting", "default", "what it does"], &[], settings))?;
            }
        }
    }
    Ok(())
}

fn print(stdout: &mut impl Write, report: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(stdout, "{text}")?)
}

fn rows(inspection: &Inspection) -> Vec<(&'static str, String)> {
    let limits = &inspection.limits;
    let allowed = format!(
        "per call {} fuel, {} ms, {} copied; {} of memory",
        table::count(limits.fuel as f64),
        limits.wall_ms,
        bytes::display(limits.copied_bytes as u64),
        bytes::display(limits.memory_bytes as u64),
    );
    vec![
        ("policy", format!("{} {}", inspection.description.name, inspection.description.version)),
        ("summary", inspection.description.summary.clone()),
        ("digest", inspection.digest.clone()),
        ("size", bytes::display(inspection.size_bytes)),
        ("imports", inspection.imports.join(", ")),
        ("exports", inspection.exports.join(", ")),
        ("limits", allowed),
    ]
}
