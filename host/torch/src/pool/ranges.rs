//! The free parts of the pool's address space.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges, no two of which touch.
pub struct Ranges {
    /// Start → bytes.
    by_address: BTreeMap<usize, usize>,
    /// (Bytes, start): the first that is large enough fits best, and lies lowest among its equals.
    by_size: BTreeSet<(usize, usize)>,
}

impl Ranges {
    /// One free range from 0.
    pub fn new(bytes: usize) -> Self {
        Self { by_address: BTreeMap::from([(0, bytes)]), by_size: BTreeSet::from([(bytes, 0)]) }
    }

    /// Starts of the ranges of at least `bytes`, best fit first.
    pub fn at_least(&self, bytes: usize) -> impl Iterator<Item = usize> {
        self.by_size.range((bytes, 0)..).map(|&(_, start)| start)
    }

    /// (Start, bytes) of each, largest first.
    pub fn largest_first(&self) -> impl Iterator<Item = (usize, usize)> {
        self.by_size.iter().rev().map(|&(bytes, start)| (start, bytes))
    }

    /// Takes the lower end of the free range at `start`, which has at least `bytes`.
    pub fn take(&mut self, start: usize, bytes: usize) {
        if let Some(whole) = self.remove(start)
            && whole > bytes
        {
            self.insert(start + bytes, whole - bytes);
        }
    }

    /// Makes a range free again and joins it with its free neighbours.
    pub fn give_back(&mut self, start: usize, bytes: usize) {
        let (mut from, mut end) = (start, start + bytes);
        if let Some(after) = self.remove(end) {
            end += after;
        }
        if let Some((&before, &length)) = self.by_address.range(..start).next_back()
            && before + length == start
        {
            self.remove(before);
            from = before;
        }
        self.insert(from, end - from);
    }

    fn insert(&mut self, start: usize, bytes: usize) {
        self.by_address.insert(start, bytes);
        self.by_size.insert((bytes, start));
    }

    fn remove(&mut self, start: usize) -> Option<usize> {
        let bytes = self.by_address.remove(&start)?;
        self.by_size.remove(&(bytes, start));
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
            let mut ranges = Ranges::new(1000);
            ranges.take(0, 300);
            for part in order {
                ranges.give_back(part * 100, 100);
            }
            assert_eq!(ranges.largest_first().collect::<Vec<_>>(), [(0, 1000)], "{order:?}");
        }
    }

    #[test]
    fn the_smallest_that_fits_comes_first_then_the_lowest() {
        let mut ranges = Ranges::new(1000);
        ranges.take(0, 1000);
        for (start, bytes) in [(0, 50), (100, 30), (200, 20), (300, 30)] {
            ranges.give_back(start, bytes);
        }
        assert_eq!(ranges.at_least(21).collect::<Vec<_>>(), [100, 300, 0]);
        ranges.take(100, 30);
        ranges.take(300, 25);
        assert_eq!(ranges.at_least(1).collect::<Vec<_>>(), [325, 200, 0]);
    }
}
