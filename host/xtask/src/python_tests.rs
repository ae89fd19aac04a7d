//! The tests of the Python package, by pytest in an environment of its own:
//!
//! ```text
//! .tools/pytest            pytest and what the tests import, as pip unpacks them
//! .tools/ray               Ray with what it requires, for the tests of batches
//! target/python/tilewright the package with its native module
//! ```
//!
//! Without a Python for them they are skipped with a message.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{
    downloads::{self, fetch, pip},
    project::Project,
    tools,
};

/// The variable that skips these tests.
const SKIP: &str = "TILEWRIGHT_WITHOUT_PYTEST";

/// The oldest Python that the package is for.
const OLDEST: (u32, u32) = (3, 10);

/// The tests' packages with all that these require; the package itself requires httpx alone. Newer
/// releases of NumPy are for newer Pythons.
const PACKAGES: [&str; 15] = [
    "anyio==4.16.0",
    "certifi",
    "exceptiongroup==1.3.2",
    "h11==0.16.0",
    "httpcore==1.0.9",
    "httpx==0.28.1",
    "idna==3.20",
    "iniconfig==2.3.1",
    "numpy>=2.2,<3",
    "packaging==26.4",
    "pluggy==1.7.0",
    "Pygments==2.21.0",
    "pytest==9.2.0",
    "tomli==2.5.0",
    "typing_extensions==4.16.0",
];

/// Ray, and the tests that need it.
const RAY: &str = "ray[data]==2.60.0";
const RAY_TESTS: &str = "tests/test_ray.py";

/// The environment of the tests.
pub struct Environment {
    python: PathBuf,
    /// Python's version, as 3.N.
    version: String,
    packages: PathBuf,
}

impl Environment {
    /// The interpreter.
    pub fn python(&self) -> &Path {
        &self.python
    }

    /// The interpreter's version, as 3.N.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// pytest, which finds the staged package and these folders' packages.
    pub fn pytest(&self, staged: &Path, folders: &[PathBuf]) -> Result<Command> {
        let paths = [staged, &self.packages].into_iter().chain(folders.iter().map(PathBuf::as_path));
        let mut pytest = Command::new(&self.python);
        pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
        pytest.env("PYTHONPATH", env::join_paths(paths)?).env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(pytest)
    }
}

/// Fetches what the tests need. Returns none and the variable that skips them if it can't be had
/// here; neither if they are skipped already.
pub fn prepare(project: &Project) -> Result<(Option<Environment>, Option<&'static str>)> {
    if env::var_os(SKIP).is_some() {
        return Ok((None, None));
    }
    match environment(project) {
        Ok(environment) => Ok((Some(environment), None)),
        Err(error) => {
            tools::say(&format!("going on without the tests of the Python package: {error:#}"));
            Ok((None, Some(SKIP)))
        }
    }
}

/// The environment, with what is missing fetched.
///
/// # Errors
/// It can't be had here.
pub fn environment(project: &Project) -> Result<Environment> {
    let packages = project.tools().join("pytest");
    let lock = project.lock()?;
    let python = tools::python(&project.tools().join("scratch"))?;
    let mut asked = Command::new(&python);
    asked.args(["-c", "import sys; print(*sys.version_info[:2])"]);
    let version = tools::ask(&mut asked).context("python3 does not tell its version")?;
    let numbers: Vec<u32> = version.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let &[major, minor] = &numbers[..] else { bail!("python3 says that its version is '{version}'") };
    if (major, minor) < OLDEST {
        bail!("python3 is {major}.{minor}, and the package is for {}.{} and newer", OLDEST.0, OLDEST.1);
    }
    let held = format!("{} for Python {major}.{minor}", PACKAGES.join(" "));
    fetch(&packages, &held, |folder| {
        tools::say(&format!("fetching {held}"));
        pip(&python, folder, &lock, &PACKAGES)
    })?;
    Ok(Environment { python, version: format!("{major}.{minor}"), packages })
}

/// Runs every test of the package with the program that is built in a profile. Those of batches run
/// beside the others, since both wait most of their time.
///
/// # Errors
/// A test failed.
pub fn run(project: &Project, environment: &Environment, profile: &str) -> Result<()> {
    let ray = match ray(project, environment) {
        Ok(folder) => Some(folder),
        Err(error) => {
            tools::say(&format!("going on without the tests of batches: {error:#}"));
            None
        }
    };
    tools::say("testing the Python package");
    let staged = build(project)?;
    let pytest = |folders: &[PathBuf]| -> Result<Command> {
        let mut pytest = environment.pytest(&staged, folders)?;
        pytest.current_dir(project.root.join("host/python"));
        pytest.env("TILEWRIGHT_PROGRAM", project.program(profile));
        Ok(pytest)
    };
    let mut package = pytest(&[])?;
    package.args(["tests", "--ignore", RAY_TESTS]);
    let mut batches = ray.map(|folder| pytest(&[folder])).transpose()?;
    let beside = batches.as_mut().map(|batches| batches.arg(RAY_TESTS));
    let (package, batches) = thread::scope(|scope| {
        let batches = beside.map(|batches| scope.spawn(|| batches.output()));
        (tools::run(&mut package), batches.map(|batches| batches.join()))
    });
    if let Some(ended) = batches {
        let ended: Output = ended.ok().context("the tests of batches panicked")?.context("pytest can't be started")?;
        print!("{}", String::from_utf8_lossy(&ended.stdout));
        eprint!("{}", String::from_utf8_lossy(&ended.stderr));
        if !ended.status.success() {
            bail!("tests of batches failed, named above");
        }
    }
    package.context("tests of the Python package failed, named above")
}

/// The folder of Ray, which is fetched if it is missing.
fn ray(project: &Project, environment: &Environment) -> Result<PathBuf> {
    let folder = project.tools().join("ray");
    let lock = project.lock()?;
    fetch(&folder, &format!("{RAY} for Python {}", environment.version), |folder| {
        tools::say(&format!("fetching {RAY} with what it requires, about 200 MB"));
        downloads::pip_with_requirements(&environment.python, folder, &lock, &[RAY])
    })?;
    Ok(folder)
}

/// Builds the native module, and lays the package out with it; returns the folder that Python finds
/// the package in. The module is built alone: with the other packages it would have their features,
/// and libtorch in it.
pub fn build(project: &Project) -> Result<PathBuf> {
    tools::run(project.cargo().args(["build", "-p", "tilewright-python"]))?;
    let staged = project.target().join("python");
    let package = staged.join("tilewright");
    if package.exists() {
        fs::remove_dir_all(&package).with_context(|| package.display().to_string())?;
    }
    stage(&project.root.join("host/python/tilewright"), &package)?;
    let module = package.join("_native.abi3.so");
    let built = project.target().join("debug/lib_native.so");
    fs::copy(built, &module).with_context(|| module.display().to_string())?;
    Ok(staged)
}

/// Copies the package's own files, so that no built module lies among the sources.
fn stage(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|ending| ["py", "pyi", "typed"].iter().any(|of| ending == *of));
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() && name != "__pycache__" {
            stage(&path, &to.join(name))?;
        } else if is_source {
            fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
