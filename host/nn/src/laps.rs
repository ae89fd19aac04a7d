//! Loops whose laps are alike.

use std::{ops::Range, rc::Rc};

use crate::meter::Ledger;

/// Laps of a loop, as ranges of at most `step` numbers.
#[derive(Debug)]
pub struct Laps {
    next: i64,
    end: i64,
    step: i64,
    turn: u32,
    /// Laps before those that are alike.
    before: u32,
    /// The meter that counts one lap for those that are like it.
    times: Option<Times>,
}

/// Sets how often a meter counts what it is told.
#[derive(Debug)]
pub(crate) struct Times {
    pub ledger: Rc<Ledger>,
    pub outside: f64,
}

/// Laps after which those that follow are like the one before: a causal layer looks back at two
/// frames.
const SETTLED: u32 = 3;

impl Laps {
    pub(crate) fn new(range: Range<i64>, step: i64, times: Option<Times>) -> Self {
        Self { next: range.start, end: range.end, step: step.max(1), turn: 0, before: SETTLED, times }
    }

    /// The same laps, of which only the first few differ from those that follow.
    #[must_use]
    pub fn alike_after(mut self, before: u32) -> Self {
        self.before = before;
        self
    }
}

impl Iterator for Laps {
    type Item = Range<i64>;

    fn next(&mut self) -> Option<Range<i64>> {
        let left = self.end - self.next;
        let whole = left / self.step;
        if let Some(Times { ledger, outside }) = &self.times {
            ledger.repeat(*outside);
            if self.turn >= self.before && whole > 1 {
                ledger.repeat(outside * whole as f64);
                self.next += (whole - 1) * self.step;
            }
        }
        let start = self.next;
        self.next = (start + self.step).min(self.end);
        self.turn += 1;
        (left > 0).then_some(start..self.next)
    }
}

impl Drop for Laps {
    fn drop(&mut self) {
        if let Some(Times { ledger, outside }) = &self.times {
            ledger.repeat(*outside);
        }
    }
}
