//! `cargo xtask wheel`: the two wheels, `tilewright` and `tilewright-engine`, into `target/wheels`.
//! Two builds of one commit have the same bytes.

use std::{
    collections::BTreeMap,
    env::consts::ARCH,
    fs,
    io::{Cursor, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use zip::{CompressionMethod, DateTime, ZipWriter, write::SimpleFileOptions};

use crate::{crates::Graph, libtorch, notices, project::Project, tools};

/// Both wheels' names, as in `Name:`.
pub const LIBRARY: &str = "tilewright";
pub const ENGINE: &str = "tilewright-engine";

/// The notices of what others have made and is in the wheels.
const NOTICES: &str = "THIRD-PARTY";

/// The C library that the wheels say that they need, as 2.N.
const C_LIBRARY: u32 = 34;

/// The run path of the program in `site-packages/tilewright_engine/bin`.
const RUN_PATH: &str = "$ORIGIN/../../torch/lib";

/// The folders that come along with the program.
const BUNDLED: [&str; 2] = ["examples/models", "examples/latents"];

/// Files that only those who made the models need.
const LEFT_OUT: [&str; 1] = ["train.py"];

/// The largest that both wheels may be, in bytes.
const MOST_OF_LIBRARY: u64 = 25_000_000;
const MOST_OF_ENGINE: u64 = 60_000_000;

/// A wheel's files, by their paths in it, each with true if it is a program
/// (packaging.python.org, "Binary distribution format").
struct Wheel {
    /// As in `Name:`.
    name: &'static str,
    tag: String,
    most_bytes: u64,
    metadata: String,
    files: BTreeMap<String, (Vec<u8>, bool)>,
}

impl Wheel {
    fn new(project: &Project, name: &'static str, tag: String, most_bytes: u64, fields: &[&str]) -> Result<Self> {
        let version = env!("CARGO_PKG_VERSION");
        let readme = fs::read_to_string(project.root.join("README.md"))?;
        let fields = fields.join("\n");
        let metadata = format!(
            "Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: Apache-2.0 OR MIT\n\
             License-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\nLicense-File: {NOTICES}\nRequires-Python: >=3.10\n\
             Classifier: Operating System :: POSIX :: Linux\n{fields}\n\
             Description-Content-Type: text/markdown\n\n{readme}"
        );
        let mut wheel = Self { name, tag, most_bytes, metadata, files: BTreeMap::new() };
        for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = fs::read(project.root.join(license))?;
            wheel.add(format!("{}/licenses/{license}", wheel.info()), text, false);
        }
        Ok(wheel)
    }

    fn add(&mut self, path: String, bytes: Vec<u8>, is_program: bool) {
        self.files.insert(path, (bytes, is_program));
    }

    /// Adds the files of a folder that git tracks.
    fn add_tracked(&mut self, project: &Project, folder: &str, to: impl Fn(&str) -> Option<String>) -> Result<()> {
        let listed = Command::new("git").args(["ls-files", "-z", folder]).current_dir(&project.root).output()?;
        let listed = String::from_utf8(listed.stdout).context("git names a file in no UTF-8")?;
        if listed.is_empty() {
            bail!("git tracks nothing in {folder}: wheels are built in a checkout");
        }
        for path in listed.split_terminator('\0') {
            if let Some(to) = to(path) {
                self.add(to, fs::read(project.root.join(path)).with_context(|| path.to_owned())?, false);
            }
        }
        Ok(())
    }

    fn with_notices(mut self, notices: &str) -> Self {
        self.add(format!("{}/licenses/{NOTICES}", self.info()), notices.as_bytes().to_vec(), false);
        self
    }

    /// The name as in files' names.
    fn file_name(&self) -> String {
        self.name.replace('-', "_")
    }

    fn info(&self) -> String {
        format!("{}-{}.dist-info", self.file_name(), env!("CARGO_PKG_VERSION"))
    }

    /// Writes the wheel into a folder, where the earlier ones of the package go; its path.
    fn write(mut self, folder: &Path, time: DateTime) -> Result<PathBuf> {
        let info = self.info();
        let is_pure = self.tag.ends_with("-any");
        let wheel =
            format!("Wheel-Version: 1.0\nGenerator: cargo-xtask\nRoot-Is-Purelib: {is_pure}\nTag: {}\n", self.tag);
        self.add(format!("{info}/METADATA"), self.metadata.clone().into_bytes(), false);
        self.add(format!("{info}/WHEEL"), wheel.into_bytes(), false);
        let record: Vec<String> = self.files.iter().map(|(path, (bytes, _))| record_line(path, bytes)).collect();
        let record = format!("{}\n{info}/RECORD,,\n", record.join("\n"));
        self.add(format!("{info}/RECORD"), record.into_bytes(), false);
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(9))
            .last_modified_time(time);
        // The list of files comes last, so that a reader has what it lists.
        let is_info = |path: &str| path.starts_with(&info);
        let (last, first): (Vec<_>, Vec<_>) = self.files.iter().partition(|(path, _)| is_info(path));
        for (path, (bytes, is_program)) in first.into_iter().chain(last) {
            zip.start_file(path, options.unix_permissions(if *is_program { 0o755 } else { 0o644 }))?;
            zip.write_all(bytes)?;
        }
        let bytes = zip.finish()?.into_inner();
        let most = self.most_bytes;
        if bytes.len() as u64 > most {
            bail!("{} has {} MB, more than {} MB", self.name, bytes.len() / 1_000_000, most / 1_000_000);
        }
        let path = folder.join(format!("{}-{}-{}.whl", self.file_name(), env!("CARGO_PKG_VERSION"), self.tag));
        let at = || path.display().to_string();
        // Nobody takes a wheel that is written in part.
        let mut unfinished = tempfile::Builder::new();
        unfinished.prefix("unfinished-wheel-").permissions(fs::Permissions::from_mode(0o644));
        let mut unfinished = unfinished.tempfile_in(folder).with_context(at)?;
        unfinished.write_all(&bytes).with_context(at)?;
        unfinished.persist(&path).with_context(at)?;
        remove_others(folder, &format!("{}-", self.file_name()), &path)?;
        println!("built {} ({:.1} MB)", path.display(), bytes.len() as f64 / 1e6);
        Ok(path)
    }
}

