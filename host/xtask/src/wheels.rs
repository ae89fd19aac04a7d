//! Python wheels of libtorch: fetched by pip, which verifies them, and unpacked as far as they are
//! needed.

use std::{
    env::consts::ARCH,
    fs::{self, File},
    io::{self, BufReader, IsTerminal, Read},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::libtorch::{Flavour, VERSION};

/// The dependencies of the CPU's side of PyTorch's own wheel.
const CPU_NEEDS: [&str; 2] = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85"];

/// Any version that the wheel exists for: no Python is run.
const PYTHON: &str = "3.12";

/// The newest C library, as 2.N, that the wheels may need: pip takes only those of a named
/// platform, and each of NVIDIA's packages is tagged with another one.
const NEWEST_C_LIBRARY: u32 = 28;

/// Older names of such platforms.
const PLATFORMS: [&str; 3] = ["manylinux2014", "manylinux2010", "manylinux1"];

/// The libraries of the CPU's side in PyTorch's wheel; the rest is 900 MB.
const CPU_LIBRARIES: [&str; 3] = ["torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp"];

/// Prefixes of GPU libraries' packages among torch's dependencies; its Python packages are several
/// hundred MB.
const GPU_PACKAGES: [&str; 4] = ["nvidia-", "cuda-toolkit", "rocm", "amd"];

/// The source of wheels, and the tools to fetch them.
pub struct Index<'a> {
    /// A Python that has pip.
    pub python: &'a Path,
    /// The lock on the set-up. A pip that outlives a killed set-up keeps it, so that the next
    /// set-up waits for it.
    pub lock: &'a File,
    /// pip's temporary files.
    pub scratch: &'a Path,
    /// The index's address, if it isn't pip's own.
    pub url: Option<&'a str>,
}

/// Fetches the wheels of a flavour into a folder; existing ones stay.
pub fn download(index: &Index, folder: &Path, flavour: Flavour) -> Result<()> {
    if !cfg!(target_os = "linux") || !["x86_64", "aarch64"].contains(&ARCH) {
        bail!("wheels of libtorch are for Linux on x86-64 and ARM: use --libtorch with an unpacked libtorch {VERSION}");
    }
    let torch = format!("torch=={VERSION}");
    if flavour == Flavour::Cpu {
        return pip(index, folder, &["--no-deps", &torch, CPU_NEEDS[0], CPU_NEEDS[1]]);
    }
    pip(index, folder, &["--no-deps", &torch])?;
    let mut files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let is_torch = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("torch-"));
    let wheel = files.find(is_torch).context("pip fetched no wheel of torch")?;
    let packages = gpu_packages(&metadata(&wheel)?);
    if packages.is_empty() {
        return Ok(());
    }
    if packages.iter().any(|package| package.starts_with("rocm")) {
        bail!(
            "these wheels choose ROCm's libraries while they are installed: install torch {VERSION} from there with pip, \
             and run this again with --pytorch in place of --flavour"
        );
    }
    pip(index, folder, &packages.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs `pip download`, which shows a bar on a terminal; elsewhere prints its progress now and
/// then.
fn pip(index: &Index, folder: &Path, packages: &[&str]) -> Result<()> {
    fs::create_dir_all(index.scratch)?;
    let mut pip = Command::new(index.python);
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--only-binary=:all:", "--dest"]).arg(folder);
    pip.args(["--python-version", PYTHON, "--implementation", "cp"]);
    for platform in platforms() {
        pip.args(["--platform", &platform]);
    }
    if let Some(url) = index.url {
        pip.args(["--index-url", url]);
    }
    pip.args(packages).env("TMPDIR", index.scratch).stdin(index.lock.try_clone()?);
    let mut child = pip.spawn().context("pip can't be started")?;
    let mut said = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(Duration::from_millis(100));
        if !io::stdout().is_terminal() && said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            println!("{} MB so far", (size(folder) + size(index.scratch)) / 1_000_000);
        }
    };
    if !status.success() {
        bail!("the wheels can't be fetched (pip says why above): check the network and run this again");
    }
    Ok(())
}

/// The platforms that wheels are tagged with, newest first.
fn platforms() -> Vec<String> {
    let numbered = (5..=NEWEST_C_LIBRARY).rev().map(|number| format!("manylinux_2_{number}_{ARCH}"));
    numbered.chain(PLATFORMS.map(|name| format!("{name}_{ARCH}"))).collect()
}

/// The bytes below a folder. Files come and go meanwhile, so unreadable ones count nothing.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(file) if file.is_dir() => size(&entry.path()),
        Ok(file) => file.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// A wheel's metadata.
