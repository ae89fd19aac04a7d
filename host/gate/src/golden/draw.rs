//! Requests of the golden set that no module can know beforehand: drawn from a seed. The verdict
//! names the seed, so that the draw can be repeated.

use std::hash::{BuildHasher, Hasher, RandomState};

use tilewright_plan::{Dtype, Objective, Precision, Stage, Work};

use super::{
    Events, FailureKind, Form, GoldenRequest, MemoryLimit, Row, Shape,
    rows::{CHUNKS, DEARER, SLOW_WHOLE},
};
use crate::machines::{MACHINES, WEIGHTS};

/// The prefix of the names of drawn requests.
const PREFIX: &str = "drawn ";

/// True if the request of this name was drawn.
pub fn is_drawn(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The number of drawn decodes and encodes.
pub(super) const DRAWN: u32 = 33;

/// The failures that may follow a decision. One each: a policy that has nothing smaller to offer
/// may give up.
const FAILURES: [&[FailureKind]; 3] =
    [&[FailureKind::OutOfMemory], &[FailureKind::OverLimit], &[FailureKind::NonFinite]];

/// An unpredictable seed.
pub fn any_seed() -> u32 {
    // The standard library's own source of randomness: its keys come from the system.
    RandomState::new().build_hasher().finish() as u32
}

/// Requests of a kind drawn from a seed, as many as wanted.
pub(super) fn drawn<W: Work>(
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
pub(super) fn room_and_events(numbers: &mut Numbers) -> (MemoryLimit, Events) {
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

pub(super) fn row(numbers: &mut Numbers) -> Row {
    let weights = numbers.of(WEIGHTS);
    let scale = weights.scale;
    // From 64 to 4096 pixels, every doubling equally likely.
    let mut side = || {
        let least = 64_u64 << numbers.below(6);
        ((least + numbers.below(least)) as u32).next_multiple_of(scale)
    };
    let (width, height) = (side(), side());
    let frames = if weights.frames > 1 && numbers.below(4) > 0 { 1 + 4 * numbers.below(30) as u32 } else { 1 };
    let batch = if numbers.below(5) == 0 { 2 + numbers.below(7) as u32 } else { 1 };
    let room = match numbers.below(20) {
        0 => MemoryLimit::Hopeless,
        1..=7 => MemoryLimit::Plenty,
        _ => MemoryLimit::Percent(5 + numbers.below(150)),
    };
    let (stage, is_bare) = match numbers.below(20) {
        0 => (Stage::Decode, true),
        1..=3 => (Stage::Encode, false),
        _ => (Stage::Decode, false),
    };
    let then = match numbers.below(10) {
        0..=1 => Events::Nothing,
        2..=3 => Events::Learn,
        6 if frames > 9 && stage == Stage::Decode && !is_bare => Events::UnderWay(&[FailureKind::OutOfMemory]),
        _ if matches!(room, MemoryLimit::Plenty) => {
            Events::Fail(FAILURES[numbers.below(FAILURES.len() as u64) as usize])
        }
        _ => Events::Nothing,
    };
    let then = match then {
        // A picture hardly larger than the least tile can't be divided much further.
        Events::Fail(_) if width.min(height) < 512 => Events::Nothing,
        then => then,
    };
    let begun = Shape { form: Form::Whole, precision: Precision::Uniform(Dtype::F32), chunk: 4 };
    let begun = matches!(then, Events::UnderWay(_)).then_some((begun, 5));
    let tried: &[_] = match numbers.below(3) {
        0 if frames > 1 => CHUNKS,
        0 => SLOW_WHOLE,
        1 => DEARER,
        _ => &[],
    };
    let objective = *numbers.of(&[Objective::Fastest, Objective::Balanced, Objective::Leanest]);
    let (machine, may_blend) = (numbers.of(MACHINES), numbers.below(4) == 0);
    Row {
        machine,
        weights,
        width,
        height,
        frames,
        batch,
        room,
        objective,
        stage,
        is_bare,
        may_blend,
        tried,
        then,
        begun,
    }
}

/// A random number generator that is the same everywhere: splitmix64.
pub(super) struct Numbers(pub u64);

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tilewright_plan::Vae;

    use super::{super::Golden, *};

    #[test]
    fn a_seed_gives_the_same_requests_and_another_gives_others() {
        let asked = |seed| Vae::draw(seed).into_iter().map(|golden| (golden.name, golden.request)).collect::<Vec<_>>();
        assert_eq!(asked(7), asked(7));
        assert!(asked(7).iter().zip(asked(8)).filter(|(one, other)| **one == *other).count() < 3);
        let names: BTreeSet<String> = asked(7).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), DRAWN as usize);
        assert_ne!([any_seed(), any_seed(), any_seed()], [any_seed(); 3]);
        let order = shuffle((0..100).collect::<Vec<u32>>(), 7);
        assert_eq!(order.iter().copied().collect::<BTreeSet<u32>>().len(), 100);
        assert_ne!(order, shuffle((0..100).collect(), 8));
    }

    #[test]
    fn what_is_drawn_can_be_asked() {
        for golden in (0..200).flat_map(Vae::draw) {
            let request = &golden.request;
            let scale = request.model.spatial_scale;
            assert!(request.width.is_multiple_of(scale) && request.height.is_multiple_of(scale), "{}", golden.name);
            assert!((64..=4096 + 16).contains(&request.width) && request.memory_limit > 0, "{}", golden.name);
            assert!(golden.costs().estimate_one(&golden.plain()).is_ok(), "{}", golden.name);
        }
    }
}
