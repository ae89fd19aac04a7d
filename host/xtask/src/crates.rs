//! The crates of each build whose result is in a wheel: cargo's tree has the names, its metadata
//! the licences and the edges, and its lock the checksums.
//!
//! Metadata alone would name too much: it has the features that all packages of the workspace ask
//! for together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    project::Project,
    tools, wasm,
    wheel::{ENGINE, LIBRARY},
};

/// The package of the program.
const PROGRAM: &str = "tilewright-cli";

/// The crate that a native module of Python is made with.
const PYTHON: &str = "pyo3";

/// A crate's name and version.
pub type Key = (String, String);

/// The crates of the wheels.
#[derive(Default)]
pub struct Graph {
    /// The crates that are built for a wheel, by the wheel's name.
    pub roots: BTreeMap<String, BTreeSet<Key>>,
    /// All crates.
    pub crates: BTreeMap<Key, Crate>,
}

/// A crate of a build.
#[derive(Default)]
pub struct Crate {
    /// The licence, as the crate's manifest has it.
    pub license: Option<String>,
    /// The SHA-256 of the archive; none for the workspace's own.
    pub checksum: Option<String>,
    /// True if it is linked into a result, false if it only runs while one is built.
    pub is_linked: bool,
    /// True if it has a program.
    pub is_program: bool,
    /// The folder of its files on this machine.
    pub folder: PathBuf,
    /// The crates that it needs to run or to be built.
    pub needs: BTreeSet<Key>,
}

/// A build whose result is in a wheel.
struct Build {
    wheel: &'static str,
    packages: Vec<String>,
    target: String,
}

impl Graph {
    /// The crates of this checkout.
    pub fn read(project: &Project) -> Result<Self> {
        let locked = fs::read_to_string(project.root.join("Cargo.lock")).context("Cargo.lock")?;
        let checksums = checksums(&locked);
        let native = native()?;
        let known = metadata(project, &native)?;
        let mut graph = Self::default();
        for build in builds(&known, &native)? {
            let other = if build.target == native { None } else { Some(metadata(project, &build.target)?) };
            let used = tree(project, &build)?;
            graph.add(other.as_ref().unwrap_or(&known), &used, &build, &checksums)?;
        }
        Ok(graph)
    }

    /// Adds the crates of a build: those of `used` that metadata knows.
    fn add(
        &mut self,
        metadata: &Value,
        used: &BTreeSet<Key>,
        build: &Build,
        checksums: &BTreeMap<Key, String>,
    ) -> Result<()> {
        let packages: BTreeMap<&str, &Value> =
            list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
        let nodes: BTreeMap<&str, &Value> =
            list(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), node)).collect();
        let mut found = BTreeSet::new();
        for (id, package) in &packages {
            let key = key(package);
            if !used.contains(&key) {
                continue;
            }
            let node = nodes.get(id).with_context(|| format!("cargo metadata resolves no {} {}", key.0, key.1))?;
            let needs = needs(node, &["", "build"]).filter_map(|id| packages.get(id).map(|package| self::key(package)));
            let part = self.crates.entry(key.clone()).or_default();
            part.license = package["license"].as_str().map(str::to_owned);
            part.checksum = checksums.get(&key).cloned();
            part.folder = Path::new(text(&package["manifest_path"])).parent().unwrap_or(Path::new("")).to_owned();
            part.is_program = has_kind(package, "bin");
            part.needs.extend(needs.filter(|key| used.contains(key)));
            found.insert(key);
        }
        if let Some((name, version)) = used.difference(&found).next() {
            bail!("cargo metadata knows no {name} {version}, which cargo tree names");
        }
        let is_root = |package: &&&Value| build.packages.iter().any(|name| package["name"] == name.as_str());
        let roots: Vec<&str> = packages.values().filter(is_root).map(|package| text(&package["id"])).collect();
        self.roots.entry(build.wheel.into()).or_default().extend(roots.iter().map(|id| key(packages[id])));
        // Neither macros nor build scripts are linked, nor is what only they need.
        let (mut waiting, mut linked) = (roots, BTreeSet::new());
        while let Some(id) = waiting.pop() {
            let key = key(packages[id]);
            if !used.contains(&key) || has_kind(packages[id], "proc-macro") || !linked.insert(id) {
                continue;
            }
            self.crates.entry(key).or_default().is_linked = true;
            waiting.extend(nodes.get(id).into_iter().flat_map(|node| needs(node, &[""])));
        }
        Ok(())
    }
}

