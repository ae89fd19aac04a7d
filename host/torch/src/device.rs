//! Facts about the machine's devices, from the kernel, the driver and libtorch.

use std::{fs, path::Path, thread};

use libloading::os::unix::{Library, Symbol};
use tilewright_plan::{Backend, Device as Facts};

use crate::{Error, Result, memory};

/// Which device the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first GPU that works, or else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA or ROCm device by index.
    Gpu(usize),
}

/// Memory of the machine as the kernel sees it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// All memory, or the control group's limit.
    pub total: u64,
    /// Memory that is available without swapping.
    pub available: u64,
}

/// One AMD GPU as its kernel driver sees it; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmdGpu {
    /// "gfx1151"; empty if the topology does not tell.
    pub arch: String,
    /// Memory of the card's own.
    pub vram_total: u64,
    /// Of which used.
    pub vram_used: u64,
    /// System memory that the card can address.
    pub gtt_total: u64,
    /// Of which used.
    pub gtt_used: u64,
}

/// Finds the device for a choice. The back end must have been loaded ([`crate::backend::load`]).
///
/// # Errors
/// A GPU was asked for and there is none of that number.
pub fn select(choice: Choice) -> Result<tch::Device> {
    let gpus = tch::Cuda::device_count().max(0) as usize;
    match choice {
        Choice::Cpu => Ok(tch::Device::Cpu),
        Choice::Auto if gpus == 0 => Ok(tch::Device::Cpu),
        Choice::Auto => Ok(tch::Device::Cuda(0)),
        Choice::Gpu(index) if index < gpus => Ok(tch::Device::Cuda(index)),
        Choice::Gpu(index) => Err(Error::Device {
            what: format!("cuda:{index}"),
            reason: match gpus {
                0 => "libtorch sees no GPU here: use --device cpu, or set up with --flavour cuda or rocm".into(),
                most => format!("there are {most} GPUs, counted from 0"),
            },
        }),
    }
}

/// Facts about a device, without the probe's: [`Facts::fast_dtypes`] is left empty.
///
/// # Errors
/// The error of the driver or kernel.
pub fn facts(device: tch::Device, backend: Option<Backend>) -> Result<Facts> {
    match device {
        tch::Device::Cuda(index) if backend == Some(Backend::Rocm) => amd_facts(index),
        tch::Device::Cuda(index) => nvidia_facts(index),
        _ => cpu_facts(),
    }
}

fn cpu_facts() -> Result<Facts> {
    let memory = system_memory()?;
    Ok(Facts {
        backend: Backend::Cpu,
        name: cpu_name(),
        arch: cpu_arch().into(),
        compute_units: thread::available_parallelism().map_or(1, |count| count.get() as u32),
        total_bytes: memory.total,
        free_bytes: memory.available,
        unified: true,
        fast_dtypes: Vec::new(),
    })
}

fn amd_facts(index: usize) -> Result<Facts> {
    let (free, total) = memory::free_and_total(index)?;
    let gpu = amd_gpus().into_iter().nth(index);
    let arch = gpu.as_ref().map_or("unknown", |gpu| &gpu.arch).to_owned();
    // An APU's own memory is a small carve-out of the system's; what it can use is the larger of
    // both kinds.
    let unified = gpu.as_ref().is_some_and(|gpu| gpu.gtt_total > gpu.vram_total);
    let available = system_memory()?.available;
    let free = if unified { free.min(available) } else { free };
    Ok(Facts {
        backend: Backend::Rocm,
        name: format!("AMD GPU {index} ({arch})"),
        arch,
        compute_units: 0,
        total_bytes: total,
        // HIP has been seen to report more free than there is in all.
        free_bytes: free.min(total),
        unified,
        fast_dtypes: Vec::new(),
    })
}

fn nvidia_facts(index: usize) -> Result<Facts> {
    let (free, total) = memory::free_and_total(index)?;
    let driver = nvidia_driver(index).unwrap_or_default();
    Ok(Facts {
        backend: Backend::Cuda,
        name: driver.name.unwrap_or_else(|| format!("NVIDIA GPU {index}")),
        arch: driver.capability.map_or("unknown".into(), |(major, minor)| format!("sm_{major}{minor}")),
        compute_units: driver.multiprocessors.unwrap_or(0),
        total_bytes: total,
        free_bytes: free,
        unified: driver.integrated.unwrap_or(false),
        fast_dtypes: Vec::new(),
    })
}

#[derive(Default)]
struct NvidiaDriver {
    name: Option<String>,
    capability: Option<(u32, u32)>,
    multiprocessors: Option<u32>,
    integrated: Option<bool>,
}

