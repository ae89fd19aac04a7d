//! The device that work runs on: chosen, looked at and measured once.

use std::{
    env, fs,
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use serde::{Deserialize, Serialize};
use tch::Device;
use tilewright_files::{UserFolder, digest::fnv1a};
use tilewright_plan::{Backend, Device as Facts, Dtype, Layout, Plan, Precision};
use tilewright_torch::{
    backend, device,
    device::Choice,
    memory,
    probe::{self, Measured},
};

use crate::Result;

/// The source of a device's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Earlier measurements of the same device with the same libtorch and number of threads, so
    /// that the same request gets the same answer in every process.
    Kept,
    /// Measured now, and kept.
    Fresh,
}

/// A function that is called with none when a device is about to be measured, and then with the
/// result.
pub type Announcer = fn(&Facts, Option<&Measured>);

/// Set once for the process.
static ANNOUNCER: OnceLock<Announcer> = OnceLock::new();

/// Sets the function that is called when a device is measured, since a user waits for that. The
/// first one stays.
pub fn announce_probe(announcer: Announcer) {
    let _ = ANNOUNCER.set(announcer);
}

fn announce(facts: &Facts, measured: Option<&Measured>) {
    if let Some(announcer) = ANNOUNCER.get() {
        announcer(facts, measured);
    }
}

/// A device, what the kernel and driver say of it, and what the probe measured.
#[derive(Clone, Debug)]
pub struct Machine {
    /// libtorch's name of it.
    pub device: Device,
    /// The facts that policies receive.
    pub facts: Facts,
    /// Measured speeds.
    pub measured: Measured,
    /// Everything about the device, its driver and libtorch that changes how fast it is, in one
    /// line: what was measured under another one says nothing of it.
    pub fingerprint: String,
    /// The formats that this process has run on it.
    warm: Arc<Mutex<Vec<(Precision, Layout)>>>,
}

/// A device that was chosen and looked at, but not measured yet.
#[derive(Debug)]
pub struct Found {
    device: Device,
    facts: Facts,
    /// Nobody asked for this device: if it can't be measured, the CPU takes its place.
    replaceable: bool,
}

impl Machine {
    /// A device with its facts and measurements.
    pub fn new(device: Device, facts: Facts, measured: Measured, fingerprint: String) -> Self {
        Self { device, facts, measured, fingerprint, warm: Arc::default() }
    }

    /// The facts, with the memory that is free now: a service's device was looked at when it
    /// started.
    pub(crate) fn facts_now(&self) -> Facts {
        let free_bytes = device::free_bytes(self.device).unwrap_or(self.facts.free_bytes);
        Facts { free_bytes, ..self.facts.clone() }
    }

    /// True if tensors on the device take none of the host's memory, so that they can wait there.
    pub(crate) fn has_own_memory(&self) -> bool {
        self.device != Device::Cpu && !self.facts.unified
    }

    /// Notes that a plan was carried out; true if it was the first of its format on a GPU in this
    /// process.
    pub(crate) fn note_run(&self, plan: &Plan) -> bool {
        let format = (plan.precision, plan.layout);
        let mut warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = warm.contains(&format);
        if !is_known {
            warm.push(format);
        }
        self.device != Device::Cpu && !is_known
    }

    /// Chooses a device and measures it: [`Machine::find`] and [`Found::measure`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn open(choice: Choice, probe: Probe) -> Result<Self> {
        Self::find(choice)?.measure(probe)
    }

    /// Chooses a device. Call it before any tensor is made; a GPU back end is loaded unless the CPU
    /// is asked for. A process that uses both loads it before either ([`backend::load`]): computing
    /// on the CPU makes libtorch settle that there is none.
    ///
    /// # Errors
    /// The device is not there or does not work.
    pub fn find(choice: Choice) -> Result<Found> {
        let backend = match choice {
            Choice::Cpu => None,
            Choice::Gpu(_) => backend::load()?,
            // A GPU that was not asked for by name must not keep the CPU from working.
            Choice::Auto => backend::load().unwrap_or_else(|error| {
                tracing::warn!(%error, "the GPU back end can't be used: going on with the CPU");
                None
            }),
        };
        memory::install()?;
        let device = device::select(choice)?;
        let replaceable = choice == Choice::Auto && device != Device::Cpu;
        Ok(Found { device, facts: device::facts(device, backend)?, replaceable })
    }
}

impl Found {
    /// Measures the device, or takes what was measured before, which is quick.
    ///
    /// # Errors
    /// Not even f32 runs on it.
    pub fn measure(self, probe: Probe) -> Result<Machine> {
        let (name, replaceable) = (self.facts.name.clone(), self.replaceable);
        match self.measure_this(probe) {
            Err(error) if replaceable => {
                tracing::warn!(%error, "{name} can't be measured: going on with the CPU");
                Machine::find(Choice::Cpu)?.measure_this(probe)
            }
            measured => measured,
        }
    }