/// The builds: the program, the policies in it, and the native module of the Python package, if it
/// has one.
fn builds(metadata: &Value, native: &str) -> Result<Vec<Build>> {
    let members: BTreeSet<&str> = list(&metadata["workspace_members"]).map(text).collect();
    let own: Vec<&Value> =
        list(&metadata["packages"]).filter(|package| members.contains(text(&package["id"]))).collect();
    let names = |is_meant: &dyn Fn(&Value) -> bool| -> Vec<String> {
        own.iter().filter(|package| is_meant(package)).map(|package| text(&package["name"]).to_owned()).collect()
    };
    let is_policy = |package: &Value| {
        has_kind(package, "cdylib") && text(&package["manifest_path"]).rsplit('/').nth(2) == Some("policies")
    };
    let is_module = |package: &Value| {
        has_kind(package, "cdylib") && list(&package["dependencies"]).any(|needed| needed["name"] == PYTHON)
    };
    let build = |wheel, packages, target: &str| Build { wheel, packages, target: target.into() };
    let builds = [
        build(ENGINE, names(&|package| package["name"] == PROGRAM), native),
        build(ENGINE, names(&is_policy), wasm::TARGET),
        build(LIBRARY, names(&is_module), native),
    ];
    if builds[0].packages.is_empty() || builds[1].packages.is_empty() {
        bail!("the workspace has no {PROGRAM}, or no policies: the bill of materials can't be made");
    }
    Ok(builds.into_iter().filter(|build| !build.packages.is_empty()).collect())
}

/// The target of this machine.
fn native() -> Result<String> {
    let said = tools::ask(Command::new("rustc").arg("-vV")).context("rustc can't be started")?;
    let line = said.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("rustc -vV names no host")
}

fn metadata(project: &Project, target: &str) -> Result<Value> {
    let mut cargo = project.cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target]);
    Ok(serde_json::from_str(&output(&mut cargo)?)?)
}

/// The crates that cargo would compile for a build.
fn tree(project: &Project, build: &Build) -> Result<BTreeSet<Key>> {
    let mut cargo = project.cargo();
    cargo.args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    cargo.args(["--target", &build.target]);
    for package in &build.packages {
        cargo.args(["--package", package]);
    }
    Ok(output(&mut cargo)?.lines().filter_map(tree_line).collect())
}

/// The crate of a line such as `serde_derive v1.0.229 (proc-macro) (*)`.
fn tree_line(line: &str) -> Option<Key> {
    let mut words = line.split_whitespace();
    let (name, version) = (words.next()?, words.next()?);
    Some((name.to_owned(), version.strip_prefix('v')?.to_owned()))
}

/// The output of a command; the first error that it names if it fails.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{:?} can't be started", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| line.starts_with("error")).unwrap_or("it failed").to_owned();
        bail!("cargo {}: {line}", command.get_args().next().unwrap_or_default().to_string_lossy());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The checksums in Cargo.lock.
fn checksums(locked: &str) -> BTreeMap<Key, String> {
    let field = |package: &str, name: &str| {
        let value = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
        Some(value.trim_end_matches('"').to_owned())
    };
    let packages = locked.split("[[package]]").skip(1);
    let row = |package| Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?));
    packages.filter_map(row).collect()
}

/// The ids of the packages that a node needs in one of these ways, where an empty one is the usual.
fn needs<'a>(node: &'a Value, kinds: &'static [&'static str]) -> impl Iterator<Item = &'a str> {
    let is_meant = move |needed: &&Value| {
        list(&needed["dep_kinds"]).any(|kind| kinds.contains(&kind["kind"].as_str().unwrap_or_default()))
    };
    list(&node["deps"]).filter(is_meant).map(|needed| text(&needed["pkg"]))
}

/// True if one of a package's targets is of this kind.
fn has_kind(package: &Value, kind: &str) -> bool {
    list(&package["targets"]).flat_map(|target| list(&target["kind"])).any(|found| found == kind)
}

