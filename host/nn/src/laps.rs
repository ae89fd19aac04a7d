//! Loops whose laps are alike.

use std::{ops::Range, rc::Rc};

use crate::meter::Ledger;

/// Laps of a loop, as ranges of at most `step` numbers.
#[derive(Debug)]
pub struct Laps {
    next: i64,
    end: i64,
    step: i64,
    /// Laps that were taken.
    taken: u32,
    /// Laps before those that are alike.
    settled: u32,
    /// The last lap is unlike those before it.
    has_edge: bool,
    /// The meter that counts one lap for those that are like it.
    meter: Option<LapMeter>,
}

/// The factor by which a meter counts a lap.
#[derive(Debug)]
pub(crate) struct LapMeter {
    pub ledger: Rc<Ledger>,
    pub outside: f64,
}

/// Laps after which those that follow are like the one before: a causal layer looks back at two
/// frames.
const SETTLED: u32 = 3;

impl Laps {
    pub(crate) fn new(range: Range<i64>, step: i64, meter: Option<LapMeter>) -> Self {
        let (next, end, step) = (range.start, range.end, step.max(1));
        Self { next, end, step, taken: 0, settled: SETTLED, has_edge: false, meter }
    }

    /// The same laps, of which only the first few differ from those that follow.
    #[must_use]
    pub fn alike_after(mut self, settled: u32) -> Self {
        self.settled = settled;
        self
    }

    /// Laps over rows of a picture: all but the first and the last are alike.
    #[must_use]
    pub fn over_rows(mut self) -> Self {
        (self.settled, self.has_edge) = (1, true);
        self
    }
}

impl Iterator for Laps {
    type Item = Range<i64>;

    fn next(&mut self) -> Option<Range<i64>> {
        let left = self.end - self.next;
        // A last lap of fewer numbers is the edge then.
        let edge = i64::from(self.has_edge && left % self.step == 0);
        let alike = left / self.step - edge;
        if let Some(LapMeter { ledger, outside }) = &self.meter {
            ledger.repeat(*outside);
            if self.taken >= self.settled && alike > 1 {
                ledger.repeat(outside * alike as f64);
                self.next += (alike - 1) * self.step;
            }
        }
        let start = self.next;
        self.next = (start + self.step).min(self.end);
        self.taken += 1;
        (left > 0).then_some(start..self.next)
    }
}

impl Drop for Laps {
    fn drop(&mut self) {
        if let Some(LapMeter { ledger, outside }) = &self.meter {
            ledger.repeat(*outside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(range: Range<i64>, step: i64, over_rows: bool) -> (Vec<Range<i64>>, f64) {
        let ledger = Rc::new(Ledger::default());
        let laps = Laps::new(range, step, Some(LapMeter { ledger: ledger.clone(), outside: 1.0 }));
        let laps = if over_rows { laps.over_rows() } else { laps };
        let mut seen = Vec::new();
        for lap in laps {
            ledger.spend((lap.end - lap.start) as f64);
            seen.push(lap);
        }
        assert_eq!(ledger.times(), 1.0, "the laps are over");
        (seen, ledger.seconds())
    }

    #[test]
    fn few_laps_count_for_all() {
        for end in 0..60 {
            for step in 1..9 {
                for over_rows in [false, true] {
                    let (seen, seconds) = count(0..end, step, over_rows);
                    assert_eq!(seconds, end as f64, "{end} in laps of {step}: {seen:?}");
                    assert!(seen.len() <= 5 && seen.last().map_or(0, |lap| lap.end) == end, "{seen:?}");
                }
            }
        }
        // The second is neither at the top nor at the bottom.
        assert_eq!(count(0..80, 10, true).0, [0..10, 60..70, 70..80]);
        assert_eq!(count(0..85, 10, true).0, [0..10, 70..80, 80..85]);
        let all: Vec<Range<i64>> = Laps::new(0..25, 10, None).collect();
        assert_eq!(all, [0..10, 10..20, 20..25]);
    }
}
