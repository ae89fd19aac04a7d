//! The device that work runs on: chosen, looked at and measured once.

use tch::Device;
use tilewright_plan::Device as Facts;
use tilewright_torch::{
    backend, device,
    device::Choice,
    memory,
    probe::{self, Measured},
};

use crate::Result;

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
    pub fn open(choice: Choice) -> Result<Self> {
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
        let measured = probe::measure(device)?;
        facts.fast_dtypes = measured.fast_dtypes();
        Ok(Self { device, facts, measured })
    }
}
