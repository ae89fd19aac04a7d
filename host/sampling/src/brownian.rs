//! The noise of ComfyUI's SDE samplers: differences of a Brownian motion over sigma, which is
//! halved until a difference is made of whole parts.
//!
//! A seed stands for one motion, as in torchsde's `BrownianTree`: neither the order of the
//! questions nor earlier ones change an answer. Answers are torchsde's to the last bit of an f32,
//! by the same operations in the same order.

mod seed_sequence;

use std::mem;

use tch::{Device, Kind, Tensor};
use thiserror::Error;
use tilewright_torch::{Error as TorchError, Result, noise, scalar};

/// The values of a question that a tree keeps, each as large as an answer, for the next one to
/// share an end: a way to a usual time has about 24 halvings. Each that is kept saves a draw, and
/// changes no answer.
const KEPT: usize = 24;

/// Sigmas without noise between them.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
enum SigmaError {
    /// The ends of a motion that are none.
    #[error("noise over sigmas from {least} to {most}: two finite numbers in this order were expected")]
    Range {
        /// The lower end.
        least: f64,
        /// The upper end.
        most: f64,
    },
    /// A question for the difference between times that are none.
    #[error("noise between sigmas {from} and {to}: two finite numbers in rising order were expected")]
    Order {
        /// The first one.
        from: f64,
        /// The second one.
        to: f64,
    },
    /// Noise of variance 1 where nothing varies.
    #[error("noise from sigma {0} to itself: there is none")]
    Same(f32),
    /// Sigmas of such different sizes that no number of halvings goes from one to the other.
    #[error("noise over sigmas from {least} to {most}: numbers so large cannot be halved down to the difference")]
    Large {
        /// The lower end of what could not be halved.
        least: f64,
        /// The upper end.
        most: f64,
    },
}

impl From<SigmaError> for TorchError {
    fn from(error: SigmaError) -> Self {
        TorchError::Torch(error.to_string())
    }
}

/// A Brownian motion, as torchsde's `BrownianTree(t0, w0, t1, entropy=entropy)` with w0 of zeros.
///
/// Every operation is elementwise in f32 on the CPU and rounds once: nothing is fused, and a
/// division is no product with a reciprocal.
struct BrownianTree {
    shape: Vec<i64>,
    entropy: u64,
    whole: Part,
    /// The difference over all of it.
    difference: Tensor,
    kept: Kept,
}

impl BrownianTree {
    /// A motion from one time to another one, of a seed, for tensors of a shape.
    ///
    /// # Errors
    /// The times are no range ([`SigmaError::Range`]); memory is out.
    fn new(shape: &[i64], t0: f64, t1: f64, entropy: u64) -> Result<Self> {
        if !(t0.is_finite() && t1.is_finite() && t0 <= t1) {
            return Err(SigmaError::Range { least: t0, most: t1 }.into());
        }
        let [seed] = seed_sequence::seeds(entropy, &[]);
        let normal = noise(seed.into(), shape)?;
        // The length before rounding, as torchsde has it.
        let difference = multiply(&normal, (t1 - t0).sqrt() as f32)?;
        let whole = Part { start: rounded(t0), end: rounded(t1), depth: 0, path: 0 };
        Ok(Self { shape: shape.to_vec(), entropy, whole, difference, kept: Kept::new(KEPT) })
    }

    /// The difference of the motion between two times, W(tb) − W(ta). Beyond its ends the motion
    /// stands still. The answer may share its memory with what the tree keeps: it is not to be
    /// written to.
    ///
    /// Times are rounded to six decimals. Between two that become the same one the difference is 0;
    /// torchsde recurses without end there, or answers with a remainder of rounding.
    ///
    /// # Errors
    /// The times are not finite or fall ([`SigmaError::Order`]), or the motion is too long for them
    /// ([`SigmaError::Large`]); memory is out.
    fn increment(&mut self, ta: f64, tb: f64) -> Result<Tensor> {
        if !(ta.is_finite() && tb.is_finite() && ta <= tb) {
            return Err(SigmaError::Order { from: ta, to: tb }.into());
        }
        let [ta, tb] = [ta, tb].map(|time| rounded(time.clamp(self.whole.start, self.whole.end)));
        if ta == tb {
            return self.zeros();
        }
        let sum = self.sum_of_parts(ta, tb);
        self.kept.turn();
        sum
    }

