//! libtorch where the build and the program look for it:
//!
//! ```text
//! .libtorch/<flavour>/torch/{include,lib}   unpacked, complete or not there at all
//! .libtorch/run  → <flavour>                what the program runs with
//! .libtorch/link/{include,lib}              what everything is linked against, the same for every flavour
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{project::Project, tools, wheels};

/// tch 0.24 goes with it.
pub const VERSION: &str = "2.11.0";

/// Written last into an unpacked folder: without it the folder is not taken for whole.
const WHOLE: &str = "unpacked-whole";

/// Libraries that are linked against.
const LINKED: [&str; 3] = ["libtorch_cpu.so", "libc10.so", "libgomp.so.1"];

/// Which devices a libtorch can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flavour {
    /// Processors alone, 550 MB to fetch
    Cpu,
    /// NVIDIA's GPUs, about 3 GB to fetch
    Cuda,
    /// AMD's GPUs; needs --index-url
    Rocm,
}

/// Where a libtorch comes from.
pub enum Source {
    /// Python wheels.
    Wheels(Flavour, Option<String>),
    /// A folder of the user's.
    Folder(PathBuf),
    /// The PyTorch that python3 has.
    InstalledPyTorch,
}

impl Flavour {
    fn name(self) -> &'static str {
        match self {
            Flavour::Cpu => "cpu",
            Flavour::Cuda => "cuda",
            Flavour::Rocm => "rocm",
        }
    }
}

/// Brings the wanted libtorch, or the one that is set up, or the CPU's where there is none.
pub fn prepare(project: &Project, source: Option<Source>) -> Result<()> {
    let home = project.libtorch();
    clear_leftovers(&home)?;
    let folder = match source {
        None if is_whole(&home.join("run")) => None,
        None => Some(fetch(&home, Flavour::Cpu, None)?),
        Some(Source::Wheels(flavour, index)) => Some(fetch(&home, flavour, index.as_deref())?),
        Some(Source::Folder(folder)) => Some(adopt(&home, &folder)?),
        Some(Source::InstalledPyTorch) => Some(adopt(&home, &installed()?)?),
    };
    if let Some(name) = folder {
        tools::link(Path::new(&name), &home.join("run"))?;
        println!("libtorch {VERSION}: {}", home.join(&name).display());
    }
    link_folder(project)
}

fn is_whole(folder: &Path) -> bool {
    folder.join(WHOLE).is_file() && folder.join("torch/lib").join(LINKED[0]).is_file()
}

/// What interrupted set-ups left; no other runs now.
fn clear_leftovers(home: &Path) -> Result<()> {
    for entry in fs::read_dir(home)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("unfinished-") {
            fs::remove_dir_all(entry.path()).with_context(|| format!("{}", entry.path().display()))?;
        }
    }
    Ok(())
}

fn fetch(home: &Path, flavour: Flavour, index: Option<&str>) -> Result<String> {
    let name = flavour.name().to_owned();
    let place = home.join(&name);
    if is_whole(&place) {
        return Ok(name);
    }
    if flavour == Flavour::Rocm && index.is_none() {
        bail!("give --index-url with the address of PyTorch's wheel index for your ROCm version (see pytorch.org, Get Started)");
    }
    tools::python()?;
    let (download, unpacked) = if flavour == Flavour::Cpu { (600_000_000, 700_000_000) } else { (4_500_000_000, 9_000_000_000) };
    tools::room(home, download + unpacked)?;
    let unfinished = home.join(format!("unfinished-{name}"));
    let archives = unfinished.join("wheels");
    fs::create_dir_all(&archives)?;
    tools::say(&format!("fetching libtorch {VERSION} for {name} (about {} MB)", download / 1_000_000));
    wheels::download(&archives, flavour, index)?;
    let tree = unfinished.join("tree");
    for archive in fs::read_dir(&archives)?.flatten() {
        wheels::unpack(&archive.path(), &tree, flavour)?;
    }
    if !tree.join("torch/lib").join(LINKED[0]).is_file() {
        bail!("the wheels held no torch/lib/{}: fetch again, or use --libtorch with an unpacked libtorch", LINKED[0]);
    }
    fs::write(tree.join(WHOLE), VERSION)?;
    if place.exists() {
        fs::rename(&place, unfinished.join("replaced"))?;
    }
    fs::rename(&tree, &place)?;
    fs::remove_dir_all(&unfinished)?;
    Ok(name)
}

/// The folder of the PyTorch that python3 has.
fn installed() -> Result<PathBuf> {
    let code = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])";
    let found = tools::ask(Command::new("python3").args(["-c", code]));
    found.map(PathBuf::from).context("python3 has no PyTorch: install torch 2.11, or leave --pytorch out")
}

/// Points at a libtorch of the user's.
fn adopt(home: &Path, folder: &Path) -> Result<String> {
    let folder = fs::canonicalize(folder).with_context(|| format!("{}", folder.display()))?;
    for needed in LINKED[..2].iter().map(|library| folder.join("lib").join(library)).chain([folder.join("include/ATen/ATen.h")]) {
        if !needed.exists() {
            bail!("{} is no libtorch: {} is missing", folder.display(), needed.display());
        }
    }
    let version = version(&folder).with_context(|| format!("{}: the version can't be told", folder.display()))?;
    if !version.starts_with("2.11.") {
        bail!("{}: libtorch {version}, 2.11 is needed", folder.display());
    }
    let place = home.join("own");
    fs::create_dir_all(&place)?;
    tools::link(&folder, &place.join("torch"))?;
    fs::write(place.join(WHOLE), &version)?;
    Ok("own".into())
}

fn version(folder: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(folder.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    let text = fs::read_to_string(folder.join("version.py")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim_matches(['\'', '"']).to_owned())
}

/// Headers and just the libraries that the program is linked against, by way of `run`.
fn link_folder(project: &Project) -> Result<()> {
    let link = project.link();
    let lib = link.join("lib");
    fs::create_dir_all(&lib)?;
    tools::link(Path::new("../run/torch/include"), &link.join("include"))?;
    for library in LINKED {
        tools::link(&Path::new("../../run/torch/lib").join(library), &lib.join(library))?;
    }
    // The real libtorch.so asks for the GPU libraries; the program loads those itself, where there are any.
    write_if_changed(&lib.join("libtorch.so"), "INPUT(libtorch_cpu.so)\n")?;
    write_if_changed(&link.join("build-version"), VERSION)
}

/// Leaves the file's time alone where nothing changes, so that cargo rebuilds nothing.
fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("{}", path.display()))
}
