//! A canary: a policy that takes a share of a route's jobs until it is promoted or stopped.
//!
//! A canary ends by one of these rules:
//!
//! | result | condition |
//! |---|---|
//! | stopped | the watchdog's rule, on its jobs and the incumbent's between them |
//! | stopped | one sample's PSNR to the incumbent's picture is below the route's bound |
//! | stopped | the last look of the comparison is undecided |
//! | promoted | a look finds it not worse and, if samples are taken, at least one was good |

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{
    comparison::{Comparison, LOOKS, Rule},
    revision::Revision,
    tally::{self, Kind, Sample, push_bounded},
};

/// The incumbent's jobs of a kind that one of the canary's is compared with, and the number of
/// kinds.
const FRESH: usize = 15;
const KINDS: usize = 64;

/// The state of a trial.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanaryFacts {
    /// The policy on trial.
    pub policy: String,
    /// The policy's revision; another one begins a new trial.
    pub revision: u64,
    /// The state of the trial.
    pub state: CanaryState,
    /// The reason of its promotion or stop, in a line.
    pub why: Option<String>,
    /// Jobs assigned to it.
    pub jobs: u64,
    /// The comparison of the canary's jobs with those of the incumbent that ended between them.
    pub comparison: Comparison,
    /// Samples that were decoded twice.
    pub samples: u32,
    /// The least PSNR among them, in dB; none before the first. Equal pictures are infinite, and
    /// written as null.
    pub least_psnr: Option<f64>,
}

impl CanaryFacts {
    /// The facts as they were before they were written down: what is infinite is written as null.
    pub(crate) fn restored(mut self) -> Self {
        if self.samples > 0 {
            self.least_psnr = self.least_psnr.or(Some(f64::INFINITY));
        }
        self
    }
}

/// The effect of a job on a route's canary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TrialVerdict {
    Promote(String),
    Stop(String),
}

/// A trial, and the shares due.
#[derive(Clone, Debug, Default)]
pub(crate) struct Canary {
    pub facts: CanaryFacts,
    /// The module on trial.
    pub digest: String,
    /// The reason for a promotion that is due but could not be stored.
    pub due_promotion: Option<String>,
    due: f64,
    sample_due: f64,
    /// The incumbent's jobs since the last one of the canary's that was compared.
    fresh: HashMap<Kind, VecDeque<Sample>>,
}

impl Canary {
    pub fn begin(policy: &str, revision: u64, digest: &str) -> Self {
        let facts = CanaryFacts { policy: policy.into(), revision, ..CanaryFacts::default() };
        Self { facts, digest: digest.into(), ..Self::default() }
    }

    /// Begins a new trial if the candidate is another revision.
    pub fn is_of(&mut self, candidate: &Revision) {
        if (&self.facts.policy, self.facts.revision) != (&candidate.policy, candidate.number) {
            *self = Self::begin(&candidate.policy, candidate.number, &candidate.digest);
        }
    }

    /// True if the next job is the canary's: exactly its share of them, evenly spread.
    pub fn takes(&mut self, share: f64) -> bool {
        let takes = self.facts.state == CanaryState::Trial && turn(&mut self.due, share);
        self.facts.jobs += u64::from(takes);
        takes
    }

    /// True if this job of the canary is decoded twice.
    pub fn samples(&mut self, share: f64) -> bool {
        // The first sample tells the most.
        self.facts.jobs == 1 && share > 0.0 || turn(&mut self.sample_due, share)
    }

    /// Keeps a job of the incumbent's, for the canary's next one.
    pub fn record_incumbent(&mut self, kind: &Kind, job: Sample) {
        if self.facts.state != CanaryState::Trial {
            self.fresh.clear();
            return;
        }
        if self.fresh.len() >= KINDS && !self.fresh.contains_key(kind) {
            self.fresh.clear();
        }
        let fresh = self.fresh.entry(kind.clone()).or_default();
        push_bounded(fresh, job, FRESH);
    }