    /// The sum of the largest parts that the way is made of, from left to right.
    fn sum_of_parts(&mut self, ta: f64, tb: f64) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        let mut waiting = vec![(self.whole, self.difference.shallow_clone())];
        while let Some((part, difference)) = waiting.pop() {
            if ta <= part.start && part.end <= tb {
                sum = Some(match sum {
                    Some(sum) => sum.f_add(&difference)?,
                    None => difference,
                });
                continue;
            }
            let halves = part.halves()?;
            let left = self.left(&halves, &difference)?;
            if tb > halves.middle {
                waiting.push((halves.right, difference.f_sub(&left)?));
            }
            if ta < halves.middle {
                waiting.push((halves.left, left));
            }
        }
        sum.map_or_else(|| self.zeros(), Ok)
    }

    fn zeros(&self) -> Result<Tensor> {
        Ok(Tensor::f_zeros(&self.shape[..], (Kind::Float, Device::Cpu))?)
    }

    /// The difference over the left half of a part, as kept, or from that over the part.
    fn left(&mut self, halves: &Halves, whole: &Tensor) -> Result<Tensor> {
        let left = match self.kept.take(halves.place) {
            Some(left) => left,
            None => self.drawn_left(halves, whole)?,
        };
        self.kept.put(halves.place, left.shallow_clone());
        Ok(left)
    }

    fn drawn_left(&self, halves: &Halves, whole: &Tensor) -> Result<Tensor> {
        #[cfg(test)]
        tests::DRAWN.set(tests::DRAWN.get() + 1);
        let [length, per_length] = halves.mean();
        let mean = multiply(&multiply(whole, length)?, per_length)?;
        let [seed] = seed_sequence::seeds(self.entropy, &halves.place);
        let normal = noise(seed.into(), &self.shape)?;
        Ok(mean.f_add(&multiply(&normal, halves.deviation())?)?)
    }
}

fn multiply(value: &Tensor, factor: f32) -> Result<Tensor> {
    scalar::multiply(value, factor.into())
}

/// Noise of variance 1 between sigmas, as ComfyUI's `BrownianTreeNoiseSampler(x, sigma_min,
/// sigma_max, seed, cpu=True)`.
pub(crate) struct BrownianNoise {
    tree: BrownianTree,
    sign: f32,
}

impl BrownianNoise {
    /// The noise of a seed and a shape, for sigmas between the least one above 0 and the largest
    /// one.
    ///
    /// # Errors
    /// The sigmas are no range ([`SigmaError::Range`]); memory is out.
    pub fn new(shape: &[i64], sigma_min: f32, sigma_max: f32, seed: u64) -> Result<Self> {
        let ([least, most], sign) = in_order(sigma_min, sigma_max);
        Ok(Self { tree: BrownianTree::new(shape, least, most, seed)?, sign })
    }

    /// The noise for the way from one sigma to another one. It depends on no earlier draw, so that
    /// a sample that goes on has the noise that it would have had.
    ///
    /// # Errors
    /// The sigmas are the same or not finite ([`SigmaError`]); memory is out.
    pub fn draw(&mut self, sigma: f32, sigma_next: f32) -> Result<Tensor> {
        if sigma == sigma_next {
            return Err(SigmaError::Same(sigma).into());
        }
        let ([least, most], sign) = in_order(sigma, sigma_next);
        let increment = self.tree.increment(least, most)?;
        // As on a GPU: on a CPU libtorch leaves roots to MKL, which is off by a bit on some.
        let deviation = (sigma_next - sigma).abs().sqrt();
        scalar::divide(&increment, (self.sign * sign * deviation).into())
    }
}

