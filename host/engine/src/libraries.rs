//! The driver, the libraries and the settings that a device works with, as far as they are known
//! before the libraries are loaded: another one of them may make it faster, or work.

use std::{env, fs, os::unix::fs::MetadataExt, path::PathBuf};

use tilewright_plan::Backend;
use tilewright_torch::backend;

/// Settings in the environment that change how fast a GPU is, or which one it is.
const SETTINGS: [&str; 12] = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "MIOPEN_FIND_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_MIOPEN_SUGGEST_NHWC",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
];

/// libtorch's own libraries.
const LIBRARIES: [&str; 3] = ["libtorch_cpu.so", "libtorch_cuda.so", "libtorch_hip.so"];

/// The version of a back end's driver; none of a CPU, and without a driver.
pub fn driver(backend: Backend) -> Option<String> {
    let first_line = |path| fs::read_to_string(path).ok().and_then(|text| text.lines().next().map(str::to_owned));
    match backend {
        Backend::Cuda => first_line("/proc/driver/nvidia/version"),
        Backend::Rocm => first_line("/sys/module/amdgpu/version").or_else(|| first_line("/proc/sys/kernel/osrelease")),
        Backend::Cpu | Backend::Metal => None,
    }
}

/// The sizes and times of libtorch's libraries, and of the folders of ROCm's that belong to them:
/// libtorch says nothing of its version in the C++ interface that is linked.
pub fn files() -> String {
    let Ok(folder) = backend::folder() else { return String::new() };
    let libraries: Vec<PathBuf> = LIBRARIES.iter().map(|name| folder.join(name)).collect();
    let all = libraries.into_iter().chain(backend::rocm_folders(&folder)).filter_map(|path| fs::metadata(path).ok());
    all.map(|file| format!("{}@{}", file.len(), file.mtime())).collect::<Vec<_>>().join(" ")
}

/// The settings in the environment, each after a comma.
pub fn settings() -> String {
    let set = SETTINGS.iter().filter_map(|name| Some(format!(", {name}={}", env::var_os(name)?.display())));
    set.collect()
}
