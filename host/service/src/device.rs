//! The configured devices: each has a queue, and a thread that does one job after the other.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use tilewright_config::Config;
use tilewright_engine::{Machine, Probe, load_gpus};
use tilewright_pipeline::default_limit;
use tilewright_torch::memory;

use crate::{Error, Result, jobs::queue::Queue};

/// A configured device and its queue.
#[derive(Debug)]
pub struct DeviceState {
    /// The device's name in the configuration.
    pub name: String,
    /// The jobs that wait for it.
    pub queue: Queue,
    /// The device's properties, as policies are given them.
    pub facts: tilewright_plan::Device,
    /// The most that a job may hold, in bytes.
    pub memory_limit: u64,
    /// The limit counts the weights, for every job.
    pub counts_weights: bool,
    /// The machine. The device's own thread alone computes on it; any thread may ask for the cost
    /// of a plan.
    pub machine: Machine,
    /// The last reading of its memory. Its own thread takes it, since libtorch answers there.
    pub memory: Mutex<MemoryUse>,
}

/// The memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// Memory handed out, weights included.
    pub in_use: u64,
    /// Memory kept for the next allocations.
    pub pooled: u64,
    /// The most handed out during the last job.
    pub peak: u64,
}

impl DeviceState {
    /// Reads the memory. Call it on the device's own thread.
    pub fn refresh_memory(&self) {
        if let Ok(now) = memory::of(self.machine.device) {
            let held = MemoryUse { in_use: now.in_use, pooled: now.held.saturating_sub(now.in_use), peak: now.peak };
            *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = held;
        }
    }

    /// The last reading of the memory.
    pub fn memory_use(&self) -> MemoryUse {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All devices, in the configuration's order. Clones share them.
#[derive(Clone, Debug)]
pub struct Devices(Arc<[Arc<DeviceState>]>);

impl FromIterator<Arc<DeviceState>> for Devices {
    fn from_iter<T: IntoIterator<Item = Arc<DeviceState>>>(devices: T) -> Self {
        Self(devices.into_iter().collect())
    }
}

impl Devices {
    /// The device with a name.
    pub fn get(&self, name: &str) -> Option<&Arc<DeviceState>> {
        self.iter().find(|device| device.name == name)
    }

    /// The first device.
    pub fn first(&self) -> Option<&Arc<DeviceState>> {
        self.0.first()
    }

    /// Each device.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<DeviceState>> {
        self.0.iter()
    }

    /// The names of all devices.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|device| device.name.clone()).collect()
    }

    /// The device with the fewest jobs, waiting and at work.
    pub fn least_loaded(&self) -> Option<&Arc<DeviceState>> {
        self.iter().min_by_key(|device| {
            let (waiting, is_running) = device.queue.load();
            waiting + usize::from(is_running)
        })
    }

    /// Seconds after which a queue may have room; none if one has room now.
    pub fn retry_after(&self) -> Option<u64> {
        let mut least = None;
        for device in self.iter() {
            match device.queue.reserve() {
                Ok(_) => return None,
                Err(seconds) => least = Some(least.map_or(seconds, |known: u64| known.min(seconds))),
            }
        }
        least
    }
}

/// The main function of a device's thread.
type WorkerMain = Box<dyn FnOnce() + Send>;

/// A device whose thread waits to begin.
pub struct IdleWorker {
    /// The device.
    pub device: Arc<DeviceState>,
    begin: mpsc::Sender<WorkerMain>,
    thread: JoinHandle<()>,
}

impl IdleWorker {
    /// Lets the thread begin. Returns its handle, to join at the end.
    pub fn begin(self, main: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // A thread that is gone has nothing to do.
        let _ = self.begin.send(Box::new(main));
        self.thread
    }
}

/// Measures every configured device, each on the thread that is going to work on it.
///
/// # Errors
/// A device is not there.
pub fn open(config: &Config) -> Result<Vec<IdleWorker>> {
    // Before any device: libtorch answers the first question about GPUs for good.
    if let Err(error) = load_gpus(config.devices().values().map(|device| device.device)) {
        tracing::warn!(%error, "the GPU back end can't be loaded");
    }
    let capacity = config.server.limits.queue as usize;
    let devices = config.devices().iter().map(|(name, configured)| {
        let (found, finding) = mpsc::channel::<Result<Arc<DeviceState>>>();
        let (begin, beginning) = mpsc::channel::<WorkerMain>();
        let (of, configured) = (name.clone(), configured.clone());
        let body = move || {
            let is_received = found.send(measure_device(&of, &configured, capacity).map(Arc::new)).is_ok();
            if let (true, Ok(main)) = (is_received, beginning.recv()) {
                main();
            }
        };
        let failed =
            |source| Error::File { path: format!("the thread of device {name}").into(), verb: "started", source };
        let thread = thread::Builder::new().name(format!("device {name}")).spawn(body).map_err(failed)?;
        let device = finding.recv().map_err(|_| failed(io::Error::other("it ended")))??;
        Ok(IdleWorker { device, begin, thread })
    });
    devices.collect()
}

fn measure_device(name: &str, configured: &tilewright_config::Device, capacity: usize) -> Result<DeviceState> {
    let threads = configured.threads.map(|threads| u16::try_from(threads).unwrap_or(u16::MAX));
    if let Some(threads) = threads {
        tilewright_torch::set_threads(threads);
    }
    let machine = Machine::open(configured.device, Probe::Kept).map_err(tilewright_pipeline::Error::from)?;
    let device = DeviceState {
        name: name.to_owned(),
        queue: Queue::new(capacity),
        facts: machine.facts.clone(),
        memory_limit: configured.memory_limit_bytes.unwrap_or_else(|| default_limit(&machine)),
        counts_weights: configured.count_weights,
        machine,
        memory: Mutex::default(),
    };
    device.refresh_memory();
    Ok(device)
}
