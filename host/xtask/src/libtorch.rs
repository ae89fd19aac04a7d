//! libtorch in the folders that the build and the program expect:
//!
//! ```text
//! .libtorch/<flavour>/torch/{include,lib}   unpacked, complete or not there at all
//! .libtorch/run  → <flavour>                what the program runs with
//! .libtorch/link/{include,lib}              linked against, the same for every flavour
//! ```

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{
    project::Project,
    tools,
    wheels::{self, Index},
};

/// The version that tch 0.24 is built for.
pub const VERSION: &str = "2.11.0";

/// The marker file, written last into an unpacked folder, with the size and path of each library. A
/// folder without it is incomplete.
const WHOLE: &str = "unpacked-whole";

/// The folder of wheels that are not unpacked yet.
const WHEELS: &str = "wheels";

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

/// The source of a libtorch.
pub enum Source {
    /// Python wheels.
    Wheels(Flavour, Option<String>),
    /// A folder of the user's.
    Folder(PathBuf),
    /// The PyTorch that python3 has.
    InstalledPyTorch,
}

/// Sets up the requested libtorch, or the one that is set up already, or else the CPU's.
pub fn prepare(project: &Project, lock: &File, source: Option<Source>) -> Result<()> {
    let home = project.libtorch();
    clear_leftovers(&home)?;
    let folder = match source {
        None if is_whole(&home.join("run")) => None,
        None => Some(fetch(&home, lock, Flavour::Cpu, None)?),
        Some(Source::Wheels(flavour, index)) => Some(fetch(&home, lock, flavour, index.as_deref())?),
        Some(Source::Folder(folder)) => Some(adopt(&home, &folder)?),
        Some(Source::InstalledPyTorch) => Some(adopt(&home, &find_installed()?)?),
    };
    if let Some(name) = folder {
        tools::link(Path::new(&name), &home.join("run"))?;
        println!("libtorch {VERSION}: {}", home.join(&name).display());
    }
    link_folder(project)
}

fn is_whole(folder: &Path) -> bool {
    let Ok(listing) = fs::read_to_string(folder.join(WHOLE)) else { return false };
    let is_as_listed = |line: &str| {
        let Some((size, path)) = line.split_once(' ') else { return false };
        fs::metadata(folder.join(path)).is_ok_and(|file| Ok(file.len()) == size.parse())
    };
    folder.join("torch/lib").join(LINKED[0]).is_file() && listing.lines().all(is_as_listed)
}

/// Marks a folder as complete. The marker is on the disk before the folder gets its name.
fn mark_whole(folder: &Path) -> Result<()> {
    let mut listing = Vec::new();
    list_libraries(folder, Path::new(""), &mut listing)?;
    listing.sort();
    let mut file = File::create(folder.join(WHOLE))?;
    file.write_all(listing.concat().as_bytes())?;
    Ok(file.sync_all()?)
}

/// A line for each library below a folder: its size and path.
fn list_libraries(folder: &Path, below: &Path, listing: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder.join(below))? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if kind.is_dir() && name != "include" {
            list_libraries(folder, &below.join(name), listing)?;
        } else if kind.is_file() && name.to_string_lossy().contains(".so") {
            listing.push(format!("{} {}\n", entry.metadata()?.len(), below.join(name).display()));
        }
    }
    Ok(())
}

/// Removes leftovers of interrupted set-ups; no other set-up runs now. Wheels stay: pip reuses
/// those with the right hash.
fn clear_leftovers(home: &Path) -> Result<()> {
    for entry in fs::read_dir(home)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("unfinished-") {
            continue;
        }
        for inside in fs::read_dir(entry.path())?.flatten().filter(|inside| inside.file_name() != WHEELS) {
            let path = inside.path();
            let removed = if inside.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("{} is left from an interrupted set-up: remove it", path.display()))?;
        }
    }
    Ok(())
}