    /// Counts a job of the canary, compared with the incumbent's of its kind since its last one,
    /// and a sample's PSNR.
    pub fn record_job(
        &mut self,
        kind: &Kind,
        job: Sample,
        psnr: Option<f64>,
        least: f64,
        samples: bool,
    ) -> Option<TrialVerdict> {
        if self.facts.state != CanaryState::Trial {
            return None;
        }
        if let Some(psnr) = psnr {
            self.facts.samples += 1;
            self.facts.least_psnr = Some(self.facts.least_psnr.map_or(psnr, |known| known.min(psnr)));
            if psnr.is_nan() || psnr < least {
                return Some(TrialVerdict::Stop(format!(
                    "a sample is {psnr:.1} dB from the incumbent's, of {least} dB at least"
                )));
            }
        }
        if let Some(why) = self.due_promotion.take() {
            return Some(TrialVerdict::Promote(why));
        }
        let mut incumbents = self.fresh.remove(kind)?;
        if incumbents.len() % 2 == 0 {
            // The lower one of two in the middle would make more than half of equal jobs look
            // slower.
            incumbents.pop_front();
        }
        let found = self.facts.comparison.add(job, tally::median(incumbents.iter().copied())?)?;
        let words = self.facts.comparison.words();
        match found {
            Rule::Worse => Some(TrialVerdict::Stop(format!("worse than the incumbent: {words}"))),
            Rule::NotWorse if samples && self.facts.samples == 0 => {
                let is_last = LOOKS.last() == Some(&self.facts.comparison.jobs);
                is_last.then(|| TrialVerdict::Stop(format!("no sample of it could be compared: {words}")))
            }
            Rule::NotWorse => Some(TrialVerdict::Promote(format!("not worse than the incumbent: {words}"))),
            Rule::Undecided => Some(TrialVerdict::Stop(format!("not shown to be as good as the incumbent: {words}"))),
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
    use crate::comparison::Noise;

    fn sample(ms: u64) -> Sample {
        Sample { elapsed: Duration::from_millis(ms), peak_bytes: 1 << 20, attempts: 1 }
    }

    /// A job of the canary's after one of the incumbent's that took 100 ms.
    fn ended(canary: &mut Canary, ms: u64, psnr: Option<f64>) -> Option<TrialVerdict> {
        let kind = "a".to_owned();
        canary.record_incumbent(&kind, sample(100));
        canary.record_job(&kind, sample(ms), psnr, 45.0, true)
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
        assert_eq!(ended(&mut canary, 100, Some(50.0)), None);
        assert!(matches!(ended(&mut canary, 100, Some(44.9)), Some(TrialVerdict::Stop(_))));
        assert!(matches!(ended(&mut canary, 100, Some(f64::NAN)), Some(TrialVerdict::Stop(_))));
        let mut canary = Canary::begin("new", 1, "sha256:00");
        let ends = |canary: &mut Canary, psnr| (0..200).find_map(|_| ended(canary, 100, psnr));
        assert!(matches!(ends(&mut canary, Some(f64::INFINITY)), Some(TrialVerdict::Promote(_))));
        assert_eq!(canary.facts.comparison.jobs, 20);
        let mut unseen = Canary::begin("new", 1, "sha256:00");
        assert!(
            matches!(ends(&mut unseen, None), Some(TrialVerdict::Stop(_)) | None),
            "never promoted without a sample"
        );
    }

    #[test]
    fn after_the_end_nothing_counts() {
        let mut canary = Canary::begin("new", 1, "sha256:00");
        canary.facts.state = CanaryState::Stopped;
        assert!(!canary.takes(1.0));
        assert_eq!(ended(&mut canary, 900, Some(1.0)), None);
        assert!(canary.fresh.is_empty());
    }

    #[test]
    fn no_job_of_the_incumbents_counts_twice() {
        let mut canary = Canary::begin("new", 1, "sha256:00");
        let kind = "a".to_owned();
        assert_eq!(ended(&mut canary, 100, None), None);
        (0..5).for_each(|_| assert_eq!(canary.record_job(&kind, sample(100), None, 45.0, true), None));
        assert_eq!(canary.facts.comparison.jobs, 1);
        (0..10 * KINDS).for_each(|number| canary.record_incumbent(&number.to_string(), sample(100)));
        (0..10 * FRESH).for_each(|_| canary.record_incumbent(&kind, sample(100)));
        assert!(canary.fresh.len() <= KINDS && canary.fresh[&kind].len() == FRESH);
    }

    #[test]
    fn a_machine_that_gets_slower_and_faster_slows_both() {
        let mut random = Noise::new();
        // Each job takes 30 % more or less by chance, on a machine whose speed wanders between half
        // and twice.
        let mut trial = |ratio: f64, share: f64| {
            let (mut canary, kind, mut speed) = (Canary::begin("new", 1, "sha256:00"), "a".to_owned(), 1.0_f64);
            (0..20_000).find_map(|_| {
                speed = (speed * (0.95 + 0.1 * random.share())).clamp(0.5, 2.0);
                let ms = 1000.0 * speed * (0.7 + 0.6 * random.share());
                if canary.takes(share) {
                    return canary.record_job(&kind, sample((ratio * ms) as u64), None, 45.0, false);
                }
                canary.record_incumbent(&kind, sample(ms as u64));
                None
            })
        };
        for share in [0.1, 0.2, 1.0 / 3.0, 0.5, 0.8] {
            let mut ends = |ratio| (0..500).filter_map(|_| trial(ratio, share)).collect::<Vec<_>>();
            let promoted =
                |ends: &[TrialVerdict]| ends.iter().filter(|end| matches!(end, TrialVerdict::Promote(_))).count();
            let worse = |ends: &[TrialVerdict]| ends.iter().filter(|end| words(end).starts_with("worse")).count();
            let (equal, tenth, half) = (ends(1.0), ends(1.1), ends(1.5));
            assert!(promoted(&equal) >= 425, "{share}: {} of 500 as good ones", promoted(&equal));
            assert!(promoted(&tenth) <= 30, "{share}: {} of 500 a tenth worse", promoted(&tenth));
            assert!(worse(&tenth) <= 10, "{share}: {} of 500 a tenth worse", worse(&tenth));
            assert!(worse(&half) >= 495, "{share}: {} of 500 half as slow again", worse(&half));
        }
    }

    fn words(finding: &TrialVerdict) -> &str {
        match finding {
            TrialVerdict::Promote(why) | TrialVerdict::Stop(why) => why,
        }
    }
}
