//! Compiles the back end, and lays out a libtorch folder that holds it beside this machine's own
//! libtorch.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The back end's sources.
const SOURCES: [&str; 6] = [
    "shim/script.cpp",
    "shim/device.cpp",
    "shim/runtime.cpp",
    "shim/operators.cpp",
    "shim/counter.cpp",
    "shim/profiler.cpp",
];

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-changed=../torch/shim/device_allocator.h");
    let lib = PathBuf::from(env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is"));
    let link = lib.parent().expect("lib stands in libtorch's folder");
    // The libraries to run with, where `cargo xtask setup` has separated them from those to link.
    let run = link.parent().map(|root| root.join("run/torch/lib")).filter(|run| run.is_dir()).unwrap_or(lib.clone());
    println!("cargo:rerun-if-changed={}", run.join("libtorch_cpu.so").display());

    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo says where output goes"));
    let cuda = out.join("cuda");
    let libraries = lay_out(&run, &cuda);
    compile(&link.join("include"), &libraries.join("libtorch_cuda.so"));
    // The same under the name that ROCm's has.
    let rocm = out.join("rocm");
    let named = lay_out(&run, &rocm).join("libtorch_hip.so");
    lay(&libraries.join("libtorch_cuda.so"), &named).expect("the back end can be linked or copied");
    println!("cargo:rustc-env=FAKE_LIBTORCH={}", cuda.join("torch").display());
    println!("cargo:rustc-env=FAKE_ROCM_LIBTORCH={}", rocm.join("torch").display());
}

/// Lays this machine's libtorch out below a folder; gives the folder of its libraries.
fn lay_out(run: &Path, folder: &Path) -> PathBuf {
    let libraries = folder.join("torch/lib");
    fs::create_dir_all(&libraries).expect("the build folder can be written");
    for entry in fs::read_dir(run).expect("libtorch's folder can be read").flatten() {
        let name = entry.file_name();
        let is_gpu = ["cuda", "hip"].iter().any(|part| name.to_string_lossy().contains(part));
        if name.to_string_lossy().contains(".so") && !is_gpu {
            lay(&entry.path(), &libraries.join(name)).expect("libtorch can be linked or copied");
        }
    }
    // libtorch finds NVIDIA's libraries beside its own folder.
    for name in ["nvidia", "torch.libs"] {
        let beside = run.join("../..").join(name);
        let place = folder.join(name);
        if beside.is_dir() && fs::symlink_metadata(&place).is_err() {
            symlink(fs::canonicalize(beside).expect("the folder is there"), place).expect("a link can be made");
        }
    }
    libraries
}

/// A hard link, or a copy where that can't be: the loader finds the folder of a library by its real
/// path.
fn lay(from: &Path, to: &Path) -> io::Result<()> {
    let _ = fs::remove_file(to);
    let from = fs::canonicalize(from)?;
    fs::hard_link(&from, to).or_else(|_| fs::copy(&from, to).map(drop))
}

fn compile(include: &Path, to: &Path) {
    let compiler = cc::Build::new().cpp(true).std("c++17").opt_level(1).cargo_metadata(false).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-shared", "-Wl,-Bsymbolic", "-fPIC", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter"]);
    command.arg("-I../torch/shim").arg("-isystem").arg(include);
    command.arg("-isystem").arg(include.join("torch/csrc/api/include"));
    command.arg("-isystem").arg(include.join("kineto"));
    command.args(SOURCES);
    let status = command.arg("-o").arg(to).status().expect("a C++ compiler is installed");
    assert!(status.success(), "the fake back end does not compile");
}
