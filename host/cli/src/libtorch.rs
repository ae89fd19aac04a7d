//! Runs the program again with another libtorch: the loader has read the first one before `main`
//! starts.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use tilewright_torch::backend;

use crate::failure::{Failure, Outcome};

/// Set in the second run, so that a folder that can't be used does not start a third.
const STARTED: &str = "TILEWRIGHT_LIBTORCH_STARTED";

/// The libtorch that the program is built for.
const VERSION: &str = "2.11.";

/// Continues with the libtorch in `folder`: returns if it is in use already, and else replaces this
/// process by a new run of the program.
pub fn run_with(folder: &Path) -> Outcome {
    let wanted = backend::library_folder(folder).map_err(Failure::input)?;
    if let Some(version) = version(&wanted).filter(|version| !version.starts_with(VERSION)) {
        return Err(Failure::input(format!("{}: libtorch {version}, {VERSION}x is needed", folder.display())));
    }
    let used = backend::folder()?;
    let same = |one: &Path, other: &Path| fs::canonicalize(one).ok() == fs::canonicalize(other).ok();
    if same(&wanted, &used) {
        return Ok(());
    }
    if env::var_os(STARTED).is_some() {
        return Err(Failure::input(format!("{}: the loader took {} instead", wanted.display(), used.display())));
    }
    let program = env::current_exe().map_err(Failure::work)?;
    let mut search = wanted.clone().into_os_string();
    // Python finds these by itself.
    for folder in backend::rocm_folders(&wanted) {
        search.push(":");
        search.push(folder);
    }
    if let Some(already) = env::var_os("LD_LIBRARY_PATH").filter(|already| !already.is_empty()) {
        search.push(":");
        search.push(already);
    }
    let error =
        Command::new(program).args(env::args_os().skip(1)).env("LD_LIBRARY_PATH", search).env(STARTED, "1").exec();
    Err(Failure::work(format!("starting anew with {}: {error}", wanted.display())))
}

/// The version of the libtorch whose libraries are in `folder`, if its files tell.
fn version(folder: &Path) -> Option<String> {
    let root: PathBuf = folder.parent()?.to_owned();
    if let Ok(text) = fs::read_to_string(root.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    let text = fs::read_to_string(root.join("version.py")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim_matches(['\'', '"']).to_owned())
}