/// Asks the CUDA driver library, which libtorch's CUDA side has loaded; none if it can't be asked.
fn nvidia_driver(index: usize) -> Option<NvidiaDriver> {
    type GetDevice = unsafe extern "C" fn(*mut i32, i32) -> i32;
    type GetName = unsafe extern "C" fn(*mut u8, i32, i32) -> i32;
    type GetAttribute = unsafe extern "C" fn(*mut i32, i32, i32) -> i32;
    // Numbers of CUdevice_attribute in cuda.h.
    const MULTIPROCESSORS: i32 = 16;
    const INTEGRATED: i32 = 18;
    const MAJOR: i32 = 75;
    const MINOR: i32 = 76;
    // SAFETY: the system's CUDA driver; libtorch has initialised it by now. The signatures are
    // those of cuda.h.
    unsafe {
        let library = Library::new("libcuda.so.1").ok()?;
        let get_device: Symbol<GetDevice> = library.get(b"cuDeviceGet\0").ok()?;
        let get_name: Symbol<GetName> = library.get(b"cuDeviceGetName\0").ok()?;
        let get_attribute: Symbol<GetAttribute> = library.get(b"cuDeviceGetAttribute\0").ok()?;
        let mut device = 0;
        if get_device(&mut device, index as i32) != 0 {
            return None;
        }
        let mut name = [0_u8; 256];
        let named = get_name(name.as_mut_ptr(), name.len() as i32, device) == 0;
        let attribute = |number| {
            let mut value = 0;
            (get_attribute(&mut value, number, device) == 0).then_some(value as u32)
        };
        Some(NvidiaDriver {
            name: named.then(|| String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()),
            capability: attribute(MAJOR).zip(attribute(MINOR)),
            multiprocessors: attribute(MULTIPROCESSORS),
            integrated: attribute(INTEGRATED).map(|value| value != 0),
        })
    }
}

/// The processor's name as the kernel tells it.
fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "CPU".to_owned(), |(_, name)| name.trim().to_owned())
}

/// The instruction-set level, which decides how fast each type is.
fn cpu_arch() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl") {
            "x86-64-v4"
        } else if has!("avx2") && has!("fma") && has!("bmi2") {
            "x86-64-v3"
        } else {
            "x86-64-v2"
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::env::consts::ARCH
    }
}

/// Memory of the machine, the control group's limit included.
///
/// # Errors
/// The kernel does not tell.
pub fn system_memory() -> Result<SystemMemory> {
    let text = fs::read_to_string("/proc/meminfo")
        .map_err(|error| Error::Device { what: "reading /proc/meminfo".into(), reason: error.to_string() })?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map(|kib| kib << 10)
    };
    let missing =
        || Error::Device { what: "/proc/meminfo".into(), reason: "MemTotal or MemAvailable is missing".into() };
    let total = field("MemTotal").ok_or_else(missing)?;
    let available = field("MemAvailable").ok_or_else(missing)?;
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // A container's own limit, if there is one ("max" does not parse).
    let Some(most) = number("/sys/fs/cgroup/memory.max") else {
        return Ok(SystemMemory { total, available });
    };
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
    Ok(SystemMemory { total: total.min(most), available: available.min(most.saturating_sub(used)) })
}

/// AMD GPUs, in the kernel's order.
pub fn amd_gpus() -> Vec<AmdGpu> {
    amd_gpus_below(Path::new("/sys"))
}

fn amd_gpus_below(sys: &Path) -> Vec<AmdGpu> {
    let sorted = |folder: &Path| {
        let mut paths: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let archs: Vec<String> = sorted(&sys.join("class/kfd/kfd/topology/nodes"))
        .iter()
        .filter_map(|node| fs::read_to_string(node.join("properties")).ok())
        .filter_map(|text| {
            let version =
                text.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?.trim().parse().ok()?;
            // The processor is a node too, of version 0.
            (version != 0).then(|| gfx_name(version))
        })
        .collect();
    let cards = sorted(&sys.join("class/drm")).into_iter().filter_map(|card| {
        let number = |name: &str| fs::read_to_string(card.join("device").join(name)).ok()?.trim().parse().ok();
        Some((
            number("mem_info_vram_total")?,
            number("mem_info_vram_used")?,
            number("mem_info_gtt_total")?,
            number("mem_info_gtt_used")?,
        ))
    });
    cards
        .enumerate()
        .map(|(index, (vram_total, vram_used, gtt_total, gtt_used))| AmdGpu {
            arch: archs.get(index).cloned().unwrap_or_default(),
            vram_total,
            vram_used,
            gtt_total,
            gtt_used,
        })
        .collect()
}

/// The kernel's decimal version to the compiler's name: 110501 is gfx1151, 90010 is gfx90a.
fn gfx_name(version: u32) -> String {
    let (major, minor, step) = (version / 10_000, version / 100 % 100, version % 100);
    format!("gfx{major}{minor:x}{step:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gfx_versions_become_names() {
        for (version, name) in [(110_501, "gfx1151"), (90_010, "gfx90a"), (100_300, "gfx1030"), (90_402, "gfx942")] {
            assert_eq!(gfx_name(version), name);
        }
    }

    #[test]
    fn amd_memory_is_read_from_sysfs() {
        let sys = std::env::temp_dir().join(format!("tilewright-sys-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 32\ngfx_target_version 0\n");
        write("class/kfd/kfd/topology/nodes/1/properties", "simd_count 80\ngfx_target_version 110501\n");
        for (name, value) in
            [("vram_total", 512_u64 << 20), ("vram_used", 1), ("gtt_total", 120 << 30), ("gtt_used", 2)]
        {
            write(&format!("class/drm/card0/device/mem_info_{name}"), &format!("{value}\n"));
        }
        write("class/drm/version", "drm 1.1.0\n");
        let gpus = amd_gpus_below(&sys);
        fs::remove_dir_all(&sys).unwrap();
        let expected =
            AmdGpu { arch: "gfx1151".into(), vram_total: 512 << 20, vram_used: 1, gtt_total: 120 << 30, gtt_used: 2 };
        assert_eq!(gpus, [expected]);
    }

    #[test]
    fn the_kernel_tells_memory() {
        let memory = system_memory().unwrap();
        assert!(memory.available <= memory.total && memory.total > 1 << 26, "{memory:?}");
    }
}
