//! Copies within host memory by a few threads.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

/// Threads that copy. One alone reads a file's map slower than a bus carries what it read.
const THREADS: usize = 4;

/// Bytes of a part that a thread takes: enough to be worth a thread's start.
const PART: usize = 2 << 20;

/// Copies all bytes to memory of the same length.
pub(super) fn fill(to: &mut [u8], from: &[u8]) {
    let parts = Mutex::new(to.chunks_mut(PART).zip(from.chunks(PART)));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let copy = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    let others = (from.len().div_ceil(PART)).clamp(1, THREADS) - 1;
    thread::scope(|scope| {
        for _ in 0..others {
            // A system without a thread to spare leaves the parts to those that there are.
            let _ = thread::Builder::new().spawn_scoped(scope, copy);
        }
        copy();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives() {
        for length in [0, 1, PART - 1, PART, 3 * PART + 5, 9 * PART] {
            let from: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let mut to = vec![0; length];
            fill(&mut to, &from);
            assert!(to == from, "{length}");
        }
    }
}
