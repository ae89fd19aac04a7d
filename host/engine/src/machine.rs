//! The device that work runs on: chosen, looked at and measured once.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use serde::{Deserialize, Serialize};
use tch::Device;
use tilewright_files::{UserFolder, digest::fnv1a};
use tilewright_kernels::{Kernels, Measured};
use tilewright_plan::{Device as Facts, Dtype, HostMemory, Layout, Precision, Stage};
use tilewright_prices::{Attention, Basis};
use tilewright_torch::{attention, backend, device, device::Choice, kernels, memory, miopen, probe};

use crate::{Result, kept, libraries, trial};

/// The source of a device's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Earlier measurements of the same device with the same libtorch and number of threads, so
    /// that the same request gets the same answer in every process. Those of a busy machine serve
    /// until it is quiet.
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
    warm: Arc<Mutex<Vec<Format>>>,
}

/// The kernels that a run loads: those of a stage, in its types and memory order.
pub(crate) type Format = (Stage, Precision, Option<Layout>);

/// The attention that a device fuses, where it is tried.
#[derive(Debug)]
struct OnDevice(Device);

impl Attention for OnDevice {
    fn is_fused(&self, width: i64, dtype: Dtype) -> bool {
        attention::is_fused(self.0, width, dtype)
    }
}

/// A device that was chosen and looked at, but not measured yet.
#[derive(Debug)]
pub struct Found {
    choice: Choice,
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

    /// The facts, with the memory that is free now, and with MIOpen if it is still used: a
    /// service's device was looked at when it started.
    fn facts_now(&self) -> Facts {
        let free_bytes = device::free_bytes(self.device).unwrap_or(self.facts.free_bytes);
        let hints = if self.device == Device::Cpu { Vec::new() } else { device::library_facts() };
        Facts { free_bytes, hints, ..self.facts.clone() }
    }

    /// Memory of the host as it is now, and its way to the device.
    fn host_memory(&self) -> HostMemory {
        let memory = device::system_memory().ok();
        HostMemory {
            total_bytes: memory.map_or(0, |memory| memory.total),
            free_bytes: memory.map_or(0, |memory| memory.available),
            transfer_rate: self.measured.transfer_bytes_per_second.map_or(0, |rate| rate as u64),
        }
    }

    /// The kernels that the process has on the device.
    pub fn kernels(&self) -> Kernels {
        kernels(self.device)
    }

    /// All that prices of work on the device are made from, as it is now.
    pub fn basis(&self) -> Basis {
        Basis {
            facts: self.facts_now(),
            host: self.host_memory(),
            measured: self.measured.clone(),
            kernels: self.kernels(),
            fp8_products: device::has_fp8_products(self.device),
            attention: Arc::new(OnDevice(self.device)),
        }
    }

    /// Lets the next process measure without MIOpen if that has failed since it was measured.
    fn note_miopen(&self) {
        if self.measured.miopen == Some(true) && miopen::has_failed() {
            discard(place(self.device, &self.facts).as_deref(), &self.fingerprint);
        }
    }

