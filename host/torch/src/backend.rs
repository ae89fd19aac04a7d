//! Back ends loaded at run time: the program is linked against libtorch's CPU side alone, and the
//! CUDA or ROCm side of the libtorch folder in use is loaded before the first tensor is made.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tilewright_plan::Backend;

use crate::{Error, Result, ffi};

/// GPU libraries by back end, in search order.
const GPU_LIBRARIES: [(Backend, &str); 2] = [(Backend::Cuda, "libtorch_cuda.so"), (Backend::Rocm, "libtorch_hip.so")];

/// A setting of libtorch, or of a back end's libraries.
struct Setting {
    /// None for every back end.
    backend: Option<Backend>,
    name: &'static str,
    value: &'static str,
    /// Other names of the same setting.
    aliases: &'static [&'static str],
}

/// Set before a back end's libraries start; each only if the user has not set it.
///
/// Memory in segments that grow suits tiles of many sizes. It is left off on ROCm, where it has
/// been seen to hang in the driver at the first allocation (pytorch issue 192259). MIOpen's search
/// for the best solver takes minutes without its fast mode (ROCm/TheRock issue 2591). Fused
/// attention on consumer cards counts as experimental there. Products by hipBLASLt are those that
/// AMD tunes; libtorch takes hipBLAS where it has none for the architecture. The profiler, Kineto,
/// logs an error where there is no driver of a GPU, which is no fault.
const ENVIRONMENT: [Setting; 5] = [
    Setting { backend: None, name: "KINETO_LOG_LEVEL", value: "99", aliases: &[] },
    Setting {
        backend: Some(Backend::Cuda),
        name: "PYTORCH_ALLOC_CONF",
        value: "expandable_segments:True",
        aliases: &["PYTORCH_CUDA_ALLOC_CONF"],
    },
    Setting { backend: Some(Backend::Rocm), name: "MIOPEN_FIND_MODE", value: "FAST", aliases: &[] },
    Setting { backend: Some(Backend::Rocm), name: "TORCH_BLAS_PREFER_HIPBLASLT", value: "1", aliases: &[] },
    Setting { backend: Some(Backend::Rocm), name: "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", value: "1", aliases: &[] },
];

/// The most libraries of ROCm's that are looked for by name because the loader misses them.
const MOST_MISSED: usize = 64;

/// Kept loaded for ever: libtorch registers itself in static tables.
static LOADED: OnceLock<Option<(Backend, Library)>> = OnceLock::new();

/// Two threads must not load at once.
static LOADING: Mutex<()> = Mutex::new(());

/// The folder that this process's libtorch was loaded from.
///
/// # Errors
/// The kernel does not tell.
pub fn folder() -> Result<PathBuf> {
    let failed = |reason: String| Error::Device { what: "looking for the libtorch in use".into(), reason };
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| failed(error.to_string()))?;
    let path = maps
        .lines()
        .find(|line| line.ends_with("/libtorch_cpu.so"))
        .and_then(|line| line.find('/').map(|at| &line[at..]));
    let path = path.ok_or_else(|| failed("libtorch_cpu.so is not loaded".into()))?;
    Ok(Path::new(path).parent().unwrap_or(Path::new("/")).to_owned())
}

/// The library folder of a libtorch given as its root or as the folder of its libraries.
///
/// # Errors
/// Neither folder holds `libtorch_cpu.so`.
pub fn library_folder(libtorch: &Path) -> Result<PathBuf> {
    [libtorch.join("lib"), libtorch.join("torch/lib"), libtorch.to_owned()]
        .into_iter()
        .find(|folder| folder.join("libtorch_cpu.so").is_file())
        .ok_or_else(|| Error::Device {
            what: format!("{}: no libtorch", libtorch.display()),
            reason: "there is no lib/libtorch_cpu.so in it".into(),
        })
}

