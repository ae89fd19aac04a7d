//! Seeds out of numbers, as NumPy's `SeedSequence` mixes them.

use std::array;

/// The words of a pool, as torchsde's `BrownianTree` asks for them.
const POOL: usize = 24;

const POOL_START: u32 = 0x43b0_d7e5;
const POOL_FACTOR: u32 = 0x931e_8875;
const SEED_START: u32 = 0x8b51_f9dd;
const SEED_FACTOR: u32 = 0x58f3_8ded;
const WORD_FACTOR: u32 = 0xca01_f9dd;
const HASHED_FACTOR: u32 = 0x4973_f715;

/// The first seeds of a user's seed and of numbers that lead to a place, of which the tree as a
/// whole has none: `numpy.random.SeedSequence(entropy, spawn_key=place,
/// pool_size=24).generate_state(N)`.
pub(super) fn seeds<const N: usize>(entropy: u64, place: &[u128]) -> [u32; N] {
    let pool = pool(&all_words(entropy, place));
    let mut hash = Hash { constant: SEED_START, factor: SEED_FACTOR };
    array::from_fn(|number| hash.hashed(pool[number % POOL]))
}

fn pool(words: &[u32]) -> [u32; POOL] {
    let mut hash = Hash { constant: POOL_START, factor: POOL_FACTOR };
    let mut pool: [u32; POOL] = array::from_fn(|at| hash.hashed(words.get(at).copied().unwrap_or(0)));
    for from in 0..POOL {
        for to in (0..POOL).filter(|to| *to != from) {
            pool[to] = mixed(pool[to], hash.hashed(pool[from]));
        }
    }
    for word in words.iter().skip(POOL) {
        for mixes in &mut pool {
            *mixes = mixed(*mixes, hash.hashed(*word));
        }
    }
    pool
}

fn all_words(entropy: u64, place: &[u128]) -> Vec<u32> {
    let mut all = words(entropy.into());
    if !place.is_empty() {
        // The place's words come after the pool's, lest they read as a part of the user's seed.
        all.resize(POOL, 0);
    }
    all.extend(place.iter().flat_map(|number| words(*number)));
    all
}

/// The words of a number from its lowest one, without zeros at the high end; zero has one word.
fn words(number: u128) -> Vec<u32> {
    let used = (u128::BITS - number.leading_zeros()).div_ceil(u32::BITS).max(1);
    (0..used).map(|word| (number >> (word * u32::BITS)) as u32).collect()
}

/// A hash whose constant goes on from word to word, so that equal words give different ones.
struct Hash {
    constant: u32,
    factor: u32,
}

impl Hash {
    fn hashed(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.factor);
        folded(word.wrapping_mul(self.constant))
    }
}

fn mixed(word: u32, hashed: u32) -> u32 {
    folded(word.wrapping_mul(WORD_FACTOR).wrapping_sub(hashed.wrapping_mul(HASHED_FACTOR)))
}

fn folded(word: u32) -> u32 {
    word ^ (word >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_numpys() {
        // numpy 2.4.6
        let cases: [(u64, &[u128], [u32; 4]); 8] = [
            (0, &[], [4_025_752_534, 2_687_548_107, 2_326_983_537, 1_576_567_101]),
            (42, &[], [387_750_627, 2_536_650_517, 4_078_839_648, 2_023_786_165]),
            ((1 << 63) + 5, &[], [4_057_111_437, 2_571_311_966, 810_876_955, 1_434_323_483]),
            (u64::MAX, &[], [1_186_816_001, 310_380_770, 3_217_591_682, 2_718_387_704]),
            (0, &[0, 0], [245_430_115, 3_436_620_678, 4_120_055_464, 1_627_243_804]),
            (42, &[5, 3], [3_084_123_560, 468_215_949, 242_942_938, 2_650_128_260]),
            ((1 << 63) + 5, &[(1 << 40) + 1, 41], [3_975_951_916, 1_362_367_184, 825_696_388, 3_358_295_841]),
            (7, &[(1 << 100) + 3, 101], [752_317_068, 2_505_415_260, 4_250_644_934, 2_465_968_850]),
        ];
        for (entropy, place, expected) in cases {
            assert_eq!(seeds(entropy, place), expected, "{entropy} {place:?}");
        }
    }

    #[test]
    fn more_seeds_than_words_of_the_pool_go_round_it() {
        // numpy 2.4.6
        assert_eq!(seeds::<26>(1, &[])[23..], [2_999_166_653, 3_720_486_729, 3_117_331_444]);
    }
}
