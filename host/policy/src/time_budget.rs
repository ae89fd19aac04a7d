//! A budget of processor time for all calls of a policy by one check or one command. Each call
//! keeps within its own limits, and all of them together may still take minutes: fuel says little
//! about time, and each question costs a new instance with its start function.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use crate::PolicyError;

/// The processor time that is left, shared by all instances of a policy.
#[derive(Debug)]
pub struct TimeBudget {
    /// The most in all.
    most: Duration,
    /// Nanoseconds taken.
    taken: AtomicU64,
}

impl TimeBudget {
    /// A budget of which nothing is taken yet.
    pub fn new(most: Duration) -> Self {
        Self { most, taken: AtomicU64::new(0) }
    }

    /// True if the budget is used up.
    pub fn is_spent(&self) -> bool {
        u128::from(self.taken.load(Ordering::Relaxed)) >= self.most.as_nanos()
    }

    /// Checks that the budget was enough, since answers after its end are the fallback's.
    ///
    /// # Errors
    /// [`PolicyError::TooSlow`] for this policy.
    pub fn check(&self, policy: &str) -> Result<(), PolicyError> {
        match self.is_spent() {
            true => Err(PolicyError::TooSlow { policy: policy.to_owned(), most: self.most }),
            false => Ok(()),
        }
    }

    /// Runs a function, and counts this thread's processor time meanwhile if there is a budget.
    pub fn count<R>(time_budget: Option<&Self>, run: impl FnOnce() -> R) -> R {
        let Some(time_budget) = time_budget else { return run() };
        let before = thread_time();
        let result = run();
        let took = thread_time().saturating_sub(before).as_nanos() as u64;
        time_budget.taken.fetch_add(took, Ordering::Relaxed);
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
        let time_budget = TimeBudget::new(Duration::from_millis(20));
        let burn = || {
            let before = thread_time();
            while thread_time() < before + Duration::from_millis(15) {}
        };
        TimeBudget::count(Some(&time_budget), burn);
        assert!(!time_budget.is_spent());
        TimeBudget::count(Some(&time_budget), burn);
        assert!(time_budget.is_spent());
        assert_eq!(TimeBudget::count(None, || 5), 5);
    }
}
