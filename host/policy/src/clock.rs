//! The clocks that policies' calls are timed by. The machine's are read here and nowhere else in
//! this crate, so that a test can put its own in their place: a limit of time is then the same on
//! every machine.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// A clock of the wall and one of the processor. Both begin at any moment and never go back.
pub trait Clock: Send + Sync {
    /// Wall-clock time.
    fn wall(&self) -> Duration;

    /// Processor time of the calling thread.
    fn processor(&self) -> Duration;

    /// Tells the clock how much fuel a call has used: one that runs by fuel moves on.
    fn burn(&self, fuel: u64);
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineClock;

impl Clock for MachineClock {
    fn wall(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    fn processor(&self) -> Duration {
        Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
    }

    fn burn(&self, _fuel: u64) {}
}
