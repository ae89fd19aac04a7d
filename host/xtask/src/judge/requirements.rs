//! Requirements of judges that the project doesn't bring:
//!
//! ```text
//! .tools/judges     the Python packages of tests/service/requirements.txt
//! .tools/promtool   promtool, out of Debian's package
//! ```
//!
//! and Debian's Chromium with its driver, which is installed.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow, bail};

use super::Judge;
use crate::{
    downloads::{fetch, pip},
    project::Project,
    tools,
};

/// The judges' programs and what they are pinned to.
const PROGRAMS: &str = "tests/service";

/// The path of promtool in Debian's package, beside 90 MB of Prometheus.
const PACKAGED: &str = "./usr/bin/promtool";

/// The requirements that were fetched, or the reasons why they are missing.
pub struct Requirements {
    python: Availability<Python>,
    browser: Availability<()>,
    promtool: Availability<PathBuf>,
}

/// The reason is one line: several judges print it.
type Availability<T> = std::result::Result<T, String>;

/// A Python that has the packages.
pub struct Python {
    program: PathBuf,
    packages: PathBuf,
    scripts: PathBuf,
}

impl Python {
    /// A command that runs one of the project's scripts.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(self.scripts.join(script)).env("PYTHONPATH", &self.packages);
        command
    }
}

impl Requirements {
    /// Fetches the requirements of these judges, as far as they are available.
    pub fn bring(project: &Project, judges: &[Judge]) -> Result<Self> {
        let lock = project.lock()?;
        let asked = |needing: &[Judge]| needing.iter().any(|judge| judges.contains(judge));
        let needs_python = asked(&[Judge::Description, Judge::Api, Judge::Dashboard, Judge::Traces]);
        Ok(Self {
            python: outcome(needs_python, || python(project, &lock)),
            browser: outcome(asked(&[Judge::Dashboard]), browser),
            promtool: outcome(asked(&[Judge::Metrics]), || promtool(&project.tools().join("promtool"))),
        })
    }

    /// The reason why a judge can't run, if any.
    pub fn missing(&self, judge: Judge) -> Option<&str> {
        let why = match judge {
            Judge::Description | Judge::Api | Judge::Traces => self.python.as_ref().err(),
            Judge::Dashboard => self.python.as_ref().err().or(self.browser.as_ref().err()),
            Judge::Metrics => self.promtool.as_ref().err(),
        };
        why.map(String::as_str)
    }

    pub fn python(&self) -> Result<&Python> {
        self.python.as_ref().map_err(|why| anyhow!("{why}"))
    }

    pub fn promtool(&self) -> Result<&Path> {
        self.promtool.as_deref().map_err(|why| anyhow!("{why}"))
    }
}

fn outcome<T>(is_asked: bool, bring: impl FnOnce() -> Result<T>) -> Availability<T> {
    if is_asked { bring().map_err(|error| format!("{error:#}")) } else { Err("it wasn't asked for".into()) }
}

fn python(project: &Project, lock: &File) -> Result<Python> {
    let scripts = project.root.join(PROGRAMS);
    let requirements = scripts.join("requirements.txt");
    let pinned = fs::read_to_string(&requirements).with_context(|| format!("{}", requirements.display()))?;
    let program = tools::python(&project.tools().join("judges-python"))?;
    // Some of the packages are compiled for one release of Python.
    let release = tools::ask(Command::new(&program).args(["-c", "import sys; print(sys.implementation.cache_tag)"]));
    let held = format!("{}\n{pinned}", release.context("Python doesn't tell its release")?);
    let packages = project.tools().join("judges");
    fetch(&packages, &held, |folder| {
        tools::say("fetching the judges' Python packages");
        pip(&program, folder, lock, &["--requirement", &requirements.to_string_lossy()])
    })?;
    Ok(Python { program, packages, scripts })
}

fn browser() -> Result<()> {
    let has = |program: &str| tools::ask(Command::new(program).arg("--version")).is_some();
    let works = || ["chromium", "chromedriver"].into_iter().all(has);
    tools::ensure(works, &["chromium", "chromium-driver"], "Chromium with its driver")
}

/// The promtool in PATH, or one from Debian's package, whose services aren't installed.
fn promtool(folder: &Path) -> Result<PathBuf> {
    let works = |program: &Path| tools::ask(Command::new(program).arg("--version")).is_some();
    let own = PathBuf::from("promtool");
    if works(&own) {
        return Ok(own);
    }
    let program = folder.join(PACKAGED);
    fetch(folder, "promtool", unpack_promtool)
        .context("promtool is needed: put it in PATH (on Debian it is in the package prometheus)")?;
    if !works(&program) {
        bail!("{} doesn't run: put another promtool in PATH", program.display());
    }
    Ok(program)
}

fn unpack_promtool(folder: &Path) -> Result<()> {
    tools::say("fetching promtool, in Debian's package prometheus");
    let package = tools::package_file("prometheus", folder)?;
    let mut reading = Command::new("dpkg-deb");
    let mut reading = reading.arg("--fsys-tarfile").arg(&package).stdout(Stdio::piped()).spawn()?;
    let mut unpacking = Command::new("tar");
    unpacking.arg("-C").arg(folder).args(["-x", PACKAGED]);
    if let Some(archive) = reading.stdout.take() {
        unpacking.stdin(archive);
    }
    let unpacked = tools::run(&mut unpacking);
    let _ = reading.wait();
    unpacked?;
    fs::remove_file(&package).with_context(|| format!("{}", package.display()))
}
