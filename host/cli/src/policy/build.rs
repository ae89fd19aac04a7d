//! `tilewright policy build`: a project's tool-chain, and what came of it.

use std::{
    io::{self, Write},
    path::Path,
};

use tilewright_kit::project::{self, Built, ProjectError, Wanted};
use tilewright_plan::bytes;
use tilewright_policy::CacheDir;

use crate::{
    args::PolicyGrants,
    failure::{Failure, Outcome},
    table,
};

impl From<ProjectError> for Failure {
    fn from(error: ProjectError) -> Self {
        match error.is_input() {
            true => Failure::Input(error.into()),
            false => Failure::Work(error.into()),
        }
    }
}

/// Builds a project and says what came of it.
pub fn run(project: &Path, output: Option<&Path>, json: bool, grants: PolicyGrants) -> Outcome {
    let wanted = Wanted { output: output.map(Path::to_owned), wasi: grants.wasi(), memory_bytes: grants.policy_memory };
    let built = project::build(project, &wanted, &CacheDir::User).inspect_err(|error| {
        // Set off from the one line that is the program's own; the last of these is also in it.
        for line in error.said() {
            eprintln!("  {line}");
        }
    })?;
    for remark in &built.remarks {
        eprintln!("{remark}");
    }
    if json {
        return super::print(&built);
    }
    Ok(writeln!(io::stdout().lock(), "{}", table::facts(rows(&built)))?)
}

fn rows(built: &Built) -> Vec<(&'static str, String)> {
    let described = &built.policy.description;
    let size =
        format!("{}, of {} that {} made", bytes::display(built.bytes), bytes::display(built.made_bytes), built.tool);
    let mut rows = vec![
        ("wrote", built.path.display().to_string()),
        ("policy", format!("{} {}: {}", described.name, described.version, described.summary)),
        ("size", size),
        ("digest", built.policy.digest.clone()),
        ("took", format!("{} to build, {} to load", table::time(built.build), table::time(built.load))),
    ];
    if !built.grants.is_empty() {
        rows.push(("needs", built.grants.join(" ")));
    }
    rows
}