/// Two sigmas from the lower one to the higher one, and −1 if their order was not this one. Equal
/// sigmas count as swapped, as in ComfyUI.
fn in_order(first: f32, second: f32) -> ([f64; 2], f32) {
    let [first_time, second_time] = [first, second].map(f64::from);
    if first < second { ([first_time, second_time], 1.0) } else { ([second_time, first_time], -1.0) }
}

/// A part of the motion's time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    start: f64,
    end: f64,
    /// The halvings that led here.
    depth: u32,
    /// A bit per halving, 1 for the right half; the first one is the highest.
    path: u128,
}

/// The halves of a part, as far as rounding lets them be.
#[derive(Clone, Copy, Debug)]
struct Halves {
    left: Part,
    right: Part,
    middle: f64,
    /// The part's place in the tree.
    place: [u128; 2],
}

impl Part {
    fn halves(&self) -> Result<Halves> {
        let Self { start, end, depth, path } = *self;
        let middle = rounded(0.5 * (end + start));
        if !(start < middle && middle < end && depth < u128::BITS) {
            return Err(SigmaError::Large { least: start, most: end }.into());
        }
        Ok(Halves {
            left: Self { start, end: middle, depth: depth + 1, path: path << 1 },
            right: Self { start: middle, end, depth: depth + 1, path: path << 1 | 1 },
            middle,
            place: [path, depth.into()],
        })
    }
}

impl Halves {
    fn lengths(&self) -> [f64; 2] {
        [self.middle - self.left.start, self.right.end - self.middle]
    }

    fn per_length(&self) -> f64 {
        1.0 / (self.right.end - self.left.start)
    }

    /// The factors of the whole that give the mean of the left half. They are two, since torchsde
    /// rounds to f32 after each of them.
    fn mean(&self) -> [f32; 2] {
        let [left, _] = self.lengths();
        [left as f32, self.per_length() as f32]
    }

    /// The deviation of the left half from its mean.
    fn deviation(&self) -> f32 {
        let [left, right] = self.lengths();
        (left * right * self.per_length()).sqrt() as f32
    }
}

/// A time rounded to six decimals as Python's `round(time, 6)`: of the exact binary value, and to
/// even in the middle.
fn rounded(time: f64) -> f64 {
    format!("{time:.6}").parse().unwrap_or(time)
}