/// The folders of ROCm's libraries that belong to a library folder of libtorch, as AMD's own wheels
/// install them: beside `torch`, in `_rocm_sdk_core` and `_rocm_sdk_libraries_*`. Python loads them
/// when it imports torch; the paths in torch's own files are those of the machine that built it
/// (ROCm/TheRock issue 7328).
pub fn rocm_folders(libraries: &Path) -> Vec<PathBuf> {
    let Some(packages) = libraries.ancestors().nth(2) else { return Vec::new() };
    let entries = fs::read_dir(packages).into_iter().flatten().flatten();
    let is_rocm = |name: &str| name == "_rocm_sdk_core" || name.starts_with("_rocm_sdk_libraries");
    let mut folders: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_rocm))
        .map(|entry| entry.path().join("lib"))
        .filter(|folder| folder.is_dir())
        .collect();
    folders.sort();
    folders
}

/// The back end of a library folder, and its library.
fn find(libraries: &Path) -> Option<(Backend, PathBuf)> {
    let paths = GPU_LIBRARIES.iter().map(|(backend, name)| (*backend, libraries.join(name)));
    paths.into_iter().find(|(_, path)| path.is_file())
}

/// Sets the environment of libtorch and of the back end beside it, where the user has not. For the
/// beginning of a program: nothing is set once there is another thread, since libraries read the
/// environment while they work.
pub fn set_environment() {
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let backend = folder().ok().and_then(|folder| find(&folder)).map(|(backend, _)| backend);
    if threads != 1 {
        tracing::warn!("libtorch's environment is not set: there are threads already");
        return;
    }
    let is_ours = |setting: &&Setting| setting.backend.is_none() || setting.backend == backend;
    for setting in ENVIRONMENT.iter().filter(is_ours) {
        let is_set = [setting.name].iter().chain(setting.aliases).any(|name| env::var_os(name).is_some());
        if !is_set {
            // SAFETY: this is the only thread.
            unsafe { env::set_var(setting.name, setting.value) };
        }
    }
}

/// The back end beside the libtorch in use, and its library, before it is loaded.
pub fn beside() -> Option<(Backend, PathBuf)> {
    find(&folder().ok()?)
}

/// Loads the GPU back end beside the libtorch in use, if there is one. Only the first call does
/// anything; call it before any tensor is made.
///
/// # Errors
/// The library exists but can't be loaded, with the loader's reason.
pub fn load() -> Result<Option<Backend>> {
    let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if LOADED.get().is_none() {
        let folder = folder()?;
        let loaded = match find(&folder) {
            Some((backend, path)) => Some((backend, open(&path, &rocm_folders(&folder))?)),
            None => None,
        };
        if loaded.is_some() {
            // f32 means f32 here, for convolutions as for products.
            // SAFETY: it is given no address.
            unsafe { ffi::tw_gpu_forbid_tf32() }?;
        }
        let _ = LOADED.set(loaded);
    }
    Ok(loaded().map(|(backend, _)| backend))
}

/// Keeps libtorch's convolutions from NNPACK where it does not run, of which it would warn at each.
/// Call it before any tensor is made.
///
/// # Errors
/// libtorch knows no such setting.
pub fn leave_nnpack_out() -> Result<()> {
    if crate::device::has_avx2() {
        return Ok(());
    }
    // SAFETY: it is given no address.
    unsafe { ffi::tw_cpu_leave_nnpack_out() }
}

/// True if neither convolutions nor products of f32 may round their operands to TF32, which
/// NVIDIA's libraries do unless it is forbidden. [`load`] forbids it.
///
/// # Errors
/// libtorch knows no such setting.
pub fn is_f32_exact() -> Result<bool> {
    let mut exact = 0;
    // SAFETY: the pointer is valid for the call.
    unsafe { ffi::tw_gpu_is_f32_exact(&raw mut exact) }?;
    Ok(exact == 1)
}

/// The back end that was loaded, and its library.
pub(crate) fn loaded() -> Option<(Backend, &'static Library)> {
    LOADED.get()?.as_ref().map(|(backend, library)| (*backend, library))
}

