//! The program: built without the tests, and with third-party crates that the tests' build takes as
//! they are.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{project::Project, tools};

/// The demo's selection. cargo compiles a shared crate with the features that all selected packages
/// ask for, and those of development dependencies count if one target needs them. The program's
/// package alone asks for fewer features than `cargo test --workspace`, so that about a hundred
/// crates would be compiled for each. All packages, with an example that needs nothing of its own,
/// ask for the tests' features; only the program and the example are built.
const SELECTION: [&str; 6] = ["build", "--workspace", "--bin", "tilewright", "--example", "gallery"];

/// The interval of progress lines.
const INTERVAL: Duration = Duration::from_secs(15);

/// Builds the program. On a terminal cargo's own bar says how far it is, elsewhere a line does now
/// and then.
pub fn build(project: &Project) -> Result<()> {
    let packages = packages(project)?;
    tools::say(&format!(
        "compiling the program, {} crates in all (the first time takes about ten minutes on two cores)",
        packages.len()
    ));
    let mut cargo = project.cargo();
    cargo.args(SELECTION);
    if stderr().is_terminal() {
        return tools::run(&mut cargo);
    }
    let mut compiled = BTreeSet::new();
    let mut told = Instant::now();
    tools::follow(cargo.args(["--message-format", "json-render-diagnostics"]), |line| {
        compiled.extend(package(line).filter(|package| packages.contains(*package)).map(str::to_owned));
        if told.elapsed() >= INTERVAL {
            told = Instant::now();
            println!("{} of {} crates compiled", compiled.len(), packages.len());
        }
    })
}

/// The crates that the program consists of, and those that build them, as `NAME@VERSION`.
fn packages(project: &Project) -> Result<BTreeSet<String>> {
    let mut packages = BTreeSet::new();
    let mut cargo = project.cargo();
    cargo.args(["tree", "--package", "tilewright-cli", "--edges", "normal,build", "--prefix", "none"]);
    tools::follow(&mut cargo, |line| packages.extend(crate_of_line(line)))?;
    Ok(packages)
}

/// The crate of a line of `cargo tree`, as `NAME@VERSION`.
fn crate_of_line(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" v")?;
    Some(format!("{name}@{}", rest.split_whitespace().next()?))
}

/// The crate of a message of cargo's, as `NAME@VERSION`, if the message says that it is compiled.
fn package(message: &str) -> Option<&str> {
    let is_done =
        message.contains(r#""reason":"compiler-artifact""#) && !message.contains(r#""kind":["custom-build"]"#);
    let (_, id) = message.split_once(r#""package_id":""#).filter(|_| is_done)?;
    Some(id.split_once('"')?.0.rsplit_once('#')?.1)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        hash::{DefaultHasher, Hash, Hasher},
        path::Path,
    };

    use serde_json::Value;

    use super::*;

    /// All that a cargo command would compile: by a number that is the same if cargo compiles it
    /// once for both commands.
    fn units(arguments: &[&str]) -> BTreeMap<u64, String> {
        let project = Project { root: Path::new(env!("CARGO_MANIFEST_DIR")).join("../..") };
        let mut cargo = project.cargo();
        // The list of all that would be compiled is only given to those who say that its form may
        // change.
        cargo.args(arguments).args(["--offline", "--unit-graph", "-Z", "unstable-options"]).env("RUSTC_BOOTSTRAP", "1");
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let graph: Value = serde_json::from_slice(&output.stdout).unwrap();
        let units = graph["units"].as_array().unwrap();
        let mut numbers = vec![None; units.len()];
        (0..units.len()).map(|index| (number(units, index, &mut numbers), name(&units[index]))).collect()
    }

    fn name(unit: &Value) -> String {
        let package = unit["pkg_id"].as_str().unwrap().rsplit(['/', '#']).next().unwrap();
        format!("{package} {} {} {}", unit["target"]["kind"], unit["mode"], unit["features"])
    }

    fn number(units: &[Value], index: usize, numbers: &mut [Option<u64>]) -> u64 {
        if let Some(number) = numbers[index] {
            return number;
        }
        let unit = &units[index];
        let mut profile = unit["profile"].clone();
        // `test` and `dev` are the same but for their names, which cargo does not look at either.
        profile["name"] = Value::Null;
        let mut hasher = DefaultHasher::new();
        for part in [&unit["pkg_id"], &unit["target"], &profile, &unit["platform"], &unit["mode"], &unit["features"]] {
            part.to_string().hash(&mut hasher);
        }
        let dependencies = unit["dependencies"].as_array().unwrap().iter();
        let mut needed: Vec<_> = dependencies
            .map(|needed| {
                let index = needed["index"].as_u64().unwrap() as usize;
                (needed["extern_crate_name"].to_string(), number(units, index, numbers))
            })
            .collect();
        needed.sort();
        needed.hash(&mut hasher);
        *numbers[index].insert(hasher.finish())
    }

    #[test]
    fn the_tests_compile_nothing_again_that_the_demo_has_compiled() {
        let (demo, tests) = (units(&SELECTION), units(&["test", "--workspace", "--no-run"]));
        let again: Vec<_> =
            demo.iter().filter(|(number, _)| !tests.contains_key(number)).map(|(_, name)| name).collect();
        assert!(again.is_empty(), "{again:#?}");
        assert!(demo.len() + 100 < tests.len(), "the demo builds {} of {}", demo.len(), tests.len());
    }

    #[test]
    fn crates_are_counted_as_they_are_compiled() {
        assert_eq!(crate_of_line("serde v1.0.229 (*)").as_deref(), Some("serde@1.0.229"));
        assert_eq!(crate_of_line("serde_derive v1.0.229 (proc-macro)").as_deref(), Some("serde_derive@1.0.229"));
        assert_eq!(crate_of_line("[build-dependencies]"), None);
        let message = |reason: &str, kind: &str, id: &str| {
            format!(r#"{{"reason":"{reason}","package_id":"{id}","target":{{"kind":["{kind}"],"name":"x"}}}}"#)
        };
        let registry = "registry+https://github.com/rust-lang/crates.io-index#serde@1.0.229";
        assert_eq!(package(&message("compiler-artifact", "lib", registry)), Some("serde@1.0.229"));
        assert_eq!(package(&message("compiler-artifact", "custom-build", registry)), None);
        assert_eq!(package(&message("build-script-executed", "lib", registry)), None);
        let own = "path+file:///x/host/cli#tilewright-cli@0.1.0";
        assert_eq!(package(&message("compiler-artifact", "bin", own)), Some("tilewright-cli@0.1.0"));
    }
}