    /// Notes that work was done in a format; true if it was the first on a GPU in this process.
    pub(crate) fn note_run(&self, format: Format) -> bool {
        self.note_miopen();
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
    /// is asked for, after a trial in a process of its own ([`crate::try_gpus_by`]). A process that
    /// uses both loads it before either ([`crate::load_gpus`]): computing on the CPU makes libtorch
    /// settle that there is none.
    ///
    /// # Errors
    /// The device is not there or does not work.
    pub fn find(choice: Choice) -> Result<Found> {
        backend::leave_nnpack_out()?;
        let load = || trial::survived(choice).and_then(|()| backend::load());
        let (choice, backend) = match choice {
            Choice::Cpu => (choice, None),
            Choice::Gpu(_) => (choice, load()?),
            // A GPU that was not asked for by name must not keep the CPU from working.
            Choice::Auto => match load() {
                Ok(backend) => (choice, backend),
                Err(error) => {
                    tracing::warn!(%error, "the GPU back end can't be used: going on with the CPU");
                    (Choice::Cpu, None)
                }
            },
        };
        memory::install()?;
        let device = device::select(choice)?;
        let replaceable = choice == Choice::Auto && device != Device::Cpu;
        Ok(Found { choice, device, facts: device::facts(device, backend)?, replaceable })
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
        let Self { choice, device, mut facts, .. } = self;
        let fingerprint = fingerprint(device, &facts);
        let place = place(device, &facts);
        let mut measured = kept_or_measured(place.as_deref(), &fingerprint, probe, Surroundings::now(), || {
            announce(&facts, None);
            let _mark = (device != Device::Cpu).then(|| trial::measuring(choice));
            let measured = probe::measure(device)?;
            announce(&facts, Some(&measured));
            // Memory that the probe took must not serve the first job.
            memory::trim(device)?;
            Ok(measured)
        })?;
        measured.large_convolutions = device != Device::Cpu && miopen::takes_large_inputs();
        // The process's convolutions are to be those that were measured.
        if let Some(is_used) = measured.miopen {
            miopen::set_used(is_used);
            facts.hints = device::library_facts();
        }
        facts.fast_dtypes = measured.fast_dtypes();
        Ok(Machine::new(device, facts, measured, fingerprint))
    }
}

/// The numbers of the probe's version for a CPU and for a GPU: measurements of another one are made
/// again.
const CPU_PROBE: u32 = 2;
const GPU_PROBE: u32 = 3;

fn fingerprint(device: Device, facts: &Facts) -> String {
    let probe = if device == Device::Cpu { CPU_PROBE } else { GPU_PROBE };
    let versions = if device == Device::Cpu { Vec::new() } else { device::library_versions() };
    let versions = versions.iter().map(|version| format!(", {} {}", version.name, version.value));
    format!(
        "{} ({:?}, {}, {} units), {} threads, tilewright {} (probe {probe}), libtorch {}, {}{}{}{}",
        facts.name,
        facts.backend,
        facts.arch,
        facts.compute_units,
        tch::get_num_threads(),
        env!("CARGO_PKG_VERSION"),
        libraries::files(),
        libraries::driver(facts.backend).as_deref().unwrap_or("no driver"),
        device::bus_address(device).map(|address| format!(", {address}")).unwrap_or_default(),
        versions.collect::<String>(),
        libraries::settings(),
    )
}

/// Measurements, and the machine that they are of.
#[derive(Serialize, Deserialize)]
struct StoredMeasurements {
    fingerprint: String,
    measured: Measured,
    /// The machine was quiet before.
    #[serde(default)]
    was_quiet: bool,
    /// Measurements so far.
    #[serde(default)]
    times: u32,
    /// MIOpen was measured, and has failed in the work since: nothing goes by these any more.
    #[serde(default)]
    miopen_failed: bool,
}

/// The most measurements of a machine that is never quiet for long enough.
const MOST_TIMES: u32 = 3;

impl StoredMeasurements {
    /// True if another measurement on a quiet machine may be faster.
    fn is_provisional(&self) -> bool {
        self.times < MOST_TIMES && (self.measured.disturbed || self.measured.hurried && !self.was_quiet)
    }
}

/// The surroundings of a measurement.
#[derive(Clone, Copy)]
struct Surroundings {
    /// Other programs leave the processor alone.
    is_quiet: bool,
    /// The first measurements stay for good: plans follow from them, and tests of the program make
    /// one output in several processes.
    is_pinned: bool,
}

/// The environment variable by which tests pin the measurements of a debug build.
const PINNED: &str = "TILEWRIGHT_PINNED_PROBE";

impl Surroundings {
    fn now() -> Self {
        Self { is_quiet: is_quiet(), is_pinned: cfg!(debug_assertions) && env::var_os(PINNED).is_some() }
    }
}

/// The measurements that are kept, or new ones, which are kept from then on: if there are none, if
/// fresh ones are asked for, and if the machine is quiet and was busy before.
fn kept_or_measured(
    place: Option<&Path>,
    fingerprint: &str,
    probe: Probe,
    Surroundings { is_quiet, is_pinned }: Surroundings,
    measure: impl FnOnce() -> Result<Measured>,
) -> Result<Measured> {
    let kept = || read_measurements(place, fingerprint);
    if probe == Probe::Kept && kept().is_some_and(|there| there.miopen_failed) {
        miopen::leave_out();
    }
    let sound = || kept().filter(|there| !there.miopen_failed);
    let there = sound();
    if is_pinned {
        return match there {
            Some(there) if probe == Probe::Kept => Ok(there.measured),
            Some(_) => measure(),
            None => {
                let (fingerprint, measured) = (fingerprint.to_owned(), measure()?);
                let first = StoredMeasurements {
                    fingerprint,
                    measured,
                    was_quiet: is_quiet,
                    times: MOST_TIMES,
                    miopen_failed: false,
                };
                keep(place, &first, true);
                // The measurements of another process, if it was faster.
                if let Some(there) = sound() {
                    return Ok(there.measured);
                }
                // The file is another machine's, or another libtorch's.
                keep(place, &first, false);
                Ok(first.measured)
            }
        };
    }
    let before = match there.filter(|_| probe == Probe::Kept) {
        Some(kept) if !kept.is_provisional() || !is_quiet => return Ok(kept.measured),
        before => before,
    };
    let times = before.as_ref().map_or(0, |before| before.times) + 1;
    let mut measured = measure()?;
    // Others only ever slow a device down.
    let speed = |measured: &Measured| measured.best(Dtype::F32).unwrap_or(0.0);
    if let Some(before) = before.filter(|before| measured.disturbed && speed(&before.measured) > speed(&measured)) {
        measured = before.measured;
    }
    let fingerprint = fingerprint.to_owned();
    let stored = StoredMeasurements {
        fingerprint,
        measured: measured.clone(),
        was_quiet: is_quiet,
        times,
        miopen_failed: false,
    };
    keep(place, &stored, false);
    Ok(measured)
}

/// The share of the processor's cores that may be in use, now and on average over a minute.
const QUIET: f64 = 0.25;

/// True if other programs leave the processor alone, as far as the system shows.
fn is_quiet() -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| loads(&text))
        .is_none_or(|loads| loads.into_iter().all(|load| load <= QUIET * cores as f64))
}