fn metadata(wheel: &Path) -> Result<String> {
    let mut archive = zip::ZipArchive::new(BufReader::new(File::open(wheel)?))?;
    let name = archive.file_names().find(|name| name.ends_with(".dist-info/METADATA")).map(str::to_owned);
    let name = name.with_context(|| format!("{} holds no METADATA", wheel.display()))?;
    let mut text = String::new();
    archive.by_name(&name)?.read_to_string(&mut text)?;
    Ok(text)
}

/// The GPU libraries' packages that a wheel requires.
fn gpu_packages(metadata: &str) -> Vec<String> {
    let required = metadata.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
    let is_wanted = |line: &&str| GPU_PACKAGES.iter().any(|name| line.starts_with(name)) && !line.contains("extra ==");
    required.filter(is_wanted).map(str::to_owned).collect()
}

fn is_needed(name: &str, flavour: Flavour) -> bool {
    if name.starts_with("torch/include/") || name == "torch/version.py" {
        return true;
    }
    match flavour {
        // ARM's wheel also has BLAS and Fortran, under names that change.
        Flavour::Cpu if ARCH != "x86_64" => {
            let is_library =
                name.starts_with("torch/lib/") || name.starts_with("torch.libs/") || name.starts_with("nvidia/");
            is_library
                && name.contains(".so")
                && !["torch_cuda", "c10_cuda", "nvrtc", "nvshmem", "python"].iter().any(|gpu| name.contains(gpu))
        }
        Flavour::Cpu => {
            CPU_LIBRARIES.iter().any(|library| name.starts_with(library))
                || name.starts_with("nvidia/") && name.contains(".so")
        }
        Flavour::Cuda | Flavour::Rocm => {
            // ROCm's libraries have several names: all are taken.
            name.starts_with("torch/lib/")
                || name.starts_with("torch/share/")
                || name.starts_with("torch.libs/")
                || name.starts_with("nvidia/") && name.contains("/lib/")
                || !name.starts_with("torch") && !name.starts_with("nvidia/")
        }
    }
}

/// Unpacks the needed part of a wheel, and removes the wheel.
pub fn unpack(wheel: &Path, tree: &Path, flavour: Flavour) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Err(error) = unpack_needed(wheel, tree, flavour) {
        // A damaged wheel is removed, so that the next try fetches it again.
        let _ = fs::remove_file(wheel);
        return Err(error.context(format!("{name} can't be unpacked; run this again to fetch it anew")));
    }
    Ok(())
}

fn unpack_needed(wheel: &Path, tree: &Path, flavour: Flavour) -> Result<()> {
    let mut archive = zip::ZipArchive::new(BufReader::new(File::open(wheel)?))?;
    println!("unpacking {}", wheel.display());
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        if entry.is_dir() || !is_needed(entry.name(), flavour) {
            continue;
        }
        let Some(inside) = entry.enclosed_name() else { bail!("{} leads out of its folder", entry.name()) };
        let path = tree.join(inside);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = File::create(&path).with_context(|| format!("{}", path.display()))?;
        io::copy(&mut entry, &mut file).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_libraries_are_told_from_python_packages() {
        let metadata = "Name: torch\nRequires-Dist: filelock\nRequires-Dist: setuptools<82\n\
            Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == \"Linux\"\n\
            Requires-Dist: cuda-bindings<14,>=13.0.3; platform_system == \"Linux\"\n\
            Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == \"Linux\"\n\
            Requires-Dist: triton==3.6.0; platform_system == \"Linux\"\n\
            Requires-Dist: nvidia-more==1; extra == \"more\"\n";
        let found = gpu_packages(metadata);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("cuda-toolkit[") && found[1].starts_with("nvidia-cudnn-cu13=="));
    }

    #[test]
    fn every_platform_that_wheels_have_been_tagged_with_is_asked_for() {
        // NCCL's, which CUDA's flavour needs.
        for tag in ["manylinux_2_18", "manylinux_2_28", "manylinux_2_5", "manylinux2010"] {
            assert!(platforms().contains(&format!("{tag}_{ARCH}")), "{tag}");
        }
    }

    #[test]
    fn the_cpu_flavour_leaves_the_gpu_libraries_packed() {
        for name in
            ["torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/include/ATen/ATen.h", "torch/version.py"]
        {
            assert!(is_needed(name, Flavour::Cpu), "{name}");
        }
        for name in ["torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so", "torch/nn/modules/module.py"] {
            assert!(!is_needed(name, Flavour::Cpu), "{name}");
        }
        assert!(is_needed("torch/lib/libtorch_cuda.so", Flavour::Cuda));
    }
}
