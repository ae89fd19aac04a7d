//! Python wheels as a way to libtorch: fetched by pip, which checks them, and unpacked as far as they are needed.

use std::{
    env::consts::ARCH,
    fs::{self, File},
    io::{self, BufReader},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    libtorch::{Flavour, VERSION},
    tools,
};

/// What the CPU's side of PyTorch's own wheel asks for on x86-64.
const CPU_NEEDS: [&str; 2] = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85"];

/// Any that the wheel exists for: nothing of Python is used.
const PYTHON: &str = "3.12";

/// Platforms that the wheels are tagged with.
const PLATFORMS: [&str; 6] = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_17", "manylinux2014", "manylinux1"];

/// The libraries of the CPU's side in PyTorch's wheel; the rest is 900 MB.
const CPU_LIBRARIES: [&str; 3] = ["torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp"];

/// Fetches the wheels of a flavour into a folder.
pub fn download(folder: &Path, flavour: Flavour, index: Option<&str>) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--only-binary=:all:", "--dest"]).arg(folder);
    pip.args(["--python-version", PYTHON, "--implementation", "cp"]);
    for platform in PLATFORMS {
        pip.arg("--platform").arg(format!("{platform}_{ARCH}"));
    }
    if let Some(index) = index {
        pip.args(["--index-url", index]);
    }
    pip.arg(format!("torch=={VERSION}"));
    if flavour == Flavour::Cpu {
        pip.arg("--no-deps");
        if ARCH == "x86_64" {
            pip.args(CPU_NEEDS);
        }
    }
    tools::run(&mut pip).context("the wheels can't be fetched: check the network and try again")
}

fn is_needed(name: &str, flavour: Flavour) -> bool {
    if name.starts_with("torch/include/") || name == "torch/version.py" {
        return true;
    }
    match flavour {
        Flavour::Cpu => CPU_LIBRARIES.iter().any(|library| name.starts_with(library)) || name.starts_with("nvidia/") && name.contains(".so"),
        Flavour::Cuda | Flavour::Rocm => name.starts_with("torch/lib/") || name.starts_with("torch/share/") || name.starts_with("nvidia/") && name.contains("/lib/"),
    }
}

/// Unpacks what is needed of a wheel.
pub fn unpack(wheel: &Path, tree: &Path, flavour: Flavour) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut archive = zip::ZipArchive::new(BufReader::new(File::open(wheel)?)).with_context(|| name.clone())?;
    let mut bytes = 0;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        if entry.is_dir() || !is_needed(entry.name(), flavour) {
            continue;
        }
        let Some(inside) = entry.enclosed_name() else { bail!("{name}: {} leads out of its folder", entry.name()) };
        let path = tree.join(inside);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = File::create(&path).with_context(|| format!("{}", path.display()))?;
        bytes += io::copy(&mut entry, &mut file).with_context(|| format!("{}", path.display()))?;
    }
    if bytes > 0 {
        println!("unpacked {} MB of {name}", bytes / 1_000_000);
    }
    fs::remove_file(wheel)?;
    Ok(())
}
