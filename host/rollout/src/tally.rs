//! Counts and outcomes of a revision's decisions, as far as others are compared with it.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tilewright_statistics::lower_median;

use crate::served::Served;

/// Kinds of requests that outcomes are kept of.
const KINDS: usize = 64;

/// Outcomes that are kept of a kind.
const KEPT: usize = 64;

/// The least outcomes of a kind that a median takes.
pub const LEAST: usize = 8;

/// Decisions whose failures count towards the failure rate.
const RECENT: usize = 200;

/// A kind of requests that can be compared: the same work on the same device with the same
/// objective.
pub type Kind = String;

/// The cost of one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The time of the successful attempt.
    pub elapsed: Duration,
    /// The peak above the memory held before.
    pub peak_bytes: u64,
    /// All attempts.
    pub attempts: u32,
}

impl Sample {
    /// A job that ended without a result: longer, larger and with more attempts than any.
    pub const LOST: Self = Self { elapsed: Duration::MAX, peak_bytes: u64::MAX, attempts: u32::MAX };

    /// The cost of work that ended well.
    pub fn of<W: Served>(outcome: &W::Outcome) -> Self {
        Self { elapsed: W::elapsed(outcome), peak_bytes: W::measured_bytes(outcome), attempts: W::attempts(outcome) }
    }
}

/// Counts of a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TallyFacts {
    /// Jobs that ended under it.
    pub jobs: u64,
    /// Decisions, including those after failed attempts.
    pub decisions: u64,
    /// Decisions by the fallback because the policy failed; honest errors are not counted.
    pub failures: u64,
}

/// Counts and outcomes of one revision.
#[derive(Debug, Default)]
pub struct Tally {
    pub facts: TallyFacts,
    /// Failures since the last success.
    pub in_a_row: u32,
    /// The failures among the last decisions.
    recent: VecDeque<bool>,
    kinds: HashMap<Kind, VecDeque<Sample>>,
    /// Kinds, least recently used first.
    order: VecDeque<Kind>,
}

impl Tally {
    /// Counts a decision.
    pub fn record_decision(&mut self, failed: bool) {
        self.facts.decisions += 1;
        self.facts.failures += u64::from(failed);
        self.in_a_row = if failed { self.in_a_row + 1 } else { 0 };
        push_bounded(&mut self.recent, failed, RECENT);
    }

    /// Failures among the last decisions, and the number of those decisions.
    pub fn recent_failures(&self) -> (u32, u32) {
        (self.recent.iter().filter(|failed| **failed).count() as u32, self.recent.len() as u32)
    }

    /// Adds a job's cost.
    pub fn record_job(&mut self, kind: &Kind, sample: Sample) {
        self.order.retain(|known| known != kind);
        self.order.push_back(kind.clone());
        if self.order.len() > KINDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.kinds.remove(&oldest);
        }
        push_bounded(self.kinds.entry(kind.clone()).or_default(), sample, KEPT);
    }

    /// The median of each measure of a kind, if there are enough.
    pub fn median(&self, kind: &Kind) -> Option<Sample> {
        let samples = self.kinds.get(kind).filter(|samples| samples.len() >= LEAST)?;
        median(samples.iter().copied())
    }
}

/// Adds to a queue of which the last `most` are kept.
pub fn push_bounded<T>(queue: &mut VecDeque<T>, last: T, most: usize) {
    queue.push_back(last);
    if queue.len() > most {
        queue.pop_front();
    }
}

/// The median of each measure, the lower one of two; none for no samples.
pub fn median(samples: impl Iterator<Item = Sample> + Clone) -> Option<Sample> {
    Some(Sample {
        elapsed: lower_median(samples.clone().map(|sample| sample.elapsed))?,
        peak_bytes: lower_median(samples.clone().map(|sample| sample.peak_bytes))?,
        attempts: lower_median(samples.map(|sample| sample.attempts))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64) -> Sample {
        Sample { elapsed: Duration::from_millis(ms), peak_bytes: ms << 20, attempts: 1 }
    }

    #[test]
    fn a_median_takes_enough_and_what_is_kept_has_an_end() {
        let mut tally = Tally::default();
        let kind = "a".to_owned();
        for ms in 1..LEAST as u64 {
            tally.record_job(&kind, sample(ms));
            assert_eq!(tally.median(&kind), None);
        }
        tally.record_job(&kind, sample(1000));
        assert_eq!(tally.median(&kind), Some(sample(4)), "the lower middle one of eight");
        for ms in 0..10 * KEPT as u64 {
            tally.record_job(&kind, sample(ms));
            tally.record_job(&format!("kind {ms}"), sample(1));
        }
        assert!(tally.kinds.len() <= KINDS && tally.kinds[&kind].len() == KEPT);
    }

    #[test]
    fn failures_in_a_row_end_with_a_success() {
        let mut tally = Tally::default();
        for failed in [true, true, false, true] {
            tally.record_decision(failed);
        }
        assert_eq!((tally.in_a_row, tally.recent_failures()), (1, (3, 4)));
        assert_eq!(tally.facts, TallyFacts { jobs: 0, decisions: 4, failures: 3 });
    }
}