/// The threads that ran over the last minute, and those that run now beside this one, as Linux
/// shows them: `0.20 0.18 0.12 1/80 11206`.
fn loads(text: &str) -> Option<[f64; 2]> {
    let mut words = text.split_whitespace();
    let average = words.next()?.parse().ok()?;
    let (running, _) = words.nth(2)?.split_once('/')?;
    Some([average, running.parse::<f64>().ok()? - 1.0])
}

/// The file of this user's measurements of a device with the current number of threads and
/// libtorch. Two cards of one kind have one each, and so have two environments of Python: programs
/// of both would measure again in turn.
fn place(device: Device, facts: &Facts) -> Option<PathBuf> {
    let address = device::bus_address(device).unwrap_or_default();
    let file = file_name(facts, tch::get_num_threads(), &address, &libraries::files());
    Some(UserFolder::Cache.path()?.join(file))
}

fn file_name(facts: &Facts, threads: i32, address: &str, libraries: &str) -> String {
    let Facts { name, arch, compute_units, .. } = facts;
    let of = format!("{name}\n{arch}\n{compute_units}\n{threads}\n{address}\n{libraries}");
    format!("probe-{:016x}.json", fnv1a(of.as_bytes()))
}

/// The longest file of measurements that is read, in bytes.
const MOST_KEPT: u64 = 1 << 20;

fn read_measurements(place: Option<&Path>, fingerprint: &str) -> Option<StoredMeasurements> {
    let kept: StoredMeasurements = serde_json::from_slice(&tilewright_files::read(place?, MOST_KEPT).ok()?).ok()?;
    let is_sound = kept.fingerprint == fingerprint && kept.measured.is_sound();
    is_sound.then_some(kept)
}

/// Marks measurements of a MIOpen that has failed.
fn discard(place: Option<&Path>, fingerprint: &str) {
    if let Some(there) = read_measurements(place, fingerprint).filter(|there| !there.miopen_failed) {
        keep(place, &StoredMeasurements { miopen_failed: true, ..there }, false);
    }
}