    fn measure_this(self, probe: Probe) -> Result<Machine> {
        let Self { device, mut facts, .. } = self;
        let fingerprint = fingerprint(device, &facts);
        let place = place(device, &facts);
        let measured = match read_measurements(place.as_deref(), &fingerprint).filter(|_| probe == Probe::Kept) {
            Some(measured) => measured,
            None => {
                announce(&facts, None);
                let measured = probe::measure(device)?;
                announce(&facts, Some(&measured));
                // Memory that the probe took must not serve the first job.
                memory::trim(device)?;
                keep(
                    place.as_deref(),
                    &StoredMeasurements { fingerprint: fingerprint.clone(), measured: measured.clone() },
                );
                measured
            }
        };
        facts.fast_dtypes = measured.fast_dtypes();
        Ok(Machine::new(device, facts, measured, fingerprint))
    }
}

/// Settings in the environment that change how fast a GPU is, or which one it is.
const SETTINGS: [&str; 11] = [
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
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
];

/// The number of the probe's version: measurements of another one are made anew.
const PROBE: u32 = 2;

fn fingerprint(device: Device, facts: &Facts) -> String {
    let first_line = |path| fs::read_to_string(path).ok().and_then(|text| text.lines().next().map(str::to_owned));
    let driver = match facts.backend {
        Backend::Cuda => first_line("/proc/driver/nvidia/version"),
        Backend::Rocm => first_line("/sys/module/amdgpu/version").or_else(|| first_line("/proc/sys/kernel/osrelease")),
        Backend::Cpu | Backend::Metal => None,
    };
    // libtorch says nothing of its version in the C++ interface that is linked; its files change
    // with it.
    let libtorch: Vec<String> = ["libtorch_cpu.so", "libtorch_cuda.so", "libtorch_hip.so"]
        .iter()
        .filter_map(|name| fs::metadata(backend::folder().ok()?.join(name)).ok())
        .map(|file| format!("{}@{}", file.len(), file.mtime()))
        .collect();
    let settings = SETTINGS.iter().filter_map(|name| Some(format!(", {name}={}", env::var_os(name)?.display())));
    format!(
        "{} ({:?}, {}, {} units), {} threads, tilewright {} (probe {PROBE}), libtorch {}, {}{}{}",
        facts.name,
        facts.backend,
        facts.arch,
        facts.compute_units,
        tch::get_num_threads(),
        env!("CARGO_PKG_VERSION"),
        libtorch.join(" "),
        driver.as_deref().unwrap_or("no driver"),
        device::bus_address(device).map(|address| format!(", {address}")).unwrap_or_default(),
        settings.collect::<String>(),
    )
}

/// Measurements, and the machine that they are of.
#[derive(Serialize, Deserialize)]
struct StoredMeasurements {
    fingerprint: String,
    measured: Measured,
}

/// The file of this user's measurements of a device with so many threads. Two cards of one kind
/// have one each.
fn place(device: Device, facts: &Facts) -> Option<PathBuf> {
    let address = device::bus_address(device).unwrap_or_default();
    let threads = tch::get_num_threads();
    let device = format!("{}\n{}\n{}\n{threads}\n{address}", facts.name, facts.arch, facts.compute_units);
    Some(UserFolder::Cache.path()?.join(format!("probe-{:016x}.json", fnv1a(device.as_bytes()))))
}

/// The longest file of measurements that is read, in bytes.
const MOST_KEPT: u64 = 1 << 20;

fn read_measurements(place: Option<&Path>, fingerprint: &str) -> Option<Measured> {
    let kept: StoredMeasurements = serde_json::from_slice(&tilewright_files::read(place?, MOST_KEPT).ok()?).ok()?;
    let measured = kept.measured;
    let sound = |rate: f64| rate.is_finite() && rate > 0.0;
    let rates = measured.speeds.iter().flat_map(|speed| [speed.flops_per_second, speed.attention_flops_per_second]);
    let all = rates.chain([measured.bytes_per_second]).all(sound);
    (kept.fingerprint == fingerprint && all && measured.best(Dtype::F32).is_some()).then_some(measured)
}

/// A cache that can't be written is no failure: the next process measures again.
fn keep(place: Option<&Path>, kept: &StoredMeasurements) {
    let write = || -> Option<()> {
        let place = place?;
        let folder = place.parent()?;
        fs::create_dir_all(folder).ok()?;
        let mut file = tempfile::Builder::new().prefix(".tilewright-").tempfile_in(folder).ok()?;
        file.write_all(&serde_json::to_vec(kept).ok()?).ok()?;
        file.persist(place).ok().map(drop)
    };
    if write().is_none() {
        tracing::debug!("the device's measurements can't be kept");
    }
}
