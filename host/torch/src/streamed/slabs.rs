//! Places for matrices in slabs of pinned memory.

/// The place of a matrix in a slab begins at a multiple of this: copies are fastest from there.
const ALIGNMENT: u64 = 256;

/// The bytes of the largest slab that holds more than one matrix.
const MOST: u64 = 1 << 30;

/// Slabs of memory that matrices lie in, one after the other. libtorch rounds each block that it
/// pins up to a power of two, which would cost most of a half if each matrix had its own.
#[derive(Debug)]
pub(super) struct Slabs<M> {
    slabs: Vec<Slab<M>>,
    /// Bytes that slabs may still take.
    left: u64,
    /// Bytes of matrices that are still to come.
    expected: u64,
    /// The bytes of the smallest slab that could not be had.
    refused: u64,
}

/// A slab, of which the first bytes are in use.
#[derive(Debug)]
struct Slab<M> {
    memory: M,
    bytes: u64,
    used: u64,
}

impl<M> Slabs<M> {
    /// Slabs of at most `most` bytes for `expected` bytes of matrices.
    pub fn new(expected: u64, most: u64) -> Self {
        Self { slabs: Vec::new(), left: most, expected, refused: u64::MAX }
    }

    pub fn is_empty(&self) -> bool {
        self.slabs.is_empty()
    }

    /// The memory of a slab, and the first of as many bytes in it; none if there is no room for
    /// them. Slabs are made by `allocate`, which is not asked again for as much as it refused.
    pub fn place(&mut self, bytes: u64, allocate: impl FnMut(u64) -> Option<M>) -> Option<(&M, u64)> {
        let taken = bytes.next_multiple_of(ALIGNMENT);
        let found = match self.slabs.iter().position(|slab| slab.bytes - slab.used >= taken) {
            Some(found) => Some(found),
            None => self.add(taken.next_power_of_two(), allocate),
        };
        self.expected = self.expected.saturating_sub(bytes);
        let slab = &mut self.slabs[found?];
        let first = slab.used;
        slab.used += taken;
        Some((&slab.memory, first))
    }

    /// Adds the largest slab of use that can be had, of `needed` bytes or more; its place.
    fn add(&mut self, needed: u64, mut allocate: impl FnMut(u64) -> Option<M>) -> Option<usize> {
        let mut bytes = prev_power_of_two(self.expected.min(self.left).min(MOST)).max(needed);
        while (needed..=self.left).contains(&bytes) {
            if bytes < self.refused {
                if let Some(memory) = allocate(bytes) {
                    self.left -= bytes;
                    self.slabs.push(Slab { memory, bytes, used: 0 });
                    return Some(self.slabs.len() - 1);
                }
                self.refused = bytes;
            }
            bytes /= 2;
        }
        None
    }
}

/// The largest power of two that is no larger; 0 of 0.
fn prev_power_of_two(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |power| 1 << power)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The sizes of slabs for matrices, and the slab and first byte of each matrix.
    fn placed(matrices: &[u64], most: u64, refused_from: usize) -> (Vec<u64>, Vec<Option<(usize, u64)>>) {
        let mut slabs = Slabs::new(matrices.iter().sum(), most);
        let mut sizes = Vec::new();
        let places = matrices.iter().map(|&bytes| {
            let allocate = |size| {
                (sizes.len() < refused_from).then(|| {
                    sizes.push(size);
                    sizes.len() - 1
                })
            };
            slabs.place(bytes, allocate).map(|(slab, first)| (*slab, first))
        });
        let places = places.collect();
        (sizes, places)
    }

    /// Matrices of Flux's blocks in bf16.
    fn flux() -> Vec<u64> {
        let of = |rows: u64, columns: u64| rows * columns * 2;
        let double = [(18432, 3072), (9216, 3072), (3072, 3072), (12288, 3072), (3072, 12288)];
        let double = double.iter().chain(&double).map(|(rows, columns)| of(*rows, *columns));
        let single = [(21504, 3072), (3072, 15360), (9216, 3072)].map(|(rows, columns)| of(rows, columns));
        let doubles = (0..19).flat_map(|_| double.clone());
        doubles.chain((0..38).flat_map(|_| single)).collect()
    }

    #[test]
    fn matrices_lie_apart_in_slabs_of_powers_of_two_and_little_is_lost() {
        let matrices = flux();
        let (sizes, places) = placed(&matrices, u64::MAX, usize::MAX);
        assert!(sizes.iter().all(|size| size.is_power_of_two() && *size <= MOST), "{sizes:?}");
        let mut ends: Vec<(usize, u64, u64)> = places
            .iter()
            .zip(&matrices)
            .map(|(place, bytes)| place.map(|(slab, at)| (slab, at, at + bytes)).unwrap())
            .collect();
        ends.sort_unstable();
        for (slab, first, end) in &ends {
            assert!(first.is_multiple_of(64) && *end <= sizes[*slab]);
        }
        assert!(ends.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
        let (held, needed) = (sizes.iter().sum::<u64>(), matrices.iter().sum::<u64>());
        assert!(held * 100 <= needed * 105, "{held} for {needed}");
    }

    #[test]
    fn no_more_is_taken_than_allowed_and_the_rest_has_no_place() {
        let matrices = flux();
        let most = 10 << 30;
        let (sizes, places) = placed(&matrices, most, usize::MAX);
        assert!(sizes.iter().sum::<u64>() <= most);
        let kept: u64 = places.iter().zip(&matrices).filter(|(place, _)| place.is_some()).map(|(_, bytes)| bytes).sum();
        assert!(kept * 100 >= most * 93, "{kept}");
        assert!(places.iter().any(Option::is_none));
        assert_eq!(placed(&matrices, 0, usize::MAX), (Vec::new(), vec![None; matrices.len()]));
    }

    #[test]
    fn what_was_refused_is_not_asked_for_again_and_gaps_still_serve() {
        let matrices = [600 * MIB, 600 * MIB, 300 * MIB, 600 * MIB, 100 * MIB];
        let (sizes, places) = placed(&matrices, u64::MAX, 1);
        assert_eq!(sizes, [1 << 30]);
        assert_eq!(places, [Some((0, 0)), None, Some((0, 600 * MIB)), None, Some((0, 900 * MIB))]);
        // A system that pins no more than 4 MiB at once.
        let mut asked = Vec::new();
        let mut slabs = Slabs::new(40 * MIB, u64::MAX);
        let places = [3, 1, 5, 4].map(|mib| {
            let allocate = |size| {
                asked.push(size / MIB);
                (size <= 4 * MIB).then_some(size)
            };
            slabs.place(mib * MIB, allocate).map(|(slab, first)| (*slab / MIB, first / MIB))
        });
        assert_eq!(places, [Some((4, 0)), Some((4, 3)), None, Some((4, 0))]);
        assert_eq!(asked, [32, 16, 8, 4, 4]);
    }

    #[test]
    fn a_matrix_larger_than_a_slab_has_one_of_its_own() {
        let (sizes, places) = placed(&[3 << 30, 1000, 2000], u64::MAX, usize::MAX);
        assert_eq!(sizes, [4 << 30]);
        assert_eq!(places, [Some((0, 0)), Some((0, 3 << 30)), Some((0, (3 << 30) + 1024))]);
    }
}
