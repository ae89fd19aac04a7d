//! `cargo xtask device-day`: a folder with what benches/device-day needs on a machine with a GPU,
//! PyTorch and this tree, but no network.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{bundle, project::Project, tools};

/// The folder's name in the repository's root; git doesn't track it.
const FOLDER: &str = ".gpu";

/// The folder of wheels in it.
const WHEELS: &str = "wheels";

/// The packages that a machine with PyTorch lacks, pinned by `PINS`, and those without a pin.
const PINNED: [&str; 2] = ["diffusers", "safetensors"];
const UNPINNED: [&str; 2] = ["importlib_metadata", "zipp"];

/// The peers' own pins.
const PINS: &str = "benches/peers/requirements.txt";

/// The Python of the machine there, and the system, for which wheels are taken.
const THERE: [&str; 6] =
    ["--python-version", "3.12", "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64"];

/// The most seconds that a run there takes, with what is left to reply in.
const LIMIT_S: u32 = 590;

/// The most bytes that may travel to the machine, with the files that git does not ignore.
const MOST: u64 = 64 << 20;

/// Fills the folder with the program and the wheels, and prints the command to run there.
pub fn prepare(project: &Project, profile: &str) -> Result<()> {
    bundle::pack(project, profile)?;
    let folder = project.root.join(FOLDER);
    let wheels = folder.join(WHEELS);
    // Files of an earlier one would travel, too.
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&wheels)?;
    fs::copy(bundle::archive(project), folder.join(bundle::ARCHIVE))?;
    let pins = fs::read_to_string(project.root.join(PINS)).with_context(|| format!("{PINS} can't be read"))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]).args(THERE).arg("-d");
    tools::run(pip.arg(&wheels).args(packages(&pins)?)).context("pip says why above")?;
    let (carried, others) = (size(&folder)?, travelling(project)?);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("{FOLDER} has {:.1} MiB, the files that git does not ignore have {:.1} MiB", mib(carried), mib(others));
    if carried + others > MOST {
        let way = if profile == "debug" { "leave --debug out" } else { "move files that the day does not need aside" };
        bail!("together they have more than {:.0} MiB, so that they don't travel: {way}", mib(MOST));
    }
    println!("there, in the repository's root, within {LIMIT_S} s: bash benches/device-day/run.sh");
    println!("carry {FOLDER}; results are in $OUT, summary.md for benches/RESULTS.md among them");
    Ok(())
}

/// The requirements for pip.
fn packages(pins: &str) -> Result<Vec<String>> {
    let pinned = PINNED.iter().map(|name| {
        let is_its = |line: &&str| line.split_once("==").is_some_and(|(package, _)| package == *name);
        pins.lines().find(is_its).map(str::to_owned).with_context(|| format!("{PINS} doesn't pin {name}"))
    });
    pinned.chain(UNPINNED.iter().map(|name| Ok((*name).to_owned()))).collect()
}

/// The bytes of the files in a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

/// The bytes of the files that travel: all that git does not ignore.
fn travelling(project: &Project) -> Result<u64> {
    let mut list = Command::new("git");
    list.current_dir(&project.root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = tools::ask(&mut list).context("git doesn't list the files: run this in a checkout")?;
    let bytes = |name: &str| fs::symlink_metadata(project.root.join(name)).map_or(0, |found| found.len());
    Ok(listed.split('\0').filter(|name| !name.is_empty()).map(bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_folder_holds_what_the_runner_asks_for() {
        let runner = fs::read_to_string(root().join("benches/device-day/run.sh")).unwrap();
        for asked in [format!("KIT:-{FOLDER}"), format!("$KIT/{}", bundle::ARCHIVE), format!("$KIT\"/{WHEELS}/*.whl")] {
            assert!(runner.contains(&asked), "{asked}");
        }
        let ignored = fs::read_to_string(root().join(".gitignore")).unwrap();
        assert!(ignored.lines().any(|line| line == format!("/{FOLDER}/")));
    }

    #[test]
    fn packages_have_the_peers_versions() {
        let found = packages("torch==2\ndiffusers==1.2\nsafetensors==3\n").unwrap();
        assert_eq!(found, ["diffusers==1.2", "safetensors==3", "importlib_metadata", "zipp"]);
        assert!(packages("torch==2\n").is_err());
        packages(&fs::read_to_string(root().join(PINS)).unwrap()).unwrap();
    }

    #[test]
    fn the_runner_s_own_tests_pass() {
        let folder = root().join("benches/device-day");
        let done = Command::new("python3").args(["-B", "-m", "unittest", "-q"]).current_dir(folder).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}
