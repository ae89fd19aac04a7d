//! Each test has a pool of its own.

use std::{ptr, slice, thread};

use super::*;

const MIB: usize = 1 << 20;

fn pool() -> Pool {
    Pool::new(4 << 30).unwrap()
}

/// SplitMix64: the same numbers at every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Allocates and frees as a decoder does: each step holds its input, its output and an addend,
/// sizes growing by stages.
fn decode(pool: &Pool, scale: f64) {
    let mut before: Option<*mut u8> = None;
    for stage in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
        for part in [1.0, 1.0, 0.75, 0.5, 1.0] {
            let bytes = |share: f64| (stage * part * share * scale * MIB as f64) as usize;
            let scratch = pool.allocate(bytes(1.3)).unwrap();
            let output = pool.allocate(bytes(1.0)).unwrap();
            let small = pool.allocate(bytes(0.002)).unwrap();
            assert!(pool.release(scratch));
            if let Some(input) = before.replace(output) {
                assert!(pool.release(input));
            }
            assert!(pool.release(small));
        }
    }
    assert!(pool.release(before.unwrap()));
}

#[test]
fn later_rounds_of_other_sizes_are_served_from_held_memory() {
    let pool = pool();
    decode(&pool, 2.0);
    let first = pool.memory();
    assert!(first.system > 0 && first.in_use == 0);
    for scale in [2.0, 1.7, 1.0, 0.6, 1.9, 1.3] {
        let before = pool.memory();
        decode(&pool, scale);
        let after = pool.memory();
        let (served, misses) = (after.allocations - before.allocations, after.system - before.system);
        assert!(misses * 20 <= served, "{misses} misses in {served} at {scale}");
    }
    assert_eq!(pool.memory().fragmentation, 0.0, "all is free and in one piece");
}

#[test]
fn hundreds_of_rounds_leave_held_bounded() {
    let pool = pool();
    let mut numbers = Numbers(7);
    let mut kept = Vec::new();
    let mut largest = 0;
    for round in 0..400 {
        pool.reset_peak();
        decode(&pool, 0.5 + numbers.below(1000) as f64 / 500.0);
        largest = largest.max(pool.memory().peak);
        // Something small outlives the rounds, as weights and results do.
        if round % 10 == 0 {
            kept.push(pool.allocate(MIB / 2 + numbers.below(MIB)).unwrap());
        }
        if kept.len() > 8 {
            assert!(pool.release(kept.remove(numbers.below(8))));
        }
    }
    let memory = pool.memory();
    assert!(memory.held as f64 <= 1.25 * largest as f64, "{memory:?}, {largest}");
    assert!((0.0..=1.0).contains(&memory.fragmentation), "{memory:?}");
}

#[test]
fn free_neighbours_serve_their_sum() {
    let pool = pool();
    let parts = [5 * MIB, 7 * MIB, 4 * MIB].map(|bytes| pool.allocate(bytes).unwrap());
    let fence = pool.allocate(MIB).unwrap();
    let before = pool.memory();
    // The middle one last, so that it has to join both of its neighbours.
    for part in [0, 2, 1] {
        assert!(pool.release(parts[part]));
    }
    let sum = pool.allocate(16 * MIB).unwrap();
    let after = pool.memory();
    assert_eq!((sum, after.held, after.system), (parts[0], before.held, before.system));
    assert!(pool.release(sum));
    assert!(pool.release(fence));
}

#[test]
fn held_memory_is_preferred_to_untouched_memory_that_fits_better() {
    let pool = pool();
    let fences: Vec<_> = (0..4).map(|_| pool.allocate(16 * MIB).unwrap()).collect();
    // A hole of 16 MiB without memory, then one of 32 MiB, partly in the same free range as the
    // rest.
    assert!(pool.release(fences[1]));
    pool.trim();
    assert!(pool.release(fences[3]));
    let held = pool.memory().held;
    let block = pool.allocate(15 * MIB).unwrap();
    assert_eq!(block, fences[3]);
    assert_eq!(pool.memory().held, held);
}