fn fetch(home: &Path, lock: &File, flavour: Flavour, index: Option<&str>) -> Result<String> {
    let name = tools::name_of(flavour);
    let place = home.join(&name);
    if is_whole(&place) {
        return Ok(name);
    }
    if flavour == Flavour::Rocm && index.is_none() {
        bail!(
            "give --index-url with the address of PyTorch's wheel index for your ROCm version (its 'Get Started' page shows it), \
             or use an installed PyTorch {VERSION} for ROCm with --pytorch"
        );
    }
    let (download, unpacked) =
        if flavour == Flavour::Cpu { (550_000_000, 550_000_000) } else { (4_500_000_000, 9_000_000_000) };
    // pip holds a wheel twice, or three times with its cache, before it is unpacked.
    tools::room(home, 3 * download + unpacked)?;
    let unfinished = home.join(format!("unfinished-{name}"));
    let archives = unfinished.join(WHEELS);
    fs::create_dir_all(&archives)?;
    let python = tools::python(&unfinished)?;
    tools::say(&format!("fetching libtorch {VERSION} for {name} (about {} MB)", download / 1_000_000));
    let from = Index { python: &python, lock, scratch: &unfinished.join("pip"), url: index };
    wheels::download(&from, &archives, flavour)?;
    let tree = unfinished.join("tree");
    for archive in fs::read_dir(&archives)?.flatten() {
        wheels::unpack(&archive.path(), &tree, flavour)?;
    }
    if !tree.join("torch/lib").join(LINKED[0]).is_file() {
        bail!("the wheels held no torch/lib/{}: fetch again, or use --libtorch with an unpacked libtorch", LINKED[0]);
    }
    mark_whole(&tree)?;
    if place.exists() {
        fs::rename(&place, unfinished.join("replaced"))?;
    }
    fs::rename(&tree, &place)?;
    fs::remove_dir_all(&unfinished)?;
    Ok(name)
}

/// The folder of the PyTorch that python3 has.
fn find_installed() -> Result<PathBuf> {
    let code = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])";
    let found = tools::ask(Command::new("python3").args(["-c", code]));
    found.map(PathBuf::from).context("python3 has no PyTorch: install torch 2.11, or leave --pytorch out")
}

/// Sets up a libtorch of the user's.
fn adopt(home: &Path, folder: &Path) -> Result<String> {
    let folder = fs::canonicalize(folder).with_context(|| format!("{}", folder.display()))?;
    check(&folder)?;
    let place = home.join("own");
    fs::create_dir_all(&place)?;
    // Incomplete while it is changed.
    let _ = fs::remove_file(place.join(WHOLE));
    tools::link(&folder, &place.join("torch"))?;
    mark_whole(&place)?;
    for line in missing_libraries(&folder) {
        println!("warning: {line}");
    }
    Ok("own".into())
}

/// The libraries that those of an adopted libtorch need and the loader does not find, a line for
/// each library that can't be loaded. AMD's own wheels have ROCm's beside torch, where the program
/// looks, too.
fn missing_libraries(folder: &Path) -> Vec<String> {
    let beside = folder.parent().and_then(|packages| fs::read_dir(packages).ok()).into_iter().flatten().flatten();
    let is_rocm = |name: &str| name == "_rocm_sdk_core" || name.starts_with("_rocm_sdk_libraries");
    let rocm: Vec<PathBuf> = beside
        .filter(|entry| entry.file_name().to_str().is_some_and(is_rocm))
        .map(|entry| entry.path().join("lib"))
        .collect();
    let search = std::env::join_paths(&rocm).unwrap_or_default();
    let libraries =
        ["libtorch_cpu.so", "libtorch_cuda.so", "libtorch_hip.so"].map(|name| folder.join("lib").join(name));
    let lacking = libraries.iter().filter(|library| library.is_file()).filter_map(|library| {
        let listing = tools::ask(Command::new("ldd").arg(library).env("LD_LIBRARY_PATH", &search))?;
        let names: Vec<&str> = listing.lines().filter_map(missing_library).collect();
        let what = format!("{} can't be loaded: {} can't be found", library.display(), names.join(", "));
        (!names.is_empty()).then_some(what)
    });
    lacking.collect()
}

/// The library that a line of `ldd` says is missing.
fn missing_library(line: &str) -> Option<&str> {
    Some(line.trim().strip_suffix("=> not found")?.trim())
}

/// Checks that a folder is an unpacked libtorch of the version needed.
pub fn check(folder: &Path) -> Result<()> {
    for needed in
        LINKED[..2].iter().map(|library| folder.join("lib").join(library)).chain([folder.join("include/ATen/ATen.h")])
    {
        if !needed.exists() {
            bail!("{} is no libtorch: {} is missing", folder.display(), needed.display());
        }
    }
    let version = version(folder).with_context(|| format!("{}: the version can't be told", folder.display()))?;
    if !version.starts_with("2.11.") {
        bail!("{}: libtorch {version}, 2.11 is needed", folder.display());
    }
    Ok(())
}

