//! The failures of a policy's last calls: with too many of them it is no longer asked.

/// The number of last calls whose failures count, besides those in a row.
const RECENT: u32 = 40;

/// Failures of the last calls.
#[derive(Clone, Copy, Default)]
pub(super) struct Failures {
    in_a_row: u32,
    /// One bit for each of the last calls, the newest lowest: set if the call failed.
    recent: u64,
    pub is_out: bool,
}

impl Failures {
    /// Counts a call. `most` failures in a row are too many, and so are more than `most` among the
    /// last 40 calls: a policy that keeps failing now and then is no better than one that always
    /// fails.
    pub fn count(&mut self, failed: bool, most: u32) {
        self.in_a_row = if failed { self.in_a_row.saturating_add(1) } else { 0 };
        self.recent = (self.recent << 1 | u64::from(failed)) & ((1 << RECENT) - 1);
        self.is_out |= self.in_a_row >= most || self.recent.count_ones() > most;
    }

    pub fn words(self, most: u32) -> String {
        match self.in_a_row >= most {
            true => format!("failed {} times in a row and is no longer asked", self.in_a_row),
            false => {
                format!("failed in {} of its last {RECENT} calls and is no longer asked", self.recent.count_ones())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls after which a policy that fails in every `nth` is out of service; `None` if 1000 are
    /// not enough.
    fn out_after(nth: u32) -> Option<u32> {
        let mut failures = Failures::default();
        (1..=1000).find(|call| {
            failures.count(call % nth == 0, 3);
            failures.is_out
        })
    }

    #[test]
    fn whoever_fails_again_and_again_is_no_longer_asked() {
        assert_eq!([1, 2, 3, 4, 10].map(out_after), [Some(3), Some(8), Some(12), Some(16), Some(40)]);
        assert_eq!(out_after(14), None, "three of forty");
        let mut failures = Failures::default();
        (0..9).for_each(|call| failures.count(call % 3 == 2, 3));
        assert!(!failures.is_out);
        (0..3).for_each(|call| failures.count(call == 2, 3));
        assert_eq!(failures.words(3), "failed in 4 of its last 40 calls and is no longer asked");
    }
}