/// A line of a wheel's list of files.
fn record_line(path: &str, bytes: &[u8]) -> String {
    let path = if path.contains([',', '"']) { format!("\"{}\"", path.replace('"', "\"\"")) } else { path.to_owned() };
    format!("{path},sha256={},{}", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)), bytes.len())
}

/// Removes a package's wheels but one from a folder: whoever installs all of it gets that one.
fn remove_others(folder: &Path, start: &str, kept: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(start) && name.ends_with(".whl") && path != kept {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Builds both wheels into a folder.
pub fn build(project: &Project, folder: &Path) -> Result<()> {
    let time = commit_time(project)?;
    let notices = notices::of(&project.root, &Graph::read(project)?)?;
    let native = compile(project, "tilewright-python", "lib_native.so")?;
    let program = compile(project, "tilewright-cli", "tilewright")?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    library(project, native)?.with_notices(&notices).write(folder, time)?;
    engine(project, program)?.with_notices(&notices).write(folder, time)?;
    Ok(())
}

/// The folders of this machine whose names are in a file.
fn folders_in(bytes: &[u8], folders: &[(PathBuf, &'static str)]) -> Vec<String> {
    let names = folders.iter().map(|(folder, _)| folder.display().to_string());
    names.filter(|name| bytes.windows(name.len()).any(|window| window == name.as_bytes())).collect()
}

/// The highest N of the versions `GLIBC_2.N` of the C library's functions that a binary names.
fn c_library_of(bytes: &[u8]) -> Option<u32> {
    const VERSION: &[u8] = b"GLIBC_2.";
    let is_version = |at: &usize| bytes[*at..].starts_with(VERSION);
    let number = |at: usize| {
        let digits = bytes[at + VERSION.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        let digits: String = digits.take(4).map(|byte| char::from(*byte)).collect();
        digits.parse::<u32>().ok()
    };
    (0..bytes.len()).filter(is_version).filter_map(number).max()
}

/// Refuses a binary for a newer C library than the wheels name.
fn check_c_library(binary: &Path, bytes: &[u8]) -> Result<()> {
    match c_library_of(bytes).filter(|needed| *needed > C_LIBRARY) {
        Some(needed) => bail!(
            "{}: needs glibc 2.{needed}, and the wheels are for 2.{C_LIBRARY}: build them on a system with an older glibc",
            binary.display()
        ),
        None => Ok(()),
    }
}

/// The wheel of the Python package, with its native module.
fn library(project: &Project, native: Vec<u8>) -> Result<Wheel> {
    let engine = format!("Requires-Dist: {ENGINE}=={}; extra == 'engine'", env!("CARGO_PKG_VERSION"));
    let mut wheel = Wheel::new(
        project,
        LIBRARY,
        format!("cp310-abi3-manylinux_2_{C_LIBRARY}_{ARCH}"),
        MOST_OF_LIBRARY,
        &[
            "Summary: Pictures and clips of diffusion models under WebAssembly policies: the program as a child, and the service",
            "Requires-Dist: httpx>=0.27",
            "Provides-Extra: engine",
            &engine,
            "Provides-Extra: ray",
            "Requires-Dist: ray[data]>=2.60; extra == 'ray'",
        ],
    )?;
    wheel
        .add_tracked(project, "host/python/tilewright", |path| path.strip_prefix("host/python/").map(str::to_owned))?;
    wheel.add("tilewright/_native.abi3.so".into(), native, true);
    let entry = b"[console_scripts]\ntilewright = tilewright._command:main\n".to_vec();
    wheel.add(format!("{}/entry_points.txt", wheel.info()), entry, false);
    Ok(wheel)
}

/// The wheel of the program, with the models that come along.
fn engine(project: &Project, program: Vec<u8>) -> Result<Wheel> {
    let torch =
        format!("Requires-Dist: torch=={}.*", libtorch::VERSION.rsplit_once('.').map_or("", |(minor, _)| minor));
    let mut wheel = Wheel::new(
        project,
        ENGINE,
        format!("py3-none-manylinux_2_{C_LIBRARY}_{ARCH}"),
        MOST_OF_ENGINE,
        &["Summary: The program of Tilewright, which runs on the PyTorch beside it", &torch],
    )?;
    wheel.add(
        "tilewright_engine/__init__.py".into(),
        b"\"\"\"The program of Tilewright, in bin.\"\"\"\n".to_vec(),
        false,
    );
    wheel.add("tilewright_engine/bin/tilewright".into(), program, true);
    for bundled in BUNDLED {
        wheel.add_tracked(project, bundled, |path| {
            let is_kept = LEFT_OUT.iter().all(|name| !path.ends_with(name));
            is_kept.then(|| format!("tilewright_engine/{path}"))
        })?;
    }
    Ok(wheel)
}

/// Compiles a package for any machine, so that no path of this one is in it. Returns the file that
/// was made.
fn compile(project: &Project, package: &str, file: &str) -> Result<Vec<u8>> {
    tools::say(&format!("compiling {package} for wheels (the first time takes about ten minutes on two cores)"));
    let target = project.target().join("wheel");
    let hidden = project.hidden_folders();
    let cpp: Vec<String> =
        hidden.iter().map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display())).collect();
    let mut cargo = project.cargo();
    cargo.args(["build", "--release", "-p", package, "--locked", "--target-dir"]).arg(&target);
    project.hide_folders_alone(&mut cargo);
    cargo.env("CFLAGS", cpp.join(" ")).env("CXXFLAGS", cpp.join(" "));
    cargo.env("TILEWRIGHT_RUN_PATH", RUN_PATH).env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    tools::run(&mut cargo)?;
    let made = target.join("release").join(file);
    let bytes = fs::read(&made).with_context(|| made.display().to_string())?;
    if let Some(folder) = folders_in(&bytes, &hidden).first() {
        bail!("{}: names {folder}, a folder of this machine, which no wheel may", made.display());
    }
    check_c_library(&made, &bytes)?;
    Ok(bytes)
}

/// The time of the last commit, in UTC: that of every file in the wheels.
fn commit_time(project: &Project) -> Result<DateTime> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%cd", "--date=format-local:%Y %m %d %H %M %S"]);
    let listed = git.env("TZ", "UTC").current_dir(&project.root).output()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let parts: Vec<u16> = text.split_whitespace().filter_map(|part| part.parse().ok()).collect();
    let &[year, month, day, hour, minute, second] = &parts[..] else {
        bail!("git does not tell the time of the last commit: wheels are built in a checkout");
    };
    let time = DateTime::from_date_and_time(year, month as u8, day as u8, hour as u8, minute as u8, second as u8);
    time.ok().context("the last commit has no time that a wheel can have")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_files_have_digests_and_sizes() {
        // sha256 of nothing, in base64 for URLs without padding.
        assert_eq!(record_line("a", b""), "a,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0");
        assert!(record_line("a,\"b", b"x").starts_with("\"a,\"\"b\",sha256="));
    }

    #[test]
    fn folders_of_this_machine_are_found() {
        let folders = [(PathBuf::from("/home/a/.cargo"), "/cargo"), (PathBuf::from("/b"), ".")];
        assert_eq!(folders_in(b"\0at /home/a/.cargo/registry/x.rs\0", &folders), ["/home/a/.cargo"]);
        assert!(folders_in(b"at /cargo/registry/x.rs", &folders).is_empty());
    }

    #[test]
    fn a_binary_for_a_newer_c_library_is_refused() {
        let of = |versions: &str| c_library_of(versions.as_bytes());
        assert_eq!(of("\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0GLIBC_PRIVATE\0GLIBC_2."), Some(34));
        assert_eq!(of("GLIBCXX_3.4.30"), None);
        let check = |versions: &[u8]| check_c_library(Path::new("a.so"), versions);
        assert!(check(b"\0GLIBC_2.34\0").is_ok());
        let line = check(b"\0GLIBC_2.4\0GLIBC_2.36\0").unwrap_err().to_string();
        assert!(line.starts_with("a.so: needs glibc 2.36, and the wheels are for 2.34: build"), "{line}");
    }

    #[test]
    fn earlier_wheels_of_a_package_alone_go() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            ["tilewright-0.1.0-a.whl", "tilewright-0.2.0-a.whl", "tilewright_engine-0.1.0-a.whl", "tilewright-a"];
        let paths = names.map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "").unwrap());
        remove_others(folder.path(), "tilewright-", &paths[1]).unwrap();
        assert_eq!(paths.map(|path| path.exists()), [false, true, true, true]);
    }

    #[test]
    fn the_package_is_a_wheel_that_two_builds_make_alike() {
        let project = Project { root: Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned() };
        let Ok(time) = commit_time(&project) else { return };
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::read(library(&project, b"module".to_vec()).unwrap().write(&folder, time).unwrap()).unwrap()
        };
        let (one, other) = (write("one"), write("other"));
        assert!(one == other);
        let mut zip = zip::ZipArchive::new(Cursor::new(one)).unwrap();
        let names: Vec<String> = zip.file_names().map(str::to_owned).collect();
        for name in [
            "tilewright/__init__.py",
            "tilewright/py.typed",
            "tilewright/engine.py",
            "tilewright/diffusers.py",
            "tilewright/executor/__init__.py",
            "tilewright/_native.abi3.so",
        ] {
            assert!(names.iter().any(|found| found == name), "{names:?}");
        }
        let metadata = zip.by_name(&format!("tilewright-{}.dist-info/METADATA", env!("CARGO_PKG_VERSION")));
        let metadata = std::io::read_to_string(metadata.unwrap()).unwrap();
        assert!(metadata.contains("\nRequires-Python: >=3.10\n") && metadata.contains("extra == 'engine'"));
        assert!(metadata.contains("\nProvides-Extra: ray\n") && metadata.contains("ray[data]>=2.60; extra == 'ray'"));
    }
}
