//! `tilewright policy build`: a project's tool-chain, and its result.

use std::{
    io::{Read, Write},
    path::Path,
};

use tilewright_kit::project::{self, BuildOptions, Built};
use tilewright_plan::bytes;
use tilewright_policy::CacheDir;

use crate::{
    args::LoadOptions,
    failure::{Failure, Outcome},
    files, printer, table,
    tell::tell,
};

/// The first bytes of every WebAssembly file.
const MAGIC: &[u8] = b"\0asm";

/// Builds a project and reports the result.
pub fn run(project: &Path, output: Option<&Path>, LoadOptions { json, grants }: LoadOptions) -> Outcome {
    if let Some(output) = output {
        files::check_file(files::roles(), "-o", Some(output))?;
        replaces_a_policy_only(output)?;
    }
    let wanted =
        BuildOptions { output: output.map(Path::to_owned), wasi: grants.wasi(), memory_bytes: grants.policy_memory };
    let built = project::build(project, &wanted, &CacheDir::User).inspect_err(|error| {
        // Set off from the program's own line; the last of these is also in it.
        for line in error.last_lines() {
            tell!("  {line}");
        }
    })?;
    for remark in &built.remarks {
        tell!("{remark}");
    }
    if json {
        return printer::json(&built);
    }
    Ok(writeln!(printer::summary(), "{}", table::facts(rows(&built)))?)
}

/// Checks that an output replaces at most a policy: no source and no key.
pub fn replaces_a_policy_only(output: &Path) -> Outcome {
    let mut start = Vec::new();
    // A missing file is not a wrong kind of file.
    let read = tilewright_files::open(output).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    match read.is_ok() && !start.is_empty() && start != MAGIC {
        true => Err(Failure::input(format!(
            "{}: is a file other than a policy, which is not replaced: give -o another name",
            output.display()
        ))),
        false => Ok(()),
    }
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
