//! The watchdog: the rules by which a revision is rolled back automatically.

use tilewright_statistics::binomial;

use crate::{
    comparison::{Comparison, Rule},
    tally::{Sample, Tally},
};

/// The failures in a row that trigger a rollback.
const IN_A_ROW: u32 = 3;

/// The least failures among the last 200 decisions that are tested, and the failure rate that every
/// policy may have.
const LEAST_FAILURES: u32 = 3;
const MAY_FAIL: f64 = 0.02;

/// The failure rate that a revision may have because the previous one was no better. Beyond that
/// neither is of use, and the fallback decides.
const MAY_FAIL_AS_BEFORE: f64 = 0.1;

/// The significance level of the binomial test on the number of failures.
const CHANCE: f64 = 0.001;

/// The rule in words, for people.
pub const RULE: &str = "A revision is rolled back by one of three rules. \
    (1) 3 answers in a row failed or were invalid. \
    (2) At least 3 of its last 200 answers failed, and a binomial test rejects, at p ≤ 0.001, a failure rate of 2 % or that of the \
    previous revision, whichever is higher, up to 10 %. \
    (3) Its jobs are slower or larger than those of the previous revision: a sign test after 10, 20, 40, 80 and 160 jobs of kinds \
    of which the previous revision ran 8, at p ≤ 0.002 for each test, counts the jobs over 1.1 times the median time or memory. \
    Of revisions that are at most 10 % worse, at most 2 in 100 are rolled back.";

/// The reason for a rollback by failures, if they are too many. `before`: failures of the previous
/// revision among its last decisions, and the number of those decisions.
pub fn check_failures(new: &Tally, before: Option<(u32, u32)>) -> Option<String> {
    if new.in_a_row >= IN_A_ROW {
        return Some(format!("{} failed or invalid answers in a row", new.in_a_row));
    }
    let (failures, decisions) = new.recent_failures();
    let share = |(failures, decisions): (u32, u32)| f64::from(failures) / f64::from(decisions.max(1));
    let may = before.map_or(0.0, share).clamp(MAY_FAIL, MAY_FAIL_AS_BEFORE);
    let too_many = failures >= LEAST_FAILURES && binomial::at_least(failures, decisions, may) <= CHANCE;
    too_many.then(|| format!("{failures} of the last {decisions} answers failed or were invalid"))
}

/// The reason for a rollback by a job's cost, if the revision is clearly worse than the previous
/// one. `median`: of the previous one's jobs of the same kind.
pub fn check_cost(against_previous: &mut Comparison, job: Sample, median: Sample) -> Option<String> {
    let found = against_previous.add(job, median)?;
    (found == Rule::Worse).then(|| format!("worse than the revision before: {}", against_previous.words()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(decisions: &[bool]) -> Tally {
        let mut tally = Tally::default();
        decisions.iter().for_each(|failed| tally.record_decision(*failed));
        tally
    }

    #[test]
    fn failures_in_a_row_are_too_many_at_once() {
        assert_eq!(check_failures(&tally(&[true, true]), None), None);
        assert!(check_failures(&tally(&[false, true, true, true]), None).is_some());
    }

    #[test]
    fn every_third_failure_is_too_many_whatever_came_before() {
        let every = |nth: usize, decisions: usize| {
            tally(&(1..=decisions).map(|decision| decision % nth == 0).collect::<Vec<_>>())
        };
        assert!(check_failures(&every(3, 9), None).is_some());
        let before = every(3, 6).recent_failures();
        assert!(check_failures(&every(3, 200), Some(before)).is_some(), "the one before was as bad, and few asked it");
        assert!(check_failures(&every(3, 200), Some(every(2, 200).recent_failures())).is_some());
        assert!(check_failures(&every(10, 200), None).is_some());
        assert_eq!(check_failures(&every(60, 200), None), None);
    }

    #[test]
    fn scattered_failures_are_held_against_the_share_of_the_one_before() {
        let mut scattered = vec![false; 60];
        for at in [3, 17, 30, 44, 58] {
            scattered[at] = true;
        }
        let new = tally(&scattered);
        assert_eq!(check_failures(&tally(&scattered[..20]), None), None, "two of twenty may be chance");
        assert_eq!(check_failures(&new, None), None, "five of sixty: a chance of 0.006");
        scattered[10] = true;
        scattered[50] = true;
        let new = tally(&scattered);
        assert!(check_failures(&new, None).is_some());
        assert_eq!(check_failures(&new, Some(new.recent_failures())), None, "the one before was no better");
    }
}
