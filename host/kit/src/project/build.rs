//! Builds a project into a policy's file: the tool-chain compiles it, sections that execution
//! doesn't need are removed, and it is loaded once as the host will load it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Serialize;
use tilewright_policy::{CacheDir, Inspection, Limits, ModuleKind, PolicyHost, Wasi, as_component, shrink};

use super::{Language, ProjectError, toolchain};

/// The options of a build.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// The path of the policy; by default in the project, under the folder's name.
    pub output: Option<PathBuf>,
    /// Keeps the imports of WASI of the language's runtime, so that its output reaches the policy's
    /// log; the policy then needs an inert WASI to run.
    pub wasi: Wasi,
    /// The memory that the policy is granted, in bytes, if the language's usual limit is not right.
    pub memory_bytes: Option<usize>,
}

/// A policy that was built and loads.
#[derive(Clone, Debug, Serialize)]
pub struct Built {
    /// The project's language.
    pub language: Language,
    /// The program that compiled it.
    pub tool: String,
    /// The policy's file.
    pub path: PathBuf,
    /// Bytes of the tool-chain's output, before sections are removed.
    pub made_bytes: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The time of the tool-chain.
    #[serde(rename = "build_ms", serialize_with = "milliseconds")]
    pub build: Duration,
    /// The time of loading, including compiling unless it was cached.
    #[serde(rename = "load_ms", serialize_with = "milliseconds")]
    pub load: Duration,
    /// The grants that the policy needs, as the command line's options.
    pub grants: Vec<String>,
    /// The tool-chain's warnings.
    pub remarks: Vec<String>,
    /// The policy's description of itself.
    pub policy: Inspection,
}

/// Builds the project in a folder.
///
/// # Errors
/// Any [`ProjectError`]; an existing file stays.
pub fn build(project: &Path, wanted: &BuildOptions, cache: &CacheDir) -> Result<Built, ProjectError> {
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
    let small = shrink(made);
    if ModuleKind::of(&small) == Some(ModuleKind::CoreModule) {
        let module = toolchain::optimise(&small).unwrap_or(small);
        return Ok(shrink(&as_component(origin, &module)?));
    }
    Ok(small)
}

/// Writes the file atomically.
fn write(path: &Path, bytes: &[u8]) -> Result<(), ProjectError> {
    tilewright_outputs::write_whole(path, bytes).map_err(ProjectError::file(path))
}

fn milliseconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64() * 1e3)
}
