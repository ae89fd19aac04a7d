//! Devices: chosen by trying them, with facts from the runtime, the kernel and libtorch.

mod runtime;
mod sysfs;

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};
use tilewright_wording::Setting;

use tch::{Kind, Tensor};
use tilewright_plan::{Backend, Device as Facts};

pub use self::{
    runtime::{library_facts, library_versions, versions},
    sysfs::{AmdGpu, amd_gpus},
};
pub use tilewright_plan::DeviceChoice as Choice;

use crate::{Error, Result, backend, conv2d, ffi, memory};

/// Memory of the machine as the kernel sees it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// All memory, or the control group's limit.
    pub total: u64,
    /// Memory that is available without swapping.
    pub available: u64,
}

/// Memory that is left to the system and other programs by a GPU that shares the host's, in bytes:
/// a desktop freezes without.
const SHARED_RESERVE: u64 = 4 << 30;

/// Finds the device for a choice. The back end must have been loaded ([`crate::backend::load`]). A
/// GPU that was not asked for by its number is tried, and skipped with a warning if it fails.
///
/// # Errors
/// A GPU was asked for and there is none of that number, or it does not work.
pub fn select(choice: Choice) -> Result<tch::Device> {
    // libtorch answers the first question about GPUs for good: it must not be asked on the way to a
    // CPU, because the back end may be loaded later.
    if choice == Choice::Cpu {
        return Ok(tch::Device::Cpu);
    }
    let gpus = tch::Cuda::device_count().max(0) as usize;
    match choice {
        Choice::Gpu(index) if index < gpus => {
            let device = tch::Device::Cuda(index);
            try_out(device)?;
            Ok(device)
        }
        Choice::Gpu(index) => Err(Error::Device {
            what: format!("cuda:{index}"),
            reason: match gpus {
                0 => why_none(),
                1 => "there is 1 GPU, cuda:0".into(),
                most => format!("there are {most} GPUs, cuda:0 to cuda:{}", most - 1),
            },
        }),
        Choice::Auto | Choice::Cpu => {
            if gpus == 0 && backend::loaded().is_some_and(|(backend, _)| is_gpu_expected(backend)) {
                tracing::warn!("no GPU can be used, and the CPU is: {}", why_none());
            }
            let works = |index: &usize| match try_out(tch::Device::Cuda(*index)) {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!(%error, "cuda:{index} does not work and is skipped");
                    false
                }
            };
            Ok((0..gpus).find(works).map_or(tch::Device::Cpu, tch::Device::Cuda))
        }
    }
}

/// The node of a back end's driver, which every user of its GPUs opens.
fn driver_node(backend: Backend) -> Option<&'static Path> {
    match backend {
        Backend::Cuda => Some(Path::new("/dev/nvidiactl")),
        Backend::Rocm => Some(Path::new("/dev/kfd")),
        Backend::Cpu | Backend::Metal => None,
    }
}

/// True if a back end's driver or runtime shows a GPU: only then is it a surprise if none can be
/// used.
pub fn is_gpu_expected(backend: Backend) -> bool {
    driver_node(backend).is_some_and(Path::exists) || matches!(runtime::device_count(), Some(Ok(1..)))
}

/// The reason that a driver's node does not open, and the way out; none if it opens.
fn refusal(node: &Path) -> Option<String> {
    let error = File::options().read(true).write(true).open(node).err()?;
    let way = match error.kind() {
        ErrorKind::NotFound => "load the GPU's driver",
        ErrorKind::PermissionDenied => "add this user to the groups video and render, and log in again",
        _ => "mend the driver",
    };
    Some(format!("{} can't be opened ({error}): {way}, or use {} cpu", node.display(), Setting::Device))
}