fn version(folder: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(folder.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    if let Ok(text) = fs::read_to_string(folder.join("version.py")) {
        let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
        return Some(line.trim_matches(['\'', '"']).to_owned());
    }
    let header = fs::read_to_string(folder.join("include/torch/headeronly/version.h")).ok()?;
    let number = |name: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix("#define TORCH_VERSION_")?.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    Some(format!("{}.{}.{}", number("MAJOR ")?, number("MINOR ")?, number("PATCH ")?))
}

/// Fills the link folder: headers and just the libraries that the program is linked against,
/// through `run`.
fn link_folder(project: &Project) -> Result<()> {
    let link = project.link();
    let lib = link.join("lib");
    fs::create_dir_all(&lib)?;
    tools::link(Path::new("../run/torch/include"), &link.join("include"))?;
    for library in LINKED {
        tools::link(&Path::new("../../run/torch/lib").join(library), &lib.join(library))?;
    }
    // The real libtorch.so needs the GPU libraries; the program loads those itself, if there are
    // any.
    write_if_changed(&lib.join("libtorch.so"), "INPUT(libtorch_cpu.so)\n")?;
    write_if_changed(&link.join("build-version"), VERSION)
}

/// Writes a file only if it changes, so that cargo rebuilds nothing.
fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_told_from_those_that_are_there() {
        let listing =
            "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibamdhip64.so.7 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n";
        assert_eq!(listing.lines().filter_map(missing_library).collect::<Vec<_>>(), ["libamdhip64.so.7"]);
    }

    /// A shared library of C, which needs another one if that is given.
    fn library(path: &Path, needs: Option<&Path>) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let source = path.with_extension("c");
        fs::write(&source, "int part(void) { return 1; }\n").unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(path).arg(&source).args(needs);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(compiler.arg(format!("-Wl,-soname,{name}")).status().unwrap().success());
    }

    #[test]
    fn amds_own_wheels_have_rocms_libraries_beside_torch() {
        let home = tempfile::tempdir().unwrap();
        let (torch, rocm) = (home.path().join("torch"), home.path().join("_rocm_sdk_core/lib"));
        library(&rocm.join("libamdmadeup.so"), None);
        library(&torch.join("lib/libtorch_cpu.so"), None);
        library(&torch.join("lib/libtorch_hip.so"), Some(&rocm.join("libamdmadeup.so")));
        assert_eq!(missing_libraries(&torch), Vec::<String>::new());
        fs::rename(&rocm, home.path().join("elsewhere")).unwrap();
        let [line] = &missing_libraries(&torch)[..] else { panic!("one line was expected") };
        assert!(line.ends_with("libtorch_hip.so can't be loaded: libamdmadeup.so can't be found"), "{line}");
    }

    fn lay_out(folder: &Path) {
        fs::create_dir_all(folder.join("torch/lib")).unwrap();
        for library in LINKED {
            fs::write(folder.join("torch/lib").join(library), "library").unwrap();
        }
    }

    #[test]
    fn only_a_marked_folder_with_libraries_of_full_size_is_whole() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        lay_out(folder);
        assert!(!is_whole(folder), "no marker yet");
        mark_whole(folder).unwrap();
        assert!(is_whole(folder));
        fs::write(folder.join("torch/lib/libc10.so"), "lib").unwrap();
        assert!(!is_whole(folder), "a library cut short");
        fs::remove_file(folder.join("torch/lib/libc10.so")).unwrap();
        assert!(!is_whole(folder), "a library gone");
    }

    #[test]
    fn leftovers_go_and_wheels_stay() {
        let home = tempfile::tempdir().unwrap();
        let unfinished = home.path().join("unfinished-cpu");
        for folder in ["tree/torch", "pip/cache", "wheels"] {
            fs::create_dir_all(unfinished.join(folder)).unwrap();
        }
        lay_out(&home.path().join("cpu"));
        clear_leftovers(home.path()).unwrap();
        assert_eq!(fs::read_dir(&unfinished).unwrap().count(), 1);
        assert!(unfinished.join(WHEELS).is_dir() && home.path().join("cpu/torch/lib").is_dir());
    }

    #[test]
    fn the_version_is_read_off_whichever_file_states_it() {
        let home = tempfile::tempdir().unwrap();
        let headers = home.path().join("include/torch/headeronly");
        fs::create_dir_all(&headers).unwrap();
        assert_eq!(version(home.path()), None);
        let header = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n";
        fs::write(headers.join("version.h"), header).unwrap();
        assert_eq!(version(home.path()).as_deref(), Some("2.9.1"));
        fs::write(home.path().join("version.py"), "__all__ = []\n__version__ = '2.10.0+cu130'\n").unwrap();
        assert_eq!(version(home.path()).as_deref(), Some("2.10.0+cu130"));
        fs::write(home.path().join("build-version"), "2.11.0+cpu\n").unwrap();
        assert_eq!(version(home.path()).as_deref(), Some("2.11.0+cpu"));
    }

    #[test]
    fn a_folder_that_is_no_libtorch_is_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let message = check(home.path()).unwrap_err().to_string();
        assert!(message.contains("lib/libtorch_cpu.so is missing"), "{message}");
    }
}
