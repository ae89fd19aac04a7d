//! The device that work runs on: chosen, looked at and measured once.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::{Path, PathBuf},
};

use tch::Device;
use tilewright_plan::{Device as Facts, Dtype};
use tilewright_torch::{
    backend, device,
    device::Choice,
    memory,
    probe::{self, Measured},
};

use crate::Result;

/// Whether a device is measured anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// What was measured before on the same device with the same libtorch and number of threads, so that the same request gets the
    /// same answer in every process.
    Kept,
    /// Measured now, and kept.
    Fresh,
}

/// A device, what the kernel and driver say of it, and what the probe measured.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What libtorch calls it.
    pub device: Device,
    /// What policies are told.
    pub facts: Facts,
    /// Measured speeds.
    pub measured: Measured,
}

impl Machine {
    /// Chooses a device and measures it. Call it before any tensor is made; a GPU back end is loaded unless the CPU is asked for.
    ///
    /// # Errors
    /// The device is not there or does not work.
    pub fn open(choice: Choice, probe: Probe) -> Result<Self> {
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
        let mut facts = device::facts(device, backend)?;
        let measured = match kept(&facts).filter(|_| probe == Probe::Kept) {
            Some(measured) => measured,
            None => {
                let measured = probe::measure(device)?;
                keep(&facts, &measured);
                measured
            }
        };
        facts.fast_dtypes = measured.fast_dtypes();
        Ok(Self { device, facts, measured })
    }
}

/// Where this user's measurements of a device are kept: told apart by everything that changes the speed.
fn place(facts: &Facts) -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)?;
    let mut hasher = DefaultHasher::new();
    (&facts.name, &facts.arch, facts.compute_units, tch::get_num_threads(), backend::folder().ok()).hash(&mut hasher);
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    Some(cache.join("tilewright").join(format!("probe-{:016x}.json", hasher.finish())))
}

fn kept(facts: &Facts) -> Option<Measured> {
    let measured: Measured = serde_json::from_slice(&fs::read(place(facts)?).ok()?).ok()?;
    let sound = |rate: f64| rate.is_finite() && rate > 0.0;
    let all = measured.speeds.iter().map(|speed| speed.flops_per_second).chain([measured.bytes_per_second]).all(sound);
    (all && measured.best(Dtype::F32).is_some()).then_some(measured)
}

/// A cache that can't be written is no failure: the next process measures again.
fn keep(facts: &Facts, measured: &Measured) {
    let write = || -> Option<()> {
        let place = place(facts)?;
        let folder = place.parent()?;
        fs::create_dir_all(folder).ok()?;
        let mut file = tempfile::NamedTempFile::new_in(folder).ok()?;
        file.write_all(&serde_json::to_vec(measured).ok()?).ok()?;
        file.persist(place).ok().map(drop)
    };
    if write().is_none() {
        tracing::debug!("the device's measurements can't be kept");
    }
}
