//! The bytes that a meter's tensors hold.

use std::{cell::Cell, rc::Rc};

/// The bytes that are held, and the most that were.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    held: Cell<u64>,
    peak: Cell<u64>,
}

impl Ledger {
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    pub fn peak(&self) -> u64 {
        self.peak.get()
    }
}

/// Bytes in a ledger, until they are dropped.
#[derive(Debug)]
pub(super) struct Storage {
    bytes: u64,
    ledger: Rc<Ledger>,
}

impl Storage {
    /// Holds bytes.
    pub fn new(ledger: &Rc<Ledger>, bytes: u64) -> Self {
        let held = ledger.held.get().saturating_add(bytes);
        ledger.held.set(held);
        ledger.peak.set(ledger.peak.get().max(held));
        Self { bytes, ledger: ledger.clone() }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.ledger.held.set(self.ledger.held.get().saturating_sub(self.bytes));
    }
}
