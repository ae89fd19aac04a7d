//! Folders of third-party programs, in `.tools`: each is complete or absent.

use std::{
    fs::{self, File},
    path::Path,
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

/// Unpacks Python packages into a folder, without their dependencies. A pip that outlives a killed
/// set-up keeps the lock.
pub fn pip(python: &Path, folder: &Path, lock: &File, packages: &[&str]) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    pip.arg("--target").arg(folder).args(packages).env("PIP_ROOT_USER_ACTION", "ignore").stdin(lock.try_clone()?);
    tools::run(&mut pip).context("pip says why above")
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