#[test]
fn fragmentation_is_what_the_largest_piece_leaves() {
    let pool = pool();
    let parts = [16, 2, 8, 2].map(|mib| pool.allocate(mib * MIB).unwrap());
    assert_eq!(pool.memory().fragmentation, 0.0, "nothing is free");
    assert!(pool.release(parts[0]));
    assert_eq!(pool.memory().fragmentation, 0.0);
    assert!(pool.release(parts[2]));
    assert!((pool.memory().fragmentation - 8.0 / 24.0).abs() < 1e-9, "{:?}", pool.memory());
}

#[test]
fn cached_memory_goes_back_before_the_limit_is_passed() {
    let pool = pool();
    pool.set_limit(64 * MIB);
    // 60 MiB of pieces that can't serve 40 MiB, since every second stays in use.
    let pieces: Vec<_> = (0..6).map(|_| pool.allocate(10 * MIB).unwrap()).collect();
    pieces.iter().step_by(2).for_each(|piece| assert!(pool.release(*piece)));
    let block = pool.allocate(34 * MIB).unwrap();
    let memory = pool.memory();
    assert_eq!(memory.in_use as usize, 64 * MIB);
    assert!(memory.held as usize <= 64 * MIB + 6 * GRANULE, "{memory:?}");

    assert_eq!(pool.allocate(1), Err(AllocationError::Limit));
    assert_eq!(pool.allocate(usize::MAX), Err(AllocationError::Limit));
    assert_eq!(pool.memory().in_use as usize, 64 * MIB, "a refusal leaves nothing behind");
    assert!(pool.release(block));
    assert!(pool.release(pool.allocate(34 * MIB).unwrap()));

    // A tighter limit returns what is cached at once, and what is in use may stay.
    pool.set_limit(32 * MIB);
    assert!(pool.memory().held as usize <= 32 * MIB + 6 * GRANULE, "{:?}", pool.memory());
    pool.set_limit(usize::MAX);
    assert!(pool.release(pool.allocate(100 * MIB).unwrap()));
}

#[test]
fn what_rounding_adds_to_the_limit_is_bounded() {
    let pool = pool();
    pool.set_limit(256 * MIB);
    // Every granule keeps something small, so that none can be returned.
    let fence = SMALL + PAGE;
    let pairs: Vec<_> =
        (0..120).map(|_| (pool.allocate(GRANULE - fence).unwrap(), pool.allocate(fence).unwrap())).collect();
    pairs.iter().for_each(|(block, _)| assert!(pool.release(*block)));
    pool.trim();
    let before = pool.memory();
    assert_eq!((before.held as usize, before.in_use as usize), (120 * GRANULE, 120 * fence));
    assert_eq!(pool.allocate(100 * MIB), Err(AllocationError::Limit), "the sum would be 340 MiB");
    assert_eq!(pool.memory().held, before.held);
    assert!(pool.release(pool.allocate(40 * MIB).unwrap()));
}

#[test]
fn a_trim_returns_all_that_is_free() {
    let pool = pool();
    let (block, kept) = (pool.allocate(40 * MIB).unwrap(), pool.allocate(3 * MIB).unwrap());
    let small: Vec<_> = (1..2000).map(|bytes| pool.allocate(bytes).unwrap()).collect();
    assert!(pool.release(block));
    small.into_iter().for_each(|cell| assert!(pool.release(cell)));
    pool.trim();
    assert!(pool.memory().held as usize <= 3 * MIB + 2 * GRANULE, "{:?}", pool.memory());
    // SAFETY: the block has 40 MiB; pages come back zeroed, which is how it shows that they had
    // gone.
    let again = unsafe { slice::from_raw_parts(pool.allocate(40 * MIB).unwrap(), 40 * MIB) };
    assert!(again.iter().all(|byte| *byte == 0));
    assert!(pool.release(again.as_ptr().cast_mut()));
    assert!(pool.release(kept));
    pool.trim();
    assert_eq!(pool.memory().held, 0);
    pool.trim();
}

