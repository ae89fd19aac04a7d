//! Requests of the golden set that no module can know beforehand: drawn from a seed. The verdict
//! names the seed, so that the draw can be repeated.

use std::hash::{BuildHasher, Hasher, RandomState};

use tilewright_plan::Work;

use super::{Events, FailureKind, GoldenRequest, MemoryLimit};

/// The prefix of the names of drawn requests.
const PREFIX: &str = "drawn ";

/// True if the request of this name was drawn.
pub fn is_drawn(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// An unpredictable seed.
pub fn any_seed() -> u32 {
    // The standard library's own source of randomness: its keys come from the system.
    RandomState::new().build_hasher().finish() as u32
}

/// Requests of a kind drawn from a seed, as many as wanted.
pub(crate) fn drawn<W: Work>(
    seed: u64,
    wanted: u32,
    kind: &str,
    draw: impl Fn(&mut Numbers) -> GoldenRequest<W>,
) -> Vec<GoldenRequest<W>> {
    let mut numbers = Numbers(seed);
    let request = |index| {
        let golden = draw(&mut numbers);
        GoldenRequest { name: format!("{PREFIX}{kind}{index}: {}", golden.name), ..golden }
    };
    (1..=wanted).map(request).collect()
}

/// The room of a sample or a text, and the events after its first decision.
pub(crate) fn room_and_events(numbers: &mut Numbers) -> (MemoryLimit, Events) {
    let room = match numbers.below(20) {
        0 => MemoryLimit::Hopeless,
        1..=9 => MemoryLimit::Plenty,
        _ => MemoryLimit::Percent(15 + numbers.below(120)),
    };
    let then = match numbers.below(8) {
        0 => Events::Learn,
        1 if matches!(room, MemoryLimit::Plenty) => Events::Fail(&[FailureKind::OutOfMemory]),
        2 if matches!(room, MemoryLimit::Plenty) => Events::Fail(&[FailureKind::NonFinite]),
        _ => Events::Nothing,
    };
    (room, then)
}

/// Shuffles a list by a seed, so that the order of requests is unpredictable too.
pub fn shuffle<T>(mut list: Vec<T>, seed: u32) -> Vec<T> {
    let mut numbers = Numbers(!u64::from(seed));
    for last in (1..list.len()).rev() {
        list.swap(last, numbers.below(last as u64 + 1) as usize);
    }
    list
}

/// A random number generator that is the same everywhere: splitmix64.
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    pub fn of<T>(&mut self, list: &'static [T]) -> &'static T {
        &list[self.below(list.len() as u64) as usize]
    }
}
