//! Slots for the inspection of callers' files. A number of jobs are inspected at once, at most half
//! of them for one caller, within a bound on memory. A caller that gets no slot in time is refused.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::problem::{ApiResult, Problem};

/// Jobs that are inspected at once, and the most of one caller among them.
const AT_ONCE: usize = 4;
const OF_ONE: usize = 2;

/// Bytes that may be held in all; an inspection that takes more runs alone.
const MEMORY: u64 = 1 << 30;

/// The unit in which memory is counted, in bytes.
const UNIT: u64 = 1 << 20;

/// The longest wait for a slot.
const PATIENCE: Duration = Duration::from_secs(20);

/// Seconds after which a caller may try again.
const AGAIN: u64 = 5;

/// Slots for inspections.
#[derive(Debug)]
pub struct InspectionSlots {
    slots: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
    patience: Duration,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub struct InspectionPermit {
    _own: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
    _memory: Option<OwnedSemaphorePermit>,
}

impl Default for InspectionSlots {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            memory: Arc::new(Semaphore::new(memory_units(MEMORY) as usize)),
            callers: Mutex::default(),
            patience: PATIENCE,
        }
    }
}

/// The units of memory in `bytes`; at most all units, so that the largest inspection runs alone.
fn memory_units(bytes: u64) -> u32 {
    u32::try_from(bytes.min(MEMORY).div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl InspectionSlots {
    /// Waits for a slot for a caller and an inspection that holds `bytes` bytes.
    ///
    /// # Errors
    /// No slot is free in time.
    pub async fn acquire(&self, caller: &str, bytes: u64) -> ApiResult<InspectionPermit> {
        let own = self.caller_slots(caller);
        let turn = async {
            // The caller's own slots first: a caller who sends much waits for itself, and takes no
            // place in the common line.
            let own = own.acquire_owned().await.ok()?;
            let turn = self.slots.clone().acquire_owned().await.ok()?;
            // A request without files waits for nobody's pictures.
            let memory = match bytes {
                0 => None,
                _ => Some(self.memory.clone().acquire_many_owned(memory_units(bytes)).await.ok()?),
            };
            Some(InspectionPermit { _own: own, _turn: turn, _memory: memory })
        };
        let busy = || Problem::busy("too many jobs' files are being looked into: come again after Retry-After", AGAIN);
        timeout(self.patience, turn).await.ok().flatten().ok_or_else(busy)
    }

    fn caller_slots(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = callers.get(caller).and_then(Weak::upgrade) {
            return known;
        }
        callers.retain(|_, semaphore| semaphore.strong_count() > 0);
        let new = Arc::new(Semaphore::new(OF_ONE));
        callers.insert(caller.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> InspectionSlots {
        InspectionSlots { patience: Duration::from_millis(50), ..InspectionSlots::default() }
    }

    #[tokio::test]
    async fn one_caller_has_half_of_the_turns_and_nobody_waits_for_ever() {
        let slots = slots();
        let own = [slots.acquire("eve", 10).await.unwrap(), slots.acquire("eve", 10).await.unwrap()];
        let refused = slots.acquire("eve", 10).await.unwrap_err();
        assert_eq!((refused.status, refused.retry_after), (429, Some(AGAIN)));
        let others = [slots.acquire("ada", 10).await.unwrap(), slots.acquire("bob", 10).await.unwrap()];
        assert!(slots.acquire("cyd", 10).await.is_err(), "all slots are taken");
        drop(own);
        slots.acquire("cyd", 10).await.unwrap();
        drop(others);
        slots.acquire("eve", 10).await.unwrap();
        slots.caller_slots("new");
        assert!(slots.callers.lock().unwrap().len() <= 2, "callers that are gone are forgotten");
    }

    #[tokio::test]
    async fn the_largest_file_is_looked_into_alone() {
        let slots = slots();
        let large = slots.acquire("ada", 64 << 30).await.unwrap();
        assert!(slots.acquire("bob", 1).await.is_err());
        slots.acquire("bob", 0).await.unwrap();
        drop(large);
        slots.acquire("bob", 1).await.unwrap();
    }
}
