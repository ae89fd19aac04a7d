//! The tool-chains of the policy languages beside Rust, for the tests of their templates:
//!
//! ```text
//! .tools/python   componentize-py and zig, as pip unpacks them
//! .tools/js       componentize-qjs under node_modules
//! ```
//!
//! The tests of a language without its tool-chain are skipped with a message.

use std::{env, fs, fs::File, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    downloads::{fetch, pip},
    project::Project,
    tools,
};

/// The C compiler: needs no root, and is the same everywhere.
const ZIG: &str = "ziglang==0.17.1";

/// The variables that skip a language.
const C: &str = "TILEWRIGHT_WITHOUT_C";
const PYTHON: &str = "TILEWRIGHT_WITHOUT_PYTHON";
const JS: &str = "TILEWRIGHT_WITHOUT_JS";

/// The file in which the templates pin their tools.
const REQUIREMENTS: &str = "host/kit/templates/python/requirements.txt";
const PACKAGE: &str = "host/kit/templates/js/package.json";

/// Fetches the tool-chains that TILEWRIGHT_WITHOUT_C, TILEWRIGHT_WITHOUT_PYTHON and
/// TILEWRIGHT_WITHOUT_JS don't skip. Returns the variables of those that aren't available here.
pub fn prepare(project: &Project) -> Result<Vec<&'static str>> {
    let lock = project.lock()?;
    let wheels = [
        (C, "C", ZIG.to_owned()),
        (PYTHON, "Python", fs::read_to_string(project.root.join(REQUIREMENTS))?.trim().to_owned()),
    ];
    let mut missing = Vec::new();
    let wanted: Vec<_> = wheels.iter().filter(|(variable, ..)| env::var_os(variable).is_none()).collect();
    let packages: Vec<&str> = wanted.iter().map(|(.., package)| package.as_str()).collect();
    if !packages.is_empty() {
        let held = packages.join(" ");
        let fetched = fetch(&project.tools().join("python"), &held, |folder| {
            let python = tools::python(&folder.join("scratch"))?;
            tools::say(&format!("fetching {held}"));
            pip(&python, folder, &lock, &packages)
        });
        let names: Vec<&str> = wanted.iter().map(|(_, name, _)| *name).collect();
        if is_missing(&names.join(" and "), fetched) {
            missing.extend(wanted.iter().map(|(variable, ..)| *variable));
        }
    }
    if env::var_os(JS).is_none() {
        let package = npm_package(&fs::read_to_string(project.root.join(PACKAGE))?)?;
        let fetched = fetch(&project.tools().join("js"), &package, |folder| npm(folder, &lock, &package));
        if is_missing("JavaScript", fetched) {
            missing.push(JS);
        }
    }
    Ok(missing)
}

fn is_missing(languages: &str, fetched: Result<()>) -> bool {
    if let Err(error) = &fetched {
        tools::say(&format!("going on without policies in {languages} and their tests: {error:#}"));
    }
    fetched.is_err()
}

fn npm(folder: &Path, lock: &File, package: &str) -> Result<()> {
    let works = || ["node", "npm"].iter().all(|program| tools::ask(Command::new(program).arg("--version")).is_some());
    tools::ensure(works, &["nodejs", "npm"], "Node.js with npm")?;
    tools::say(&format!("fetching {package}"));
    let mut npm = Command::new("npm");
    npm.args(["install", "--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
        .arg(folder)
        .arg(package);
    tools::run(npm.stdin(lock.try_clone()?)).context("npm says why above")
}

/// `componentize-qjs@1.2.3` from the template's manifest.
fn npm_package(manifest: &str) -> Result<String> {
    const NAME: &str = "componentize-qjs";
    let line = manifest.lines().find(|line| line.contains(NAME));
    let version = line.and_then(|line| line.split('"').nth(3)).with_context(|| format!("{PACKAGE} names no {NAME}"))?;
    Ok(format!("{NAME}@{version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_say_what_to_fetch() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let package = npm_package(&fs::read_to_string(root.join(PACKAGE)).unwrap()).unwrap();
        assert!(package.starts_with("componentize-qjs@0."), "{package}");
        let requirements = fs::read_to_string(root.join(REQUIREMENTS)).unwrap();
        assert!(requirements.starts_with("componentize-py==") && requirements.lines().count() == 1, "{requirements}");
        assert!(npm_package("{}").is_err());
    }
}
