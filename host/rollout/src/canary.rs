//! A policy that takes a share of a route's jobs until it is promoted or stopped.
//!
//! It is stopped by the watchdog's rule, held against the incumbent's jobs of the same days; by one sample whose picture is further from
//! that of the incumbent's plan than the route allows; or where the last look is undecided. It is promoted where a look finds it not worse
//! and, if samples are taken, at least one was good.

use serde::{Deserialize, Serialize};

use crate::{
    comparison::{Comparison, LOOKS, Rule},
    tally::Sample,
};

/// How far a trial is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CanaryState {
    /// It gets its share.
    #[default]
    Trial,
    /// It took over.
    Promoted,
    /// It gets nothing any more.
    Stopped,
}

/// A route's canary.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CanaryFacts {
    /// The policy on trial.
    pub policy: String,
    /// Its revision; another one begins a trial of its own.
    pub revision: u64,
    /// How far it is.
    pub state: CanaryState,
    /// Why it was promoted or stopped, in a line.
    pub why: Option<String>,
    /// Jobs that it was given.
    pub jobs: u64,
    /// Its jobs against the incumbent's.
    pub comparison: Comparison,
    /// Samples that were decoded twice.
    pub samples: u32,
    /// The least PSNR among them, in dB; none before the first. Equal pictures are infinite, and written as null.
    pub least_psnr: Option<f64>,
}

/// What a route's canary comes to with a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    Promote(String),
    Stop(String),
}

/// A trial, and whose turn it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Canary {
    pub facts: CanaryFacts,
    /// The module on trial.
    pub digest: String,
    due: f64,
    sample_due: f64,
}

impl Canary {
    pub fn begin(policy: &str, revision: u64, digest: &str) -> Self {
        let facts = CanaryFacts { policy: policy.into(), revision, ..CanaryFacts::default() };
        Self { facts, digest: digest.into(), ..Self::default() }
    }

    /// Whether the next job is the canary's: exactly its share of them, evenly spread.
    pub fn takes(&mut self, share: f64) -> bool {
        let takes = self.facts.state == CanaryState::Trial && turn(&mut self.due, share);
        self.facts.jobs += u64::from(takes);
        takes
    }

    /// Whether this job of it is decoded twice.
    pub fn samples(&mut self, share: f64) -> bool {
        // The first one tells the most.
        self.facts.jobs == 1 && share > 0.0 || turn(&mut self.sample_due, share)
    }

    /// Counts a job, held against the incumbent's median of its kind, and a sample's PSNR.
    pub fn ended(
        &mut self,
        job: Sample,
        median: Option<Sample>,
        psnr: Option<f64>,
        least: f64,
        samples: bool,
    ) -> Option<Finding> {
        if self.facts.state != CanaryState::Trial {
            return None;
        }
        if let Some(psnr) = psnr {
            self.facts.samples += 1;
            self.facts.least_psnr = Some(self.facts.least_psnr.map_or(psnr, |known| known.min(psnr)));
            if psnr.is_nan() || psnr < least {
                return Some(Finding::Stop(format!(
                    "a sample is {psnr:.1} dB from the incumbent's, of {least} dB at least"
                )));
            }
        }
        let found = self.facts.comparison.add(job, median?)?;
        let words = self.facts.comparison.words();
        match found {
            Rule::Worse => Some(Finding::Stop(format!("worse than the incumbent: {words}"))),
            Rule::NotWorse if samples && self.facts.samples == 0 => {
                let is_last = LOOKS.last() == Some(&self.facts.comparison.jobs);
                is_last.then(|| Finding::Stop(format!("no sample of it could be compared: {words}")))
            }
            Rule::NotWorse => Some(Finding::Promote(format!("not worse than the incumbent: {words}"))),
            Rule::Undecided => Some(Finding::Stop(format!("not shown to be as good as the incumbent: {words}"))),
        }
    }
}

fn turn(due: &mut f64, share: f64) -> bool {
    *due += share;
    // Tenths don't add up to one in binary.
    let takes = *due >= 1.0 - 1e-9;
    if takes {
        *due -= 1.0;
    }
    takes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(ms: u64) -> Sample {
        Sample { elapsed: Duration::from_millis(ms), peak_bytes: 1 << 20, attempts: 1 }
    }

    #[test]
    fn it_takes_exactly_its_share_evenly() {
        let mut canary = Canary::begin("new", 1, "sha256:00");
        let taken: Vec<usize> = (1..=100).filter(|_| canary.takes(0.1)).collect();
        assert_eq!(taken, (10..=100).step_by(10).collect::<Vec<_>>());
        assert_eq!((0..100).filter(|_| Canary::begin("new", 1, "sha256:00").takes(1.0)).count(), 100);
    }

    #[test]
    fn one_bad_picture_stops_it_and_good_jobs_promote_it() {
        let mut canary = Canary::begin("new", 1, "sha256:00");
        assert_eq!(canary.ended(sample(100), None, Some(50.0), 45.0, true), None);
        assert!(matches!(canary.ended(sample(100), None, Some(44.9), 45.0, true), Some(Finding::Stop(_))));
        assert!(matches!(canary.ended(sample(100), None, Some(f64::NAN), 45.0, true), Some(Finding::Stop(_))));
        let mut canary = Canary::begin("new", 1, "sha256:00");
        let ends = |canary: &mut Canary, psnr| {
            (0..200).find_map(|_| canary.ended(sample(100), Some(sample(100)), psnr, 45.0, true))
        };
        assert!(matches!(ends(&mut canary, Some(f64::INFINITY)), Some(Finding::Promote(_))));
        assert_eq!(canary.facts.comparison.jobs, 20);
        let mut unseen = Canary::begin("new", 1, "sha256:00");
        assert!(matches!(ends(&mut unseen, None), Some(Finding::Stop(_)) | None), "never promoted without a sample");
    }

    #[test]
    fn after_the_end_nothing_counts() {
        let mut canary = Canary::begin("new", 1, "sha256:00");
        canary.facts.state = CanaryState::Stopped;
        assert!(!canary.takes(1.0));
        assert_eq!(canary.ended(sample(900), Some(sample(1)), Some(1.0), 45.0, true), None);
    }
}
