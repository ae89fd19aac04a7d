//! From a project to a policy's file: the tool-chain makes it, what execution doesn't need is taken out, and it is loaded once as the host
//! will load it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Serialize;
use tilewright_policy::{CacheDir, Inspection, Kind, Limits, PolicyHost, Wasi, as_component};

use super::{Language, ProjectError, shrink, toolchain};

/// How a project is to be built.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Where the policy goes; by default into the project, under the folder's name.
    pub output: Option<PathBuf>,
    /// Leave in what the language's runtime imports of WASI, so that what it prints reaches the policy's log; the policy needs an inert WASI
    /// to run then.
    pub wasi: Wasi,
    /// The memory that the policy is granted, in bytes, where the language's usual share is not right.
    pub memory_bytes: Option<usize>,
}

/// A policy that was built and loads.
#[derive(Clone, Debug, Serialize)]
pub struct Built {
    /// What the project is written in.
    pub language: Language,
    /// The program that compiled it.
    pub tool: String,
    /// The policy's file.
    pub path: PathBuf,
    /// Bytes of what the tool-chain made, and what is left of them.
    pub made_bytes: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// How long the tool-chain took.
    #[serde(rename = "build_ms", serialize_with = "milliseconds")]
    pub build: Duration,
    /// How long loading took, compiling included where it was not kept from before.
    #[serde(rename = "load_ms", serialize_with = "milliseconds")]
    pub load: Duration,
    /// What the policy has to be granted to run, as the command line's options.
    pub grants: Vec<String>,
    /// What the tool-chain had to remark.
    pub remarks: Vec<String>,
    /// What the policy says of itself.
    pub policy: Inspection,
}

/// Builds the project in a folder.
///
/// # Errors
/// Any [`ProjectError`]; a file that was built before stays as it was.
pub fn build(project: &Path, wanted: &Wanted, cache: &CacheDir) -> Result<Built, ProjectError> {
    let language = Language::of(project)?;
    let project = fs::canonicalize(project).map_err(ProjectError::file(project))?;
    let path = wanted.output.clone().unwrap_or_else(|| {
        let name = project.file_name().unwrap_or("policy".as_ref()).to_string_lossy();
        project.join(format!("{name}.wasm"))
    });
    let started = Instant::now();
    let made = toolchain::make(&project, language, wanted.wasi != Wasi::None)?;
    let build = started.elapsed();
    let origin = path.display().to_string();
    let wasm = component(&origin, &made.wasm)?;

    let memory_bytes = wanted.memory_bytes.or(language.memory_bytes());
    let limits = Limits::default().granting(wanted.wasi, memory_bytes);
    let started = Instant::now();
    let policy = PolicyHost::new(limits, cache)?.load(&origin, &wasm)?.inspection().clone();
    let load = started.elapsed();
    write(&path, &wasm)?;

    let needs_wasi = policy.imports.iter().any(|import| import.starts_with("wasi:"));
    let memory = memory_bytes.map(|bytes| format!("--policy-memory {}MiB", bytes >> 20));
    let grants = memory.into_iter().chain(needs_wasi.then(|| "--wasi inert".into())).collect();
    Ok(Built {
        language,
        tool: made.tool,
        path,
        made_bytes: made.wasm.len() as u64,
        bytes: wasm.len() as u64,
        build,
        load,
        grants,
        remarks: made.remarks,
        policy,
    })
}

/// The smallest component that does the same.
fn component(origin: &str, made: &[u8]) -> Result<Vec<u8>, ProjectError> {
    let small = shrink::shrunk(made);
    if Kind::of(&small) == Some(Kind::CoreModule) {
        let module = toolchain::optimised(&small).unwrap_or(small);
        return Ok(shrink::shrunk(&as_component(origin, &module)?));
    }
    Ok(small)
}

/// Puts the file in place at once.
fn write(path: &Path, bytes: &[u8]) -> Result<(), ProjectError> {
    tilewright_outputs::write_whole(path, bytes).map_err(ProjectError::file(path))
}

fn milliseconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64() * 1e3)
}