#[test]
fn every_size_is_aligned() {
    let pool = pool();
    let mut blocks = Vec::new();
    for bytes in (1..3000).chain((0..40).map(|step| (1 << 12) + step * 77_777)) {
        let block = pool.allocate(bytes).unwrap();
        assert_eq!(block.addr() % 64, 0, "{bytes}");
        blocks.push(block);
    }
    blocks.into_iter().for_each(|block| assert!(pool.release(block)));
    assert_eq!(pool.memory().in_use, 0);
}

#[test]
fn what_no_machine_has_is_refused() {
    let pool = Pool::new(64 * MIB).unwrap();
    for bytes in [65 * MIB, i64::MAX as usize, usize::MAX] {
        assert_eq!(pool.allocate(bytes), Err(AllocationError::System), "{bytes}");
    }
    let all = pool.allocate(64 * MIB).unwrap();
    assert_eq!(pool.allocate(1), Err(AllocationError::System));
    assert!(pool.release(all));
    assert!(pool.release(pool.allocate(1).unwrap()));
}

#[test]
fn addresses_that_are_none_of_its_own_are_left_alone() {
    let pool = pool();
    let (large, small) = (pool.allocate(3 * MIB).unwrap(), pool.allocate(100).unwrap());
    let before = pool.memory();
    let strangers = [ptr::null_mut(), (&raw const before).cast_mut().cast(), ptr::without_provenance_mut(usize::MAX)];
    let inside = [large.wrapping_add(64), small.wrapping_add(64), small.wrapping_add(GRANULE)];
    for address in strangers.into_iter().chain(inside) {
        assert!(!pool.release(address), "{address:?}");
    }
    assert_eq!(pool.memory(), before);
    assert!(pool.release(large) && pool.release(small));
    assert!(!pool.release(large) && !pool.release(small));
}

#[test]
fn a_reservation_that_no_system_grants_is_made_smaller() {
    let pool = Pool::new(1 << 62).unwrap();
    let reserved = pool.state().pages.reserved_bytes();
    assert!((64 * MIB..1 << 62).contains(&reserved), "{reserved}");
    assert!(pool.release(pool.allocate(MIB).unwrap()));
}

#[test]
fn no_two_blocks_share_a_byte_from_any_thread() {
    let pool = pool();
    pool.set_limit(512 * MIB);
    thread::scope(|scope| {
        for worker in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut numbers = Numbers(worker);
                let mut live: Vec<(&mut [u64], u64)> = Vec::new();
                let check = |(words, mark): (&mut [u64], u64)| {
                    assert!(words.iter().all(|word| *word == mark), "a block was written to by another");
                    assert!(pool.release(words.as_mut_ptr().cast()));
                };
                for step in 0..3000 {
                    if live.len() > 24 || (!live.is_empty() && numbers.below(2) == 0) {
                        check(live.swap_remove(numbers.below(live.len())));
                    }
                    // Sizes spread over the classes and beyond: 8 bytes to 2 MiB.
                    let words = (1 << numbers.below(18)) + numbers.below(1000);
                    let block = pool.allocate(words * 8).unwrap();
                    let mark = worker << 32 | step;
                    // SAFETY: the pool says that these bytes are ours alone, which is what the test
                    // is about.
                    let block = unsafe { slice::from_raw_parts_mut(block.cast::<u64>(), words) };
                    block.fill(mark);
                    live.push((block, mark));
                    if worker == 0 && step % 100 == 0 {
                        pool.trim();
                    }
                }
                live.into_iter().for_each(check);
            });
        }
    });
    assert_eq!(pool.memory().in_use, 0);
    pool.trim();
    assert_eq!(pool.memory().held, 0);
}