/// The reason that libtorch sees no GPU.
fn why_none() -> String {
    let node = backend::loaded().and_then(|(backend, _)| driver_node(backend));
    match runtime::device_count() {
        Some(Err(reason)) => match node.and_then(refusal) {
            Some(refusal) => format!("the GPU's runtime says: {reason}; {refusal}"),
            None => {
                format!("the GPU's runtime says: {reason}; use {} cpu, or mend the driver", Setting::Device)
            }
        },
        Some(Ok(1..)) => "libtorch computed on the CPU before its GPU side was loaded: load that first".into(),
        _ => format!("libtorch sees no GPU here: use {} cpu, or a libtorch for CUDA or ROCm", Setting::Device),
    }
}

/// The GPUs that this process has used.
static USED: Mutex<Vec<tch::Device>> = Mutex::new(Vec::new());

/// Runs a small convolution and a product on a device: a GPU that is listed may have no kernels for
/// its architecture, or no memory.
fn try_out(device: tch::Device) -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    let picture = Tensor::f_ones([1, 8, 8, 8], (Kind::Float, device))?;
    let weight = Tensor::f_ones([8, 8, 3, 3], (Kind::Float, device))?;
    let sum = conv2d(&picture, &weight, None, 1, [0, 0], false)?
        .f_silu()?
        .f_matmul(&Tensor::f_ones([6, 6], (Kind::Float, device))?)?;
    let sum = f64::try_from(&sum.f_sum(Kind::Float)?)?;
    synchronize(device)?;
    free_bytes(device)?;
    // 72 products of ones, of which the activation leaves nearly all, in 8 channels of 6×6 pixels,
    // each added up 6 times.
    let expected = f64::from(72 * 8 * 36 * 6);
    // A sum that is no number is as wrong.
    let is_right = (sum / expected - 1.0).abs() <= 1e-2;
    if !is_right {
        return Err(Error::Device {
            what: "trying the device".into(),
            reason: format!("a sum of ones is {sum} in place of {expected}: its driver or libraries are broken"),
        });
    }
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    if !used.contains(&device) {
        used.push(device);
    }
    Ok(())
}

/// True if a GPU that this process uses can't be waited for: others are not asked, which would take
/// their memory.
pub(crate) fn is_any_lost() -> bool {
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // A runtime's own words are never in doubt, so that this does not ask itself.
    used.into_iter().any(|device| synchronize(device).is_err())
}

/// Waits for all work of a device; does nothing for a CPU.
///
/// # Errors
/// A fault of earlier work on a GPU, which shows here.
pub fn synchronize(device: tch::Device) -> Result<()> {
    let tch::Device::Cuda(index) = device else { return Ok(()) };
    // SAFETY: it is given no address.
    unsafe { ffi::tw_gpu_synchronize(index as i32) }
}

/// The address of a GPU on the PCI bus, "0000:c5:00.0"; none of a CPU, and if the runtime does not
/// tell.
pub fn bus_address(device: tch::Device) -> Option<String> {
    match device {
        tch::Device::Cuda(index) => runtime::properties(index).pci,
        _ => None,
    }
}

/// True if convolutions can round f32 operands to TF32 on a device: on NVIDIA's, from compute
/// capability 8.0 on, unless the user forbids it for every program (NVIDIA_TF32_OVERRIDE).
pub fn has_tf32(device: tch::Device) -> bool {
    let tch::Device::Cuda(index) = device else { return false };
    let is_forbidden = std::env::var("NVIDIA_TF32_OVERRIDE").is_ok_and(|value| value == "0");
    let arch = runtime::properties(index).arch.unwrap_or_default();
    !is_forbidden && capability(&arch) >= 80
}

/// True if a device has kernels for products of FP8 (E4M3): NVIDIA's from compute capability 8.9
/// on, and AMD's gfx950 and gfx12 (pytorch v2.11.0, `_scaled_mm_is_fnuz` and its list of
/// architectures).
pub fn has_fp8_products(device: tch::Device) -> bool {
    const AMD: [&str; 3] = ["gfx950", "gfx1200", "gfx1201"];
    let tch::Device::Cuda(index) = device else { return false };
    let arch = runtime::properties(index).arch.unwrap_or_default();
    capability(&arch) >= 89 || AMD.iter().any(|known| arch.starts_with(known))
}