fn key(package: &Value) -> Key {
    (text(&package["name"]).to_owned(), text(&package["version"]).to_owned())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_linked_is_required_at_run_time() {
        let package = |id: &str, kind: &str| json!({ "id": id, "name": id, "version": "1.0.0", "license": "MIT", "targets": [{ "kind": [kind] }] });
        let needed = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let node = |id: &str, deps: Vec<Value>| json!({ "id": id, "deps": deps });
        let metadata = json!({
            "packages": [
                package("program", "bin"), package("linked", "lib"), package("script", "lib"), package("macro", "proc-macro"),
                package("of-macro", "lib"), package("test", "lib"), package("feature", "lib"),
            ],
            "resolve": { "nodes": [
                node("program", vec![
                    needed("linked", Value::Null), needed("script", "build".into()), needed("macro", Value::Null),
                    needed("test", "dev".into()), needed("feature", Value::Null),
                ]),
                node("linked", vec![]), node("script", vec![]), node("macro", vec![needed("of-macro", Value::Null)]),
                node("of-macro", vec![]), node("test", vec![]), node("feature", vec![]),
            ]},
        });
        let key = |name: &str| (name.to_owned(), "1.0.0".to_owned());
        let used: BTreeSet<Key> = ["program", "linked", "script", "macro", "of-macro"].map(key).into();
        let build = Build { wheel: ENGINE, packages: vec!["program".into()], target: "here".into() };
        let mut graph = Graph::default();
        let checksums = BTreeMap::from([(key("linked"), "ab".to_owned())]);
        graph.add(&metadata, &used, &build, &checksums).unwrap();
        let linked: Vec<&str> =
            graph.crates.iter().filter(|(_, part)| part.is_linked).map(|(key, _)| key.0.as_str()).collect();
        assert_eq!(linked, ["linked", "program"]);
        assert_eq!(graph.crates.len(), 5, "neither tests' crates nor those of others' features");
        assert_eq!(graph.crates[&key("program")].needs, ["linked", "script", "macro"].map(key).into());
        assert_eq!(graph.crates[&key("linked")].checksum.as_deref(), Some("ab"));
        assert_eq!(graph.roots[ENGINE], [key("program")].into());
        let unknown = BTreeSet::from([key("nowhere")]);
        assert!(graph.add(&metadata, &unknown, &build, &checksums).is_err());
    }

    #[test]
    fn a_native_module_is_found_by_what_it_is_made_with() {
        let package = |name: &str, kind: &str, folder: &str, needed: &str| {
            let manifest = format!("/a/{folder}/{name}/Cargo.toml");
            json!({
                "id": name, "name": name, "manifest_path": manifest, "targets": [{ "kind": [kind] }],
                "dependencies": [{ "name": needed }],
            })
        };
        let packages = [
            package(PROGRAM, "bin", "host", "clap"),
            package("policy-a", "cdylib", "policies", "sdk"),
            package("sdk", "lib", "policies", "a"),
            package("module", "cdylib", "host", PYTHON),
        ];
        let of = |number: usize| {
            let members: Vec<&Value> = packages[..number].iter().map(|package| &package["name"]).collect();
            let metadata = json!({ "packages": packages, "workspace_members": members });
            builds(&metadata, "here")
                .map(|builds| builds.into_iter().map(|build| (build.wheel, build.packages)).collect::<Vec<_>>())
        };
        assert!(of(1).is_err());
        let program = [(ENGINE, vec![PROGRAM.to_owned()]), (ENGINE, vec!["policy-a".to_owned()])];
        assert_eq!(of(3).unwrap(), program);
        assert_eq!(of(4).unwrap()[2], (LIBRARY, vec!["module".to_owned()]));
    }

    #[test]
    fn lines_of_cargo_are_read() {
        let key = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(tree_line("serde_derive v1.0.229 (proc-macro) (*)"), Some(key("serde_derive", "1.0.229")));
        assert_eq!(tree_line(""), None);
        let locked = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\
            checksum = \"ab\"\ndependencies = [\n \"b\",\n]\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksums(locked), BTreeMap::from([(key("a", "1.0.0"), "ab".to_owned())]));
    }
}
