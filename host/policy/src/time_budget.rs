//! A budget of processor time for all calls of a policy by one check or one command. Each call
//! keeps within its own limits, and all of them together may still take minutes: fuel says little
//! about time, and each question costs a new instance with its start function.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{Clock, PolicyError};

/// The processor time that is left, shared by all instances of a policy.
pub struct TimeBudget {
    clock: Arc<dyn Clock>,
    /// The most in all.
    most: Duration,
    /// Nanoseconds taken.
    taken: AtomicU64,
}

impl TimeBudget {
    /// A budget of which nothing is taken yet.
    pub fn new(most: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { clock, most, taken: AtomicU64::new(0) }
    }

    /// The time taken so far.
    pub fn taken(&self) -> Duration {
        Duration::from_nanos(self.taken.load(Ordering::Relaxed))
    }

    /// True if the budget is used up.
    pub fn is_spent(&self) -> bool {
        self.taken() >= self.most
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
        let before = time_budget.clock.processor();
        let result = run();
        let took = time_budget.clock.processor().saturating_sub(before).as_nanos() as u64;
        time_budget.taken.fetch_add(took, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that moves on by the fuel that is burnt, a unit being a nanosecond.
    #[derive(Default)]
    struct ByFuel(AtomicU64);

    impl Clock for ByFuel {
        fn wall(&self) -> Duration {
            self.processor()
        }

        fn processor(&self) -> Duration {
            Duration::from_nanos(self.0.load(Ordering::Relaxed))
        }

        fn burn(&self, fuel: u64) {
            self.0.fetch_add(fuel, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_taken_adds_up() {
        let clock = Arc::new(ByFuel::default());
        let time_budget = TimeBudget::new(Duration::from_nanos(20), clock.clone());
        TimeBudget::count(Some(&time_budget), || clock.burn(15));
        assert!(!time_budget.is_spent());
        clock.burn(15);
        assert!(!time_budget.is_spent(), "between the runs");
        TimeBudget::count(Some(&time_budget), || clock.burn(5));
        assert!(time_budget.is_spent());
        assert!(matches!(time_budget.check("x"), Err(PolicyError::TooSlow { .. })));
        assert_eq!(TimeBudget::count(None, || 5), 5);
    }
}
