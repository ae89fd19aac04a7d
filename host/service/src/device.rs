//! The configured devices: each has a queue, and a thread that does one job after the other.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use tilewright_config::{Choice, Config};
use tilewright_decode::SHARE_OF_FREE;
use tilewright_engine::{Machine, Probe};
use tilewright_torch::memory;

use crate::{Error, Result, jobs::queue::Queue};

/// A device at work.
#[derive(Debug)]
pub struct Device {
    /// Its name in the configuration.
    pub name: String,
    /// Who waits for it.
    pub queue: Queue,
    /// What policies are told of it.
    pub facts: tilewright_plan::Device,
    /// What is measured under another one says nothing of it.
    pub fingerprint: String,
    /// The most that a job may hold, in bytes, weights aside.
    pub memory_limit: u64,
    /// The machine. Its own thread alone computes on it; any thread may ask for the cost of a plan.
    pub machine: Machine,
    /// The last look at its memory, kept by its thread: libtorch answers there.
    pub memory: Mutex<Held>,
}

/// Bytes that a device holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Handed out, weights included.
    pub in_use: u64,
    /// Kept for the next allocations.
    pub pooled: u64,
    /// Most handed out during the last job.
    pub peak: u64,
}

impl Device {
    /// Looks at the memory.
    pub fn look(&self) {
        if let Ok(now) = memory::of(self.machine.device) {
            let held = Held { in_use: now.in_use, pooled: now.held.saturating_sub(now.in_use), peak: now.peak };
            *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = held;
        }
    }

    /// What the last look found.
    pub fn held(&self) -> Held {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device's thread, which measured it and waits for its work.
pub struct Worker {
    /// What it works on.
    pub device: Arc<Device>,
}

/// What a device's thread does from then on.
type Task = Box<dyn FnOnce(Worker) + Send>;

/// A device whose thread waits to begin.
pub struct Ready {
    /// The device.
    pub device: Arc<Device>,
    begin: mpsc::Sender<Task>,
    thread: JoinHandle<()>,
}

impl Ready {
    /// Lets the thread begin; gives it to be waited for at the end.
    pub fn begin(self, task: impl FnOnce(Worker) + Send + 'static) -> JoinHandle<()> {
        // A thread that is gone has nothing to do.
        let _ = self.begin.send(Box::new(task));
        self.thread
    }
}

/// Measures every device that is configured, each on the thread that is going to work on it.
///
/// # Errors
/// A device is not there.
pub fn open(config: &Config) -> Result<Vec<Ready>> {
    let capacity = config.server.limits.queue as usize;
    let devices = config.devices().iter().map(|(name, configured)| {
        let (found, finding) = mpsc::channel::<Result<Arc<Device>>>();
        let (begin, beginning) = mpsc::channel::<Task>();
        let (of, configured) = (name.clone(), configured.clone());
        let body = move || match measured(&of, &configured, capacity) {
            Err(error) => drop(found.send(Err(error))),
            Ok(worker) => {
                let told = found.send(Ok(worker.device.clone())).is_ok();
                if let (true, Ok(task)) = (told, beginning.recv()) {
                    task(worker);
                }
            }
        };
        let failed =
            |source| Error::File { path: format!("the thread of device {name}").into(), verb: "started", source };
        let thread = thread::Builder::new().name(format!("device {name}")).spawn(body).map_err(failed)?;
        let device = finding.recv().map_err(|_| failed(io::Error::other("it ended")))??;
        Ok(Ready { device, begin, thread })
    });
    devices.collect()
}

fn measured(name: &str, configured: &tilewright_config::Device, capacity: usize) -> Result<Worker> {
    let threads = configured.threads.map(|threads| u16::try_from(threads).unwrap_or(u16::MAX));
    if let Some(threads) = threads {
        tilewright_torch::set_threads(threads);
    }
    let choice = match configured.device {
        Choice::Auto => tilewright_torch::device::Choice::Auto,
        Choice::Cpu => tilewright_torch::device::Choice::Cpu,
        Choice::Gpu(index) => tilewright_torch::device::Choice::Gpu(index),
    };
    let machine = Machine::open(choice, Probe::Kept).map_err(tilewright_decode::Error::from)?;
    let free = (machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64;
    let device = Device {
        name: name.to_owned(),
        queue: Queue::new(capacity),
        facts: machine.facts.clone(),
        fingerprint: machine.fingerprint.clone(),
        memory_limit: configured.memory_limit_bytes.unwrap_or(free),
        machine,
        memory: Mutex::default(),
    };
    device.look();
    Ok(Worker { device: Arc::new(device) })
}