/// The differences over left halves, by the place of the halved part: of the last question, and of
/// the one that is being answered. Right halves need no draw.
struct Kept {
    most: usize,
    last: Vec<([u128; 2], Tensor)>,
    now: Vec<([u128; 2], Tensor)>,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self { most, last: Vec::new(), now: Vec::new() }
    }

    fn take(&mut self, place: [u128; 2]) -> Option<Tensor> {
        let found = self.last.iter().position(|(kept, _)| *kept == place)?;
        Some(self.last.swap_remove(found).1)
    }

    fn put(&mut self, place: [u128; 2], value: Tensor) {
        if self.now.len() < self.most {
            self.now.push((place, value));
        }
    }

    fn turn(&mut self) {
        self.last = mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs};

    use serde_json::Value;
    use tilewright_fixtures::fixture;

    use super::*;

    thread_local! {
        /// The halves that were drawn and not kept.
        pub(super) static DRAWN: Cell<u32> = const { Cell::new(0) };
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.reshape([-1])).unwrap()
    }

    fn fixtures() -> Value {
        serde_json::from_str(&fs::read_to_string(fixture("brownian.json")).unwrap()).unwrap()
    }

    fn cases<'a>(fixtures: &'a Value, name: &str) -> &'a [Value] {
        fixtures[name].as_array().unwrap()
    }

    fn shape(fixtures: &Value) -> Vec<i64> {
        vec![cases(fixtures, "shape").iter().map(|extent| extent.as_i64().unwrap()).product()]
    }

    fn number(value: &Value) -> f64 {
        value.as_f64().unwrap()
    }

    fn sigma(value: &Value) -> f32 {
        f32::from_bits(u32::from_str_radix(value.as_str().unwrap(), 16).unwrap())
    }

    fn bits(tensor: &Tensor) -> String {
        values(tensor).iter().map(|value| format!("{:08x}", value.to_bits())).collect()
    }

    fn tree(t0: f64, t1: f64) -> BrownianTree {
        BrownianTree::new(&[4], t0, t1, 42).unwrap()
    }

    #[test]
    fn motions_are_torchsdes_to_the_last_bit() {
        let fixtures = fixtures();
        for case in cases(&fixtures, "trees") {
            let [t0, t1] = [0, 1].map(|end| number(&case["range"][end]));
            let mut tree = BrownianTree::new(&shape(&fixtures), t0, t1, case["seed"].as_u64().unwrap()).unwrap();
            for query in cases(case, "queries") {
                let found = tree.increment(number(&query[0]), number(&query[1])).unwrap();
                assert_eq!(bits(&found), query[2], "{query} of {t0} to {t1}");
            }
        }
    }

    #[test]
    fn noise_is_comfyuis_to_the_last_bit() {
        let fixtures = fixtures();
        for case in cases(&fixtures, "noises") {
            let [least, most] = [0, 1].map(|end| sigma(&case["range"][end]));
            let seed = case["seed"].as_u64().unwrap();
            let mut noise = BrownianNoise::new(&shape(&fixtures), least, most, seed).unwrap();
            for draw in cases(case, "draws") {
                let found = noise.draw(sigma(&draw[0]), sigma(&draw[1])).unwrap();
                assert_eq!(bits(&found), draw[2], "{draw} of {} with seed {seed}", case["name"]);
            }
        }
    }

    #[test]
    fn swapped_sigmas_turn_the_sign() {
        let [mut noise, mut swapped] =
            [(0.1, 1.0), (1.0, 0.1)].map(|(first, last)| BrownianNoise::new(&[4], first, last, 5).unwrap());
        let down = noise.draw(0.9, 0.3).unwrap();
        let turned = bits(&down.neg());
        assert_eq!(bits(&noise.draw(0.3, 0.9).unwrap()), turned);
        assert_eq!(bits(&swapped.draw(0.9, 0.3).unwrap()), turned);
    }

    #[test]
    fn neither_order_nor_what_is_kept_changes_an_answer() {
        let times: Vec<f64> = (0..8).map(|step| 14.6 * (-0.7 * f64::from(step)).exp()).collect();
        let queries: Vec<_> =
            times.windows(2).chain(times.windows(3)).map(|ends| (*ends.last().unwrap(), ends[0])).collect();
        let fresh = |query: &(f64, f64)| bits(&tree(0.1, 14.6).increment(query.0, query.1).unwrap());
        for kept in [0, 3, 10, KEPT] {
            let mut tree = tree(0.1, 14.6);
            tree.kept = Kept::new(kept);
            for query in queries.iter().chain(queries.iter().rev()) {
                assert_eq!(bits(&tree.increment(query.0, query.1).unwrap()), fresh(query), "{query:?}");
            }
            assert!(tree.kept.last.len() <= kept);
        }
    }

    #[test]
    fn what_is_kept_saves_draws() {
        let drawn = |kept| {
            DRAWN.set(0);
            let mut tree = tree(0.03, 14.6);
            tree.kept = Kept::new(kept);
            for step in 0..12 {
                let [from, to] = [step, step + 1].map(|step| 14.0 - 1.1 * f64::from(step));
                let _ = tree.increment(to, from).unwrap();
            }
            DRAWN.get()
        };
        let all = drawn(usize::MAX);
        assert_eq!(drawn(2 * KEPT), all);
        assert!(all <= drawn(KEPT) && drawn(KEPT) < drawn(KEPT / 2) && drawn(KEPT / 2) < drawn(0));
    }

    #[test]
    fn times_are_rounded_as_python_does() {
        // round(time, 6) of Python 3.11
        let cases = [
            (0.007_812_5, 0.007_812),
            (0.023_437_5, 0.023_438),
            (-0.007_812_5, -0.007_812),
            (1.000_000_5, 1.000_001),
            (2.000_000_5, 2.000_001),
            (4.9e-7, 0.0),
            (5.1e-7, 1e-6),
            (14.614_642_143_249_512, 14.614_642),
            (1e300, 1e300),
        ];
        for (time, expected) in cases {
            assert_eq!(rounded(time), expected, "{time}");
        }
    }

    #[test]
    fn a_motion_stands_still_beyond_its_ends_and_within_its_precision() {
        let mut tree = tree(0.03, 14.6);
        let still = [(0.0, 0.01), (15.0, 1e300), (0.5, 0.5), (0.5, 0.500_000_2), (-0.0, 0.0)];
        for (ta, tb) in still {
            assert_eq!(tree.increment(ta, tb).map(|found| values(&found)).unwrap(), [0.0; 4], "{ta} to {tb}");
        }
        let [whole, all] = [(-1.0, 100.0), (0.03, 14.6)].map(|(ta, tb)| bits(&tree.increment(ta, tb).unwrap()));
        assert_eq!(whole, all);
        // The sigmas of a sample of one step.
        assert_eq!(self::tree(1.0, 1.0).increment(0.0, 2.0).map(|found| values(&found)).unwrap(), [0.0; 4]);
    }

    #[test]
    fn sigmas_that_are_none_are_refused() {
        let range = |t0, t1| BrownianTree::new(&[4], t0, t1, 0).err().unwrap().to_string();
        let refusal = |found: Result<Tensor>| found.unwrap_err().to_string();
        for (t0, t1) in [(f64::NAN, 1.0), (0.0, f64::NAN), (1.0, 0.5), (0.0, f64::INFINITY)] {
            assert!(range(t0, t1).contains("in this order"), "{t0} to {t1}");
        }
        let mut tree = tree(0.03, 14.6);
        for (ta, tb) in [(f64::NAN, 1.0), (0.1, f64::NAN), (0.2, 0.1), (f64::NEG_INFINITY, 1.0)] {
            assert!(refusal(tree.increment(ta, tb)).contains("in rising order"), "{ta} to {tb}");
        }
        let mut noise = BrownianNoise::new(&[4], 0.03, 14.6, 0).unwrap();
        assert_eq!(refusal(noise.draw(0.5, 0.5)), "libtorch: noise from sigma 0.5 to itself: there is none");
        assert!(refusal(noise.draw(0.5, f32::NAN)).contains("in rising order"));
        assert!(refusal(noise.draw(f32::INFINITY, 0.5)).contains("in rising order"));
    }

    #[test]
    fn sigmas_of_any_size_come_to_an_end() {
        for (t0, t1) in [(0.0, 1e30), (-1e300, 1e300), (-f64::MAX, f64::MAX), (1e-300, 1e-299), (4e9, 5e9)] {
            let mut tree = tree(t0, t1);
            for (ta, tb) in
                [(1e-6_f64, 2e-6_f64), (0.1, 1.0), (t0, 0.3), (4_000_000_000.123_456, 4_000_000_000.123_457)]
            {
                match tree.increment(ta, tb.max(ta)) {
                    Ok(answer) => assert_eq!(answer.size(), [4]),
                    Err(error) => assert!(error.to_string().contains("numbers so large"), "{error}"),
                }
            }
        }
        assert!(tree(0.0, 1e30).increment(0.1, 1.0).is_ok());
        let refused = tree(-1e300, 1e300).increment(0.1, 1.0).unwrap_err().to_string();
        assert!(refused.contains("numbers so large"), "{refused}");
    }
}
