//! Folders of third-party programs, in `.tools`: each is complete or absent.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::tools;

/// The marker file, written last into a folder; it lists the contents.
const WHOLE: &str = "unpacked-whole";

/// Fills a temporary folder and renames it into place; does nothing if the folder holds these
/// packages already.
pub fn fetch(folder: &Path, packages: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if fs::read_to_string(folder.join(WHOLE)).is_ok_and(|held| held == packages) {
        return Ok(());
    }
    let unfinished = folder.with_extension("unfinished");
    for old in [&unfinished, &folder.to_owned()] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("{}", old.display()))?;
        }
    }
    fs::create_dir_all(&unfinished)?;
    fill(&unfinished)?;
    fs::write(unfinished.join(WHOLE), packages)?;
    fs::rename(&unfinished, folder).with_context(|| format!("{}", folder.display()))
}

/// Unpacks Python packages into a folder, without their dependencies.
pub fn pip(python: &Path, folder: &Path, lock: &File, packages: &[&str]) -> Result<()> {
    install(python, folder, lock, &[&["--no-deps"], packages].concat())
}

/// Unpacks Python packages into a folder, with all that they require.
pub fn pip_with_requirements(python: &Path, folder: &Path, lock: &File, packages: &[&str]) -> Result<()> {
    install(python, folder, lock, packages)
}

fn install(python: &Path, folder: &Path, lock: &File, arguments: &[&str]) -> Result<()> {
    let mut pip = command(python, "install", lock)?;
    pip.args(["--quiet", "--only-binary=:all:", "--target"]).arg(folder).args(arguments);
    tools::run(&mut pip).context("pip says why above")
}

/// Fetches the archive of a package's sources into a folder, whatever Python they are for.
pub fn sources(python: &Path, folder: &Path, lock: &File, package: &str) -> Result<PathBuf> {
    let mut pip = command(python, "download", lock)?;
    pip.args(["--quiet", "--no-deps", "--no-binary=:all:", "--ignore-requires-python", "--dest"]).arg(folder);
    tools::run(pip.arg(package)).context("pip says why above")?;
    let mut files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let is_archive = |path: &PathBuf| path.to_string_lossy().ends_with(".tar.gz");
    files.find(is_archive).with_context(|| format!("pip fetched no sources of {package}"))
}

/// A command of pip's. A pip that outlives a killed set-up keeps the lock.
fn command(python: &Path, verb: &str, lock: &File) -> Result<Command> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", verb, "--disable-pip-version-check"]);
    pip.env("PIP_ROOT_USER_ACTION", "ignore").stdin(lock.try_clone()?);
    Ok(pip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_filled_whole_or_again() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("tools/python");
        assert!(fetch(&folder, "a==1", |_| anyhow::bail!("no network")).is_err());
        assert!(!folder.exists());
        let fill = |name: &'static str| move |folder: &Path| Ok(fs::write(folder.join(name), "")?);
        fetch(&folder, "a==1", fill("first")).unwrap();
        fetch(&folder, "a==1", |_| anyhow::bail!("it is there")).unwrap();
        fetch(&folder, "a==2", fill("second")).unwrap();
        assert!(folder.join("second").is_file() && !folder.join("first").exists());
    }
}