/// The compute capability of NVIDIA's architecture, times ten; 0 of any other.
fn capability(arch: &str) -> u32 {
    arch.strip_prefix("sm_").and_then(|capability| capability.parse().ok()).unwrap_or(0)
}

/// Facts about a device, without the probe's: [`Facts::fast_dtypes`] is left empty.
///
/// # Errors
/// The error of the driver or kernel.
pub fn facts(device: tch::Device, backend: Option<Backend>) -> Result<Facts> {
    match device {
        tch::Device::Cuda(index) => gpu_facts(index, backend.unwrap_or(Backend::Cuda)),
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
        hints: Vec::new(),
    })
}

fn gpu_facts(index: usize, backend: Backend) -> Result<Facts> {
    let known = runtime::properties(index);
    let card = known.pci.as_deref().and_then(sysfs::amd_gpu);
    let (free_bytes, total_bytes) = gpu_memory(index, known.integrated, card.as_ref())?;
    let vendor = if backend == Backend::Rocm { "AMD" } else { "NVIDIA" };
    let arch = known.arch.or_else(|| card.map(|card| card.arch).filter(|arch| !arch.is_empty()));
    Ok(Facts {
        backend,
        name: known.name.unwrap_or_else(|| format!("{vendor} GPU {index}")),
        arch: arch.unwrap_or_else(|| "unknown".into()),
        compute_units: known.compute_units.unwrap_or(0),
        total_bytes,
        free_bytes,
        unified: known.integrated,
        fast_dtypes: Vec::new(),
        hints: library_facts(),
    })
}

/// The memory of a device that is free now, in bytes: also what libtorch's pool holds and does not
/// use.
///
/// # Errors
/// The error of the driver or kernel.
pub fn free_bytes(device: tch::Device) -> Result<u64> {
    let tch::Device::Cuda(index) = device else { return Ok(system_memory()?.available) };
    let known = runtime::properties(index);
    let card = known.pci.as_deref().and_then(sysfs::amd_gpu);
    let (free, total) = gpu_memory(index, known.integrated, card.as_ref())?;
    let pool = memory::of(device)?;
    Ok(free.saturating_add(pool.held.saturating_sub(pool.in_use)).min(total))
}

/// True if a device's memory is the host's.
pub(crate) fn is_unified(device: tch::Device) -> bool {
    if let tch::Device::Cuda(index) = device { runtime::properties(index).integrated } else { true }
}

/// The free and all memory of a GPU.
fn gpu_memory(index: usize, integrated: bool, card: Option<&AmdGpu>) -> Result<(u64, u64)> {
    let available = if integrated { Some(kernel_memory()?.available) } else { None };
    Ok(usable_memory(memory::free_and_total(index)?, card, available))
}

/// The free and all memory of a GPU, of which its runtime reports so much. `available` is what the
/// kernel can give without swapping, for a GPU that shares the host's memory.
///
/// HIP has been seen to report a part of an APU's memory as all of it, and more free than there is
/// (ROCm/hip issue 3892, ROCm issue 6004). The kernel driver knows: from Linux 6.10 on, an APU
/// allocates system memory (GTT) if that is more than its carve-out, and only the carve-out
/// otherwise (drivers/gpu/drm/amd/amdgpu, `apu_prefer_gtt`).
fn usable_memory((free, total): (u64, u64), card: Option<&AmdGpu>, available: Option<u64>) -> (u64, u64) {
    let Some(available) = available else {
        return (free.min(total), total);
    };
    let left = available.saturating_sub(SHARED_RESERVE);
    match card {
        Some(card) if card.gtt_total > card.vram_total => {
            let total = card.gtt_total.saturating_add(card.vram_total);
            let used = card.gtt_used.saturating_add(card.vram_used);
            (total.saturating_sub(used).min(left), total)
        }
        // The carve-out is none of the system's memory.
        Some(card) => (card.vram_total.saturating_sub(card.vram_used), card.vram_total),
        None => (free.min(total).min(left), total),
    }
}

/// The processor's name as the kernel gives it.
fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "CPU".to_owned(), |(_, name)| name.trim().to_owned())
}

