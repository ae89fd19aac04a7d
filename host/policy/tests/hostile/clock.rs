//! Clocks that a test owns: how fast, slow or busy the machine is moves none of its results.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tilewright_policy::Clock;

/// Clocks that stand still but for their own steps and the fuel that is burnt.
#[derive(Debug, Default)]
pub struct OwnClock {
    /// Time that passes whenever the wall's clock is read.
    wall_step: Duration,
    /// Time on the processor meanwhile.
    processor_step: Duration,
    /// Picoseconds that a unit of fuel takes.
    fuel_ps: u64,
    readings: AtomicU64,
    fuel: AtomicU64,
}

impl OwnClock {
    /// Clocks that stand still.
    pub fn still() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Clocks that run while a call does, but stand still between calls.
    pub fn passing(wall_step: Duration, processor_step: Duration) -> Arc<Self> {
        Arc::new(Self { wall_step, processor_step, ..Self::default() })
    }

    /// Clocks that run by fuel, a unit taking `fuel_ps` picoseconds, and stand still within a call.
    pub fn by_fuel(fuel_ps: u64) -> Arc<Self> {
        Arc::new(Self { fuel_ps, ..Self::default() })
    }

    /// Readings of the wall's clock so far.
    pub fn readings(&self) -> u64 {
        self.readings.load(Ordering::Relaxed)
    }

    fn burnt(&self) -> Duration {
        Duration::from_nanos(self.fuel.load(Ordering::Relaxed) * self.fuel_ps / 1000)
    }

    fn stepped(&self, step: Duration, readings: u64) -> Duration {
        step * u32::try_from(readings).unwrap() + self.burnt()
    }
}

impl Clock for OwnClock {
    fn wall(&self) -> Duration {
        self.stepped(self.wall_step, 1 + self.readings.fetch_add(1, Ordering::Relaxed))
    }

    fn processor(&self) -> Duration {
        self.stepped(self.processor_step, self.readings.load(Ordering::Relaxed))
    }

    fn burn(&self, fuel: u64) {
        self.fuel.fetch_add(fuel, Ordering::Relaxed);
    }
}
