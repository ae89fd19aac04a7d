//! The division of a range of time among the tracks that are at work.

use std::ops::Range;

use crate::Category::{self, Host, LaunchGaps};

/// The times in which a track is at work, ascending and apart, and what it works on.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Lanes of the least rank that are at work share the time equally; the others get none.
    pub rank: usize,
    /// Start, end and category.
    pub spans: Vec<(u64, u64, Category)>,
}

/// The ranks of lanes.
pub const RANKS: usize = 2;

/// Nanoseconds of each category, and the number of times in a row that were waits of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Division {
    /// By [`Category::ALL`].
    pub nanoseconds: [f64; Category::ALL.len()],
    /// Times of [`Category::LaunchGaps`].
    pub gaps: u64,
}

/// Divides a range; time in which no lane is at work is the host's. The parts add up to the range.
pub fn divide(range: Range<u64>, lanes: &[Lane]) -> Division {
    let mut changes: Vec<(u64, usize, Category, bool)> = Vec::new();
    for lane in lanes {
        for (start, end, category) in &lane.spans {
            changes.push((*start, lane.rank, *category, true));
            changes.push((*end, lane.rank, *category, false));
        }
    }
    // The order within a moment has no effect, as only the counts after all of it are read.
    changes.sort_unstable_by_key(|(time, ..)| *time);
    let mut counts = [[0_i64; Category::ALL.len()]; RANKS];
    let mut all = [0_i64; RANKS];
    let (mut division, mut time, mut is_gap) = (Division::default(), range.start, false);
    for (next, change) in changes.iter().map(|change| (change.0, Some(change))).chain([(range.end, None)]) {
        if next > time {
            let length = (next - time) as f64;
            let rank = all.iter().position(|count| *count > 0);
            match rank {
                Some(rank) => {
                    for (nanoseconds, count) in division.nanoseconds.iter_mut().zip(counts[rank]) {
                        *nanoseconds += length * count as f64 / all[rank] as f64;
                    }
                }
                None => division.nanoseconds[Host as usize] += length,
            }
            let gap = rank.is_some_and(|rank| counts[rank][LaunchGaps as usize] > 0);
            division.gaps += u64::from(gap && !is_gap);
            (is_gap, time) = (gap, next);
        }
        if let Some((_, rank, category, begins)) = change {
            let by = if *begins { 1 } else { -1 };
            counts[*rank][*category as usize] += by;
            all[*rank] += by;
        }
    }
    division
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Category::{Convolution, Gemm};

    fn lane(rank: usize, spans: &[(u64, u64, Category)]) -> Lane {
        Lane { rank, spans: spans.to_vec() }
    }

    #[test]
    fn lanes_at_work_share_a_moment_and_the_others_get_none() {
        let lanes = [
            lane(0, &[(10, 30, Gemm), (30, 40, Convolution)]),
            lane(0, &[(20, 35, Convolution)]),
            lane(1, &[(0, 50, LaunchGaps), (60, 70, LaunchGaps)]),
        ];
        let division = divide(0..100, &lanes);
        let of = |category: Category| division.nanoseconds[category as usize];
        assert_eq!([of(Gemm), of(Convolution), of(LaunchGaps), of(Host)], [15.0, 15.0, 30.0, 40.0]);
        assert_eq!(division.gaps, 3, "before the kernels, after them, and by itself");
    }

    proptest! {
        #[test]
        fn the_parts_add_up(times in prop::collection::vec((0_u64..3, 0_u64..200, 0_u64..50, 0_usize..10), 0..60)) {
            let mut lanes = vec![Lane::default(); 3];
            for (which, start, length, category) in times {
                let spans = &mut lanes[which as usize].spans;
                let from = spans.last().map_or(0, |last| last.1) + start;
                spans.push((from.min(999), (from + length).min(999), Category::ALL[category]));
            }
            lanes[2].rank = 1;
            let sum: f64 = divide(0..1000, &lanes).nanoseconds.iter().sum();
            prop_assert!((sum - 1000.0).abs() < 1e-9, "{sum}");
        }
    }
}
