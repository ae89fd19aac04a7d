//! Comparison of one revision's outcomes with another's: a sequential sign test with few looks.
//!
//! Every job of the new revision is compared with a median of the old one's jobs of the same kind.
//! It counts as *slower* if it took more than 1.1 times as long (or more attempts), as *larger* if
//! its peak was more than 1.1 times as high. If the new revision is at most a tenth worse, each
//! count is distributed at most as a fair coin's.
//!
//! | finding | looks | test | error |
//! |---|---|---|---|
//! | worse | after 10, 20, 40, 80, 160 jobs | binomial, either count, p < 0.002 | ≤ 2 % |
//! | not worse | the same, from 20 jobs on | binomial, both counts, p ≤ 0.01 | |
//!
//! The bound on false alarms is over both counts and all looks, for a revision exactly a tenth
//! worse.
//!
//! The median depends on which revisions still work. A revision that took over is compared with the
//! last 64 jobs of the one before it, eight at least: a machine that slows down at the moment of
//! the swap looks like a worse revision. A canary and its incumbent take turns, so its job is
//! compared only with those of the incumbent that ended since its last compared one. Each of them
//! counts once, and other load on the machine slows both.

use serde::{Deserialize, Serialize};
use tilewright_statistics::binomial;

use crate::tally::Sample;

/// The numbers of compared jobs at which the counts are tested.
pub const LOOKS: [u32; 5] = [10, 20, 40, 80, 160];

/// The ratio to the median above which a job counts.
const MARGIN: f64 = 1.1;

/// The significance level of an alarm, of one count at one look.
const ALARM: f64 = 0.002;

/// The significance level of a pass, of one count at one look.
const PASS: f64 = 0.01;

/// The least jobs that a pass takes.
const LEAST_TO_PASS: u32 = 20;

/// The finding of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Clearly worse.
    Worse,
    /// Clearly not.
    NotWorse,
    /// Neither, and there is no further look.
    Undecided,
}

/// Counts of jobs that were compared with another revision's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Jobs compared.
    pub jobs: u32,
    /// Jobs that took longer.
    pub slower: u32,
    /// Jobs that took more memory.
    pub larger: u32,
}

impl Comparison {
    /// Compares a job with the median of the other revision's; returns the finding if a look is
    /// due.
    pub fn add(&mut self, job: Sample, median: Sample) -> Option<Rule> {
        let last = LOOKS.last().copied().unwrap_or_default();
        if self.jobs >= last {
            return None;
        }
        let slower =
            job.elapsed.as_secs_f64() > MARGIN * median.elapsed.as_secs_f64() || job.attempts > median.attempts;
        self.jobs += 1;
        self.slower += u32::from(slower);
        self.larger += u32::from(job.peak_bytes as f64 > MARGIN * median.peak_bytes as f64);
        if !LOOKS.contains(&self.jobs) {
            return None;
        }
        let counts = [self.slower, self.larger];
        if counts.iter().any(|count| binomial::at_least(*count, self.jobs, 0.5) <= ALARM) {
            return Some(Rule::Worse);
        }
        if self.jobs >= LEAST_TO_PASS && counts.iter().all(|count| binomial::at_most(*count, self.jobs, 0.5) <= PASS) {
            return Some(Rule::NotWorse);
        }
        (self.jobs == last).then_some(Rule::Undecided)
    }

    /// In words: `13 of 16 comparable jobs slower, 2 larger`.
    pub fn words(&self) -> String {
        let Self { jobs, slower, larger } = self;
        format!("of {jobs} comparable jobs {slower} took over 1.1 times the median time, {larger} the median memory")
    }
}

/// Numbers that look random and are the same in every run (xorshift64*).
#[cfg(test)]
pub(crate) struct Noise(u64);

#[cfg(test)]
impl Noise {
    pub fn new() -> Self {
        Self(88_172_645_463_325_252)
    }

    /// Between 0 and 1.
    pub fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(ms: f64) -> Sample {
        Sample { elapsed: Duration::from_secs_f64(ms / 1e3), peak_bytes: 1 << 20, attempts: 1 }
    }

    /// The first finding over a revision's life whose jobs take `ratio` of the median, give or take
    /// 30 %.
    fn life(noise: &mut Noise, ratio: f64) -> Option<Rule> {
        let mut comparison = Comparison::default();
        (0..200).find_map(|_| comparison.add(sample(100.0 * ratio * (0.7 + 0.6 * noise.share())), sample(100.0)))
    }

    #[test]
    fn what_is_clearly_worse_is_found_at_the_first_look_that_can_tell() {
        let mut comparison = Comparison::default();
        let mut looks = (1..=20).map(|job| (job, comparison.add(sample(200.0), sample(100.0))));
        assert_eq!(looks.find_map(|(job, found)| found.map(|found| (job, found))), Some((10, Rule::Worse)));
        let mut attempts = Comparison::default();
        let again = Sample { attempts: 2, ..sample(90.0) };
        assert_eq!((0..20).find_map(|_| attempts.add(again, sample(100.0))), Some(Rule::Worse));
        let mut memory = Comparison::default();
        let large = Sample { peak_bytes: 2 << 20, ..sample(90.0) };
        assert_eq!((0..20).find_map(|_| memory.add(large, sample(100.0))), Some(Rule::Worse));
    }

    #[test]
    fn false_alarms_are_as_rare_as_stated_and_real_ones_as_frequent_as_needed() {
        let mut noise = Noise::new();
        let lives =
            |ratio: f64, noise: &mut Noise| -> Vec<Option<Rule>> { (0..1000).map(|_| life(noise, ratio)).collect() };
        let share = |lives: &[Option<Rule>], rule: Rule| lives.iter().filter(|found| **found == Some(rule)).count();
        let equal = lives(1.0, &mut noise);
        assert!(
            share(&equal, Rule::Worse) <= 2 && share(&equal, Rule::NotWorse) >= 900,
            "{}",
            share(&equal, Rule::NotWorse)
        );
        let tenth = lives(1.1, &mut noise);
        assert!(share(&tenth, Rule::Worse) <= 20, "{}", share(&tenth, Rule::Worse));
        let half = lives(1.5, &mut noise);
        assert!(share(&half, Rule::Worse) >= 990, "{}", share(&half, Rule::Worse));
    }
}
