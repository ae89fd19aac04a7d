//! Back ends loaded at run time: the program is linked against libtorch's CPU side alone, and the
//! CUDA or ROCm side of the libtorch folder in use is loaded before the first tensor is made.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tilewright_plan::Backend;

use crate::{Error, Result};

/// GPU libraries by back end, in search order.
const GPU_LIBRARIES: [(Backend, &str); 2] = [(Backend::Cuda, "libtorch_cuda.so"), (Backend::Rocm, "libtorch_hip.so")];

/// Set before ROCm's libraries start; each only if the user has not set it.
const ROCM_ENVIRONMENT: [(&str, &str); 3] = [
    ("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", "1"),
    ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ("MIOPEN_FIND_MODE", "FAST"),
];

/// Kept loaded for ever: libtorch registers itself in static tables.
static LOADED: OnceLock<Option<(Backend, Library)>> = OnceLock::new();

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

/// Loads the GPU back end beside the libtorch in use, if there is one. Only the first call does
/// anything; call it before any tensor is made and before threads are started.
///
/// # Errors
/// The library exists but can't be loaded, with the loader's reason.
pub fn load() -> Result<Option<Backend>> {
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded.as_ref().map(|(backend, _)| *backend));
    }
    let folder = folder()?;
    let found = GPU_LIBRARIES.iter().find(|(_, name)| folder.join(name).is_file());
    let Some((backend, name)) = found else {
        LOADED.get_or_init(|| None);
        return Ok(None);
    };
    if *backend == Backend::Rocm {
        for (name, value) in ROCM_ENVIRONMENT.iter().filter(|(name, _)| env::var_os(name).is_none()) {
            // SAFETY: the caller has started no thread yet, as this function's documentation asks.
            unsafe { env::set_var(name, value) };
        }
    }
    let path = folder.join(name);
    // SAFETY: libtorch's own library of the same build; its initialisers only register the back
    // end.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    let library = library
        .map_err(|error| Error::Device { what: format!("loading {}", path.display()), reason: error.to_string() })?;
    LOADED.get_or_init(|| Some((*backend, library)));
    Ok(Some(*backend))
}
