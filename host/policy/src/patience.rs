//! Processor time for everything that is asked of a policy by one check or one command. Each call keeps within its own limits and all of
//! them together may still take minutes: fuel says little about time, and each question costs a fresh instance with its start function.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// The processor time that is left, shared by all instances of a policy.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The most in all.
    pub most: Duration,
    /// Nanoseconds taken.
    taken: AtomicU64,
}

impl Patience {
    pub fn new(most: Duration) -> Self {
        Self { most, taken: AtomicU64::new(0) }
    }

    /// True if everything is taken.
    pub fn is_spent(&self) -> bool {
        u128::from(self.taken.load(Ordering::Relaxed)) >= self.most.as_nanos()
    }

    /// Does something, and counts the processor time of this thread meanwhile if there is a limit on it.
    pub fn count<R>(patience: Option<&Self>, run: impl FnOnce() -> R) -> R {
        let Some(patience) = patience else { return run() };
        let before = thread_time();
        let result = run();
        let took = thread_time().saturating_sub(before).as_nanos() as u64;
        patience.taken.fetch_add(took, Ordering::Relaxed);
        result
    }
}

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_adds_up() {
        let patience = Patience::new(Duration::from_millis(20));
        let burn = || {
            let before = thread_time();
            while thread_time() < before + Duration::from_millis(15) {}
        };
        Patience::count(Some(&patience), burn);
        assert!(!patience.is_spent());
        Patience::count(Some(&patience), burn);
        assert!(patience.is_spent());
        assert_eq!(Patience::count(None, || 5), 5);
    }
}
