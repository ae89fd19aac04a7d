//! `cargo xtask bundle`: the program and a script, packed for a machine with a GPU and PyTorch that
//! has no tool-chain.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use crate::{project::Project, tools};

/// The script that runs the check there.
const SCRIPT: &str = include_str!("bundle/check.sh");

/// The name of the folder that is packed.
const NAME: &str = "tilewright-check";

/// The archive's name, in `target`.
pub const ARCHIVE: &str = "tilewright-check.tar.xz";

/// The largest archive, in bytes: what most ways of handing a file over take.
const MOST: u64 = 64_000_000;

/// The archive's path.
pub fn archive(project: &Project) -> PathBuf {
    project.root.join("target").join(ARCHIVE)
}

/// Packs the program of a profile into `target/tilewright-check.tar.xz`.
pub fn pack(project: &Project, profile: &str) -> Result<()> {
    let target = project.root.join("target");
    let folder = target.join(NAME);
    fs::create_dir_all(&folder)?;
    let program = folder.join("tilewright");
    tools::run(Command::new("strip").arg("-o").arg(&program).arg(project.program(profile)))?;
    let script = folder.join("check.sh");
    fs::write(&script, SCRIPT)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let archive = archive(project);
    let mut tar = Command::new("tar");
    tar.env("XZ_OPT", "-9").arg("-cJf").arg(&archive).arg("-C").arg(&target).arg(NAME);
    tools::run(&mut tar).context("tar and xz are needed")?;
    let bytes = fs::metadata(&archive)?.len();
    if bytes > MOST {
        bail!("{} has {} MB, more than {} MB", archive.display(), bytes / 1_000_000, MOST / 1_000_000);
    }
    println!("packed {}, {} MB; there: tar -xf it, and run {NAME}/check.sh", archive.display(), bytes / 1_000_000);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{io::Write, process::Stdio};

    use super::*;

    fn script(torch: &str) -> std::process::Output {
        let mut shell = Command::new("sh");
        shell.args(["-s"]).env("TILEWRIGHT_LIBTORCH", torch).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(SCRIPT.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    #[test]
    fn another_pytorch_is_refused_in_one_line() {
        let folder = std::env::temp_dir().join(format!("tilewright-bundle-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("version.py"), "__version__ = '2.10.0+cu130'\n").unwrap();
        let refused = script(folder.to_str().unwrap());
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(said, format!("error: {} is no PyTorch 2.11\n", folder.display()));
    }
}