/// Keeps measurements, or leaves those that are there, if they are pinned: the next process
/// measures again if that fails.
fn keep(place: Option<&Path>, kept: &StoredMeasurements, is_pinned: bool) {
    let write = || kept::write(place?, &serde_json::to_vec(kept).ok()?, !is_pinned);
    if write().is_none() {
        tracing::debug!("the device's measurements can't be kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rate: f64, hurried: bool, disturbed: bool) -> Measured {
        let speed = serde_json::json!({
            "dtype": "f32", "layout": "channels-first", "flops_per_second": rate,
            "plain": { "per_product": 1e-12, "per_value": 0.0 }, "winograd": null,
            "attention_flops_per_second": rate, "fused_attention": true,
            "scratch": { "inputs": 0.0, "weights": 0.0, "small": 0 },
        });
        let (bytes, backend) = (1e9, "cpu");
        serde_json::from_value(serde_json::json!({
            "speeds": [speed], "bytes_per_second": bytes, "backend": backend, "hurried": hurried, "disturbed": disturbed,
        }))
        .unwrap()
    }

    /// A machine in a series of processes: it is quiet or not, its probe finds something, and is
    /// counted.
    struct Processes {
        folder: tempfile::TempDir,
        probes: u32,
    }

    impl Processes {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap(), probes: 0 }
        }

        fn run(&mut self, is_quiet: bool, found: &Measured) -> f64 {
            self.run_in(Surroundings { is_quiet, is_pinned: false }, Probe::Kept, found)
        }

        fn run_in(&mut self, surroundings: Surroundings, probe: Probe, found: &Measured) -> f64 {
            let place = self.folder.path().join("probe.json");
            let measured = kept_or_measured(Some(&place), "machine", probe, surroundings, || {
                self.probes += 1;
                Ok(found.clone())
            });
            measured.unwrap().best(Dtype::F32).unwrap()
        }
    }

    #[test]
    fn a_busy_machine_is_measured_again_when_it_is_quiet() {
        for busy in [measured(40.0, false, true), measured(40.0, true, false), measured(40.0, true, true)] {
            let (mut processes, right) = (Processes::new(), measured(100.0, false, false));
            assert_eq!(processes.run(false, &busy), 40.0);
            assert_eq!((processes.run(false, &right), processes.probes), (40.0, 1), "no wait while it is busy");
            assert_eq!((processes.run(true, &right), processes.probes), (100.0, 2));
            assert_eq!((processes.run(true, &busy), processes.probes), (100.0, 2), "for good");
        }
    }

    #[test]
    fn pinned_measurements_stay_whatever_is_measured_later() {
        let pinned = Surroundings { is_quiet: true, is_pinned: true };
        let (mut processes, busy, right) =
            (Processes::new(), measured(40.0, true, true), measured(100.0, false, false));
        assert_eq!(processes.run_in(pinned, Probe::Kept, &busy), 40.0);
        assert_eq!(processes.run_in(pinned, Probe::Kept, &right), 40.0);
        assert_eq!(processes.run_in(pinned, Probe::Fresh, &right), 100.0, "shown, and not kept");
        assert_eq!((processes.run_in(pinned, Probe::Kept, &right), processes.probes), (40.0, 2));
        // A file of other measurements gives way.
        fs::write(processes.folder.path().join("probe.json"), "{}").unwrap();
        assert_eq!(processes.run_in(pinned, Probe::Kept, &right), 100.0);
        assert_eq!((processes.run_in(pinned, Probe::Kept, &busy), processes.probes), (100.0, 3));
    }

    #[test]
    fn nothing_goes_by_measurements_of_a_miopen_that_failed() {
        for is_pinned in [false, true] {
            let (mut processes, with, without) =
                (Processes::new(), measured(100.0, false, false), measured(40.0, false, false));
            let mut run = |found| processes.run_in(Surroundings { is_quiet: true, is_pinned }, Probe::Kept, found);
            assert_eq!([run(&with), run(&without)], [100.0; 2]);
            let place = processes.folder.path().join("probe.json");
            discard(Some(&place), "another machine");
            assert_eq!(processes.run_in(Surroundings { is_quiet: true, is_pinned }, Probe::Kept, &without), 100.0);
            discard(Some(&place), "machine");
            let mut run = |found| processes.run_in(Surroundings { is_quiet: true, is_pinned }, Probe::Kept, found);
            assert_eq!([run(&without), run(&with)], [40.0; 2]);
            assert_eq!(processes.probes, 2);
        }
    }

    #[test]
    fn a_quiet_machine_is_measured_once_even_if_it_is_slow() {
        let mut processes = Processes::new();
        for _ in 0..3 {
            assert_eq!(processes.run(true, &measured(1.0, true, false)), 1.0);
        }
        assert_eq!(processes.probes, 1);
    }

    #[test]
    fn what_others_slowed_down_replaces_nothing_faster() {
        let mut processes = Processes::new();
        processes.run(false, &measured(60.0, false, true));
        assert_eq!(processes.run(true, &measured(40.0, false, true)), 60.0);
        assert_eq!(processes.run(true, &measured(80.0, false, true)), 80.0);
        assert_eq!((processes.run(true, &measured(90.0, false, false)), processes.probes), (80.0, 3), "enough");
    }

    #[test]
    fn a_card_or_a_libtorch_of_its_own_keeps_measurements_of_its_own() {
        let facts: Facts = serde_json::from_value(serde_json::json!({
            "backend": "rocm", "name": "Card", "arch": "gfx1100", "compute_units": 96, "total_bytes": 1, "free_bytes": 1,
            "unified": false, "fast_dtypes": [],
        }))
        .unwrap();
        let file = |threads, address, libraries| file_name(&facts, threads, address, libraries);
        let one = file(2, "0000:01:00.0", "451209129@1796029417");
        assert_eq!(one, file(2, "0000:01:00.0", "451209129@1796029417"));
        let others = [
            file(4, "0000:01:00.0", "451209129@1796029417"),
            file(2, "0000:02:00.0", "451209129@1796029417"),
            file(2, "0000:01:00.0", "451209129@1796003442"),
        ];
        assert!(!others.contains(&one), "{one}: {others:?}");
    }

    #[test]
    fn the_load_is_that_of_others() {
        assert_eq!(loads("0.20 0.18 0.12 1/80 11206\n"), Some([0.2, 0.0]));
        assert_eq!(loads("9.50 0.18 0.12 5/80 11206\n"), Some([9.5, 4.0]));
        assert_eq!(loads("0.2"), None);
    }
}
