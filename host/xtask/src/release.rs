//! `cargo xtask release`: everything that a release consists of, in one folder, made from a clean
//! tree. Two runs on one commit give the same bytes; signatures alone differ. Nothing is published.

mod changelog;
mod checksums;
mod commit;
mod image;
mod sbom;
mod signatures;
mod wheels;

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::{commit::Commit, signatures::Signer};
use crate::{crates::Graph, project::Project};

/// The version of the release: that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files of a release beside the wheels and the signatures.
const CHANGES: &str = "CHANGES.md";
const IMAGE: &str = "Containerfile";
const SBOM: &str = "sbom.cdx.json";

/// The beginning of an unfinished release's name, beside the one that it gets.
const UNFINISHED: &str = "unfinished-release-";

/// `cargo xtask release`
#[derive(Args)]
pub struct Arguments {
    /// The folder for the release [default: release-VERSION in cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Sign the wheels and the checksums with this secret key of minisign's
    #[arg(long, value_name = "FILE", env = "TILEWRIGHT_RELEASE_KEY")]
    key: Option<PathBuf>,
}

/// A reason not to begin: the tree, the changelog, the key or the folder is not fit for a release.
#[derive(Debug)]
pub struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Refuses to make the release.
fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Refused(why.into()).into())
}

/// A release whose preconditions hold.
pub struct Release {
    commit: Commit,
    changes: String,
    signer: Option<Signer>,
    out: PathBuf,
}

impl Release {
    /// Checks everything that can be checked before the build, which takes a quarter of an hour.
    ///
    /// # Errors
    /// [`Refused`] if the tree is not clean, the changelog has no entry, the key can't be used, or
    /// the folder holds something else.
    pub fn prepare(project: &Project, arguments: Arguments) -> Result<Self> {
        let commit = Commit::clean(&project.root)?;
        let text = fs::read_to_string(project.root.join("CHANGELOG.md")).context("CHANGELOG.md")?;
        let changes = changelog::entry(&text, VERSION)?;
        let out = arguments.out.unwrap_or_else(|| project.target().join(format!("release-{VERSION}")));
        check_replaceable(&out)?;
        commit::check_ignored(&project.root, &parent(&out).join(UNFINISHED), &out)?;
        let signer = arguments.key.as_deref().map(Signer::open).transpose()?;
        Ok(Self { commit, changes, signer, out })
    }

    /// Makes the release in a folder of another name, which gets the right one at the end; `build`
    /// builds both wheels into it.
    ///
    /// # Errors
    /// If a part can't be made, or the tree changed meanwhile.
    pub fn make(&self, project: &Project, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let parent = parent(&self.out);
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        let unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(parent)?;
        build(unfinished.path())?;
        // The build took files from the tree all the time.
        if Commit::clean(&project.root)? != self.commit {
            return refuse("another commit was checked out while the wheels were built: run this again");
        }
        self.complete(unfinished.path(), &Graph::read(project)?)?;
        replace(unfinished, &self.out)?;
        self.summarize()
    }

    /// Adds everything else to a folder with wheels in it.
    fn complete(&self, folder: &Path, graph: &Graph) -> Result<()> {
        let wheels = wheels::read(folder)?;
        fs::write(folder.join(CHANGES), &self.changes)?;
        fs::write(folder.join(IMAGE), image::recipe(&wheels, &self.commit)?)?;
        fs::write(folder.join(SBOM), sbom::document(&self.commit, graph, &wheels))?;
        checksums::write(folder)?;
        if let Some(signer) = &self.signer {
            for name in signed(&wheels) {
                signer.sign(&folder.join(name), &self.commit)?;
            }
        }
        Ok(())
    }

    /// Prints each file with its size and digest, what was signed, and what was not done.
    fn summarize(&self) -> Result<()> {
        println!("\nrelease {VERSION} of commit {}: {}", self.commit.id, self.out.display());
        for name in names(&self.out)? {
            let path = self.out.join(&name);
            let (bytes, digest) = (fs::metadata(&path)?.len(), checksums::digest(&path)?);
            println!("    {digest}  {bytes:>11}  {name}");
        }
        match &self.signer {
            Some(signer) => {
                println!("signed with the key {}: {}", signer.id(), signed(&wheels::read(&self.out)?).join(", "));
                println!("    to verify: minisign -V -P {} -m {}", signer.public(), checksums::NAME);
            }
            None => println!(
                "nothing was signed: no --key was given; 'minisign -G -p release.pub -s release.key' makes one, and so does \
                 'tilewright policy keygen release'"
            ),
        }
        println!("nothing was published, and no image was built: see docs/src/releases.md");
        Ok(())
    }
}

/// The folder that a release's folder is in.
fn parent(out: &Path) -> &Path {
    out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The names of the files that are signed; the checksums stand for the others.
fn signed(wheels: &[wheels::Wheel]) -> Vec<&str> {
    wheels.iter().map(|wheel| wheel.file.as_str()).chain([checksums::NAME]).collect()
}

/// The names of the files in a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let mut names = entries.map(name).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Fails unless a folder is missing, empty or a release, and can be renamed: nothing else is
/// replaced.
fn check_replaceable(out: &Path) -> Result<()> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let is_mounted = out.is_dir() && device(out) != device(parent(out));
    if out.file_name().is_none() || is_mounted {
        return refuse(format!(
            "{}: can't be replaced as a whole: name a folder within it, or another, by --out",
            out.display()
        ));
    }
    let is_replaceable = match fs::symlink_metadata(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return refuse(format!("{}: {error}: name another folder by --out", out.display())),
        Ok(found) => found.is_dir() && (out.join(checksums::NAME).is_file() || names(out)?.is_empty()),
    };
    if !is_replaceable {
        return refuse(format!(
            "{}: holds something other than a release: name another folder by --out",
            out.display()
        ));
    }
    Ok(())
}

/// Gives a finished folder its name; an earlier release of that name goes. If that fails, the
/// folder stays: making it took a quarter of an hour.
fn replace(finished: tempfile::TempDir, out: &Path) -> Result<()> {
    let finished = finished.keep();
    // A temporary folder is its owner's alone.
    fs::set_permissions(&finished, fs::Permissions::from_mode(0o755))
        .map_err(anyhow::Error::from)
        .and_then(|()| put(&finished, out))
        .with_context(|| format!("the release is finished and stays in {}", finished.display()))
}

/// Puts a folder in the place of an earlier release, which comes back if that fails.
fn put(finished: &Path, out: &Path) -> Result<()> {
    check_replaceable(out)?;
    let earlier = tempfile::Builder::new().prefix("replaced-release-").tempdir_in(parent(out))?;
    let is_replaced = out.exists();
    if is_replaced {
        fs::rename(out, earlier.path()).with_context(|| out.display().to_string())?;
    }
    let Err(error) = fs::rename(finished, out) else { return Ok(()) };
    if is_replaced && fs::rename(earlier.path(), out).is_err() {
        bail!(
            "{}: no release can be put there: {error}: the earlier one is in {}",
            out.display(),
            earlier.keep().display()
        );
    }
    bail!(
        "{}: the release can't be put there: {error}: make the folder writable, or name another by --out",
        out.display()
    );
}

#[cfg(test)]
mod tests;