/// True if the processor has AVX2 and what came with it, which libtorch's vector kernels are made
/// of, or is of another kind.
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("avx2") && has!("fma") && has!("bmi2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        true
    }
}

/// The instruction-set level, which decides how fast each type is.
fn cpu_arch() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl") {
            "x86-64-v4"
        } else if has_avx2() {
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
    let memory = kernel_memory()?;
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // A container's own limit, if there is one ("max" does not parse).
    let Some(most) = number("/sys/fs/cgroup/memory.max") else { return Ok(memory) };
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
    Ok(SystemMemory { total: memory.total.min(most), available: memory.available.min(most.saturating_sub(used)) })
}

/// Memory of the machine. A control group's limit does not count what GPUs take of it.
fn kernel_memory() -> Result<SystemMemory> {
    let text = fs::read_to_string("/proc/meminfo")
        .map_err(|error| Error::Device { what: "reading /proc/meminfo".into(), reason: error.to_string() })?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map(|kib| kib << 10)
    };
    let missing =
        || Error::Device { what: "/proc/meminfo".into(), reason: "MemTotal or MemAvailable is missing".into() };
    let total = field("MemTotal").ok_or_else(missing)?;
    Ok(SystemMemory { total, available: field("MemAvailable").ok_or_else(missing)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn card(vram: u64, gtt: u64) -> AmdGpu {
        AmdGpu {
            pci: "0000:c5:00.0".into(),
            arch: "gfx1151".into(),
            vram_total: vram * GIB,
            vram_used: GIB,
            gtt_total: gtt * GIB,
            gtt_used: GIB,
        }
    }

    #[test]
    fn a_node_that_does_not_open_is_told_with_the_way_out() {
        assert_eq!(refusal(Path::new("/dev/null")), None);
        let missing = refusal(Path::new("/dev/no-such-driver")).unwrap();
        assert!(missing.contains("/dev/no-such-driver can't be opened") && missing.contains("load the"), "{missing}");
        assert!(refusal(Path::new("/dev")).unwrap().contains("mend the driver"));
        assert_eq!(driver_node(Backend::Cpu), None);
    }

    #[test]
    fn the_memory_of_a_card_is_what_its_runtime_reports() {
        // An RX 7600 in a machine whose kernel lets it address 16 GiB of system memory.
        let (free, total) = usable_memory((7 * GIB, 8 * GIB), Some(&card(8, 16)), None);
        assert_eq!((free, total), (7 * GIB, 8 * GIB));
        assert_eq!(usable_memory((9 * GIB, 8 * GIB), None, None), (8 * GIB, 8 * GIB));
    }

    #[test]
    fn the_memory_of_an_apu_is_what_its_kernel_driver_tells() {
        // GTT of 96 GiB, of which HIP reports 15.5 GiB.
        let all = usable_memory((15 * GIB, 15 * GIB), Some(&card(1, 96)), Some(100 * GIB));
        assert_eq!(all, (95 * GIB, 97 * GIB));
        // Other programs have taken most of the system's memory: 4 GiB of the rest are left to it.
        let little = usable_memory((90 * GIB, 96 * GIB), Some(&card(1, 96)), Some(20 * GIB));
        assert_eq!(little, (16 * GIB, 97 * GIB));
        // A carve-out of 96 GiB is not the system's memory any more.
        let carved = usable_memory((120 * GIB, 62 * GIB), Some(&card(96, 16)), Some(20 * GIB));
        assert_eq!(carved, (95 * GIB, 96 * GIB));
        // Without sysfs, as in some containers.
        assert_eq!(usable_memory((50 * GIB, 62 * GIB), None, Some(20 * GIB)), (16 * GIB, 62 * GIB));
    }

    #[test]
    fn the_kernel_tells_memory() {
        let memory = system_memory().unwrap();
        assert!(memory.available <= memory.total && memory.total > 1 << 26, "{memory:?}");
    }

    #[test]
    fn a_cpu_is_chosen_without_a_question_to_libtorch() {
        assert_eq!(select(Choice::Cpu).unwrap(), tch::Device::Cpu);
    }
}