/// Opens a library for the whole process. If the loader misses one that it needs, that one is
/// looked for in `others` and opened first.
fn open(path: &Path, others: &[PathBuf]) -> Result<Library> {
    // SAFETY: libtorch's own libraries of the same build, and those that they name; their
    // initialisers register the back end.
    let open_one = |path: &Path| unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    let failed = |reason: String| Error::Device { what: format!("loading {}", path.display()), reason };
    // The last one is tried first.
    let mut wanted = vec![path.to_owned()];
    for _ in 0..2 * MOST_MISSED {
        let Some(next) = wanted.last() else { break };
        match open_one(next) {
            Ok(library) if wanted.len() == 1 => return Ok(library),
            Ok(library) => {
                // It stays: what needs it finds it by its name.
                std::mem::forget(library);
                wanted.pop();
            }
            Err(error) => {
                let reason = error.to_string();
                let missed = missed_library(&reason).and_then(|name| {
                    let place = others.iter().map(|folder| folder.join(name)).find(|place| place.is_file())?;
                    (!wanted.contains(&place)).then_some(place)
                });
                wanted.push(missed.ok_or_else(|| failed(reason))?);
            }
        }
    }
    Err(failed(format!("more than {MOST_MISSED} of the libraries that it needs are missing")))
}

/// The library that the loader's reason names as missing.
fn missed_library(reason: &str) -> Option<&str> {
    let (before, _) = reason.split_once(": cannot open shared object file")?;
    let name = before.rsplit([' ', '"']).next()?;
    // A name alone: a path would be the library that was to be opened.
    (name.starts_with("lib") && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let reason = "libamdhip64.so.7: cannot open shared object file: No such file or directory";
        assert_eq!(missed_library(reason), Some("libamdhip64.so.7"));
        assert_eq!(missed_library("/a/libtorch_hip.so: cannot open shared object file: No such file"), None);
        assert_eq!(missed_library("/a/libtorch_hip.so: undefined symbol: hipInit"), None);
    }

    #[test]
    fn libraries_beside_torch_are_opened_before_what_needs_them() {
        let packages = tempfile::tempdir().unwrap();
        let libraries = packages.path().join("torch/lib");
        let (core, math) =
            (packages.path().join("_rocm_sdk_core/lib"), packages.path().join("_rocm_sdk_libraries_gfx1151/lib"));
        for folder in [&libraries, &core, &math] {
            fs::create_dir_all(folder).unwrap();
        }
        // Three libraries, each of which needs the next and none of which knows where it is.
        let compile = |folder: &Path, name: &str, source: &str, needs: &[(&Path, &str)]| {
            let file = folder.join("source.c");
            fs::write(&file, source).unwrap();
            let mut command = Command::new("cc");
            command.args(["-shared", "-fPIC", "-o"]).arg(folder.join(name)).arg(&file);
            command.arg(format!("-Wl,-soname,{name},--no-as-needed,--allow-shlib-undefined"));
            for (folder, name) in needs {
                command.arg(folder.join(name));
            }
            assert!(command.status().unwrap().success());
        };
        compile(&core, "libtwcore.so.7", "int tw_core(void) { return 7; }", &[]);
        compile(
            &math,
            "libtwmath.so.3",
            "int tw_core(void); int tw_math(void) { return tw_core(); }",
            &[(&core, "libtwcore.so.7")],
        );
        let source = "int tw_math(void); int tw_answer(void) { return tw_math(); }";
        compile(&libraries, "libtorch_hip.so", source, &[(&math, "libtwmath.so.3")]);

        let path = libraries.join("libtorch_hip.so");
        let refused = open(&path, &[]).unwrap_err().to_string();
        assert!(refused.contains("libtwmath.so.3"), "{refused}");
        let folders = rocm_folders(&libraries);
        assert_eq!(folders, [core, math]);
        let library = open(&path, &folders).unwrap();
        // SAFETY: the function was just compiled, with this signature.
        let answer = unsafe { library.get::<extern "C" fn() -> i32>(b"tw_answer\0").unwrap()() };
        assert_eq!(answer, 7);
    }
}
