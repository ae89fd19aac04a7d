//! Turns to look into callers' latents: so many at once, at most half of them for one caller, so much memory in all,
//! and no endless wait.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::problem::{Outcome, Problem};

/// Latents that are looked into at once, and the most of one caller among them.
const AT_ONCE: usize = 4;
const OF_ONE: usize = 2;

/// Bytes held for each byte of a file: the file itself, and its values as f32, at most four times as many bytes.
const HELD: u64 = 5;

/// Bytes that looks may hold in all; a larger file is looked into alone.
const MEMORY: u64 = 1 << 30;

/// Memory is counted in pieces of so many bytes.
const PIECE: u64 = 1 << 20;

/// The longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// Seconds after which a caller may try again.
const AGAIN: u64 = 5;

/// Turns to look into a latent.
#[derive(Debug)]
pub struct Looks {
    turns: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
    patience: Duration,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
    _memory: OwnedSemaphorePermit,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            memory: Arc::new(Semaphore::new(pieces(MEMORY) as usize)),
            callers: Mutex::default(),
            patience: PATIENCE,
        }
    }
}

/// The pieces of memory in so many bytes; at most all pieces, so that the largest file gets its turn alone.
fn pieces(bytes: u64) -> u32 {
    u32::try_from(bytes.min(MEMORY).div_ceil(PIECE)).unwrap_or(u32::MAX).max(1)
}

impl Looks {
    /// A turn for a caller and a file of so many bytes.
    ///
    /// # Errors
    /// No turn is free in time.
    pub async fn turn(&self, caller: &str, bytes: u64) -> Outcome<Turn> {
        let own = self.of(caller);
        let turn = async {
            // The caller's own first: a caller who sends much waits for itself, and takes no place in the common line.
            let own = own.acquire_owned().await.ok()?;
            let turn = self.turns.clone().acquire_owned().await.ok()?;
            let memory = self.memory.clone().acquire_many_owned(pieces(bytes.saturating_mul(HELD))).await.ok()?;
            Some(Turn { _own: own, _turn: turn, _memory: memory })
        };
        let busy = || Problem::busy("too many latents are being looked into: come again after Retry-After", AGAIN);
        timeout(self.patience, turn).await.ok().flatten().ok_or_else(busy)
    }

    fn of(&self, caller: &str) -> Arc<Semaphore> {
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

    fn looks() -> Looks {
        Looks { patience: Duration::from_millis(50), ..Looks::default() }
    }

    #[tokio::test]
    async fn one_caller_has_half_of_the_turns_and_nobody_waits_for_ever() {
        let looks = looks();
        let own = [looks.turn("eve", 10).await.unwrap(), looks.turn("eve", 10).await.unwrap()];
        let refused = looks.turn("eve", 10).await.unwrap_err();
        assert_eq!((refused.status, refused.retry_after), (429, Some(AGAIN)));
        let others = [looks.turn("ada", 10).await.unwrap(), looks.turn("bob", 10).await.unwrap()];
        assert!(looks.turn("cyd", 10).await.is_err(), "all turns are taken");
        drop(own);
        looks.turn("cyd", 10).await.unwrap();
        drop(others);
        looks.turn("eve", 10).await.unwrap();
        looks.of("new");
        assert!(looks.callers.lock().unwrap().len() <= 2, "callers that are gone are forgotten");
    }

    #[tokio::test]
    async fn the_largest_file_is_looked_into_alone() {
        let looks = looks();
        let large = looks.turn("ada", 64 << 30).await.unwrap();
        assert!(looks.turn("bob", 1).await.is_err());
        drop(large);
        looks.turn("bob", 1).await.unwrap();
    }
}
