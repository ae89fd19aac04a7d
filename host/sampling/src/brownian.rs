//! The noise of ComfyUI's SDE samplers: differences of a Brownian motion over sigma, which is
//! halved until a difference is made of whole parts.
//!
//! A seed stands for one motion, as in torchsde's `BrownianTree`: neither the order of the
//! questions nor earlier ones change an answer. Answers are torchsde's to the last bit of an f32,
//! by the same operations in the same order.

mod seed_sequence;

use std::mem;

use thiserror::Error;

/// The values that a tree keeps: a way to a usual time has about 24 halvings, and a question two
/// ways.
const KEPT: usize = 48;

/// Sigmas without noise between them.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SigmaError {
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

/// The origin of values, and the arithmetic with them.
///
/// Every operation is elementwise in f32 and rounds once, as libtorch's of the same name on a CPU:
/// nothing is fused, and a division is no product with a reciprocal.
pub trait Source {
    /// A tensor of f32.
    type Value;
    /// The error of an operation.
    type Error: From<SigmaError>;

    /// Standard normal noise, as `torch.manual_seed(seed); torch.randn(shape)` on the CPU.
    ///
    /// # Errors
    /// Memory is out.
    fn normal(&mut self, seed: u64) -> Result<Self::Value, Self::Error>;

    /// Zeros of the same shape.
    ///
    /// # Errors
    /// Memory is out.
    fn zeros(&mut self) -> Result<Self::Value, Self::Error>;

    /// The same value, which is never written to.
    fn share(&self, value: &Self::Value) -> Self::Value;

    /// The value times a number.
    ///
    /// # Errors
    /// Memory is out.
    fn multiply(&mut self, value: &Self::Value, factor: f32) -> Result<Self::Value, Self::Error>;

    /// The value divided by a number.
    ///
    /// # Errors
    /// Memory is out.
    fn divide(&mut self, value: &Self::Value, divisor: f32) -> Result<Self::Value, Self::Error>;

    /// The sum of two values.
    ///
    /// # Errors
    /// Memory is out.
    fn add(&mut self, first: &Self::Value, second: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The first value minus the second one.
    ///
    /// # Errors
    /// Memory is out.
    fn subtract(&mut self, first: &Self::Value, second: &Self::Value) -> Result<Self::Value, Self::Error>;
}

/// A Brownian motion, as torchsde's `BrownianTree(t0, w0, t1, entropy=entropy)` with w0 of zeros.
pub struct BrownianTree<S: Source> {
    source: S,
    entropy: u64,
    whole: Part,
    /// The difference over all of it.
    difference: S::Value,
    kept: Kept<S::Value>,
}

impl<S: Source> BrownianTree<S> {
    /// A motion from one time to another one, of a seed.
    ///
    /// # Errors
    /// The times are no range ([`SigmaError::Range`]); those of the source.
    pub fn new(mut source: S, t0: f64, t1: f64, entropy: u64) -> Result<Self, S::Error> {
        if !(t0.is_finite() && t1.is_finite() && t0 <= t1) {
            return Err(SigmaError::Range { least: t0, most: t1 }.into());
        }
        let [seed] = seed_sequence::seeds(entropy, &[]);
        let normal = source.normal(seed.into())?;
        // The length before rounding, as torchsde has it.
        let difference = source.multiply(&normal, (t1 - t0).sqrt() as f32)?;
        let whole = Part { start: rounded(t0), end: rounded(t1), depth: 0, path: 0 };
        Ok(Self { source, entropy, whole, difference, kept: Kept::new(KEPT) })
    }

    /// The same motion that keeps at most `most` values of a question, each as large as an answer,
    /// for the next one to share an end. Each that is kept saves a draw, and changes no answer.
    #[must_use]
    pub fn keeping(mut self, most: usize) -> Self {
        self.kept = Kept::new(most);
        self
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
    /// ([`SigmaError::Large`]); those of the source.
    pub fn increment(&mut self, ta: f64, tb: f64) -> Result<S::Value, S::Error> {
        if !(ta.is_finite() && tb.is_finite() && ta <= tb) {
            return Err(SigmaError::Order { from: ta, to: tb }.into());
        }
        let [ta, tb] = [ta, tb].map(|time| rounded(time.clamp(self.whole.start, self.whole.end)));
        if ta == tb {
            return self.source.zeros();
        }
        let sum = self.sum_of_parts(ta, tb);
        self.kept.turn();
        sum
    }

    /// The sum of the largest parts that the way is made of, from left to right.
    fn sum_of_parts(&mut self, ta: f64, tb: f64) -> Result<S::Value, S::Error> {
        let mut sum: Option<S::Value> = None;
        let mut waiting = vec![(self.whole, self.source.share(&self.difference))];
        while let Some((part, difference)) = waiting.pop() {
            if ta <= part.start && part.end <= tb {
                sum = Some(match sum {
                    Some(sum) => self.source.add(&sum, &difference)?,
                    None => difference,
                });
                continue;
            }
            let halves = part.halves()?;
            let left = self.left(&halves, &difference)?;
            if tb > halves.middle {
                waiting.push((halves.right, self.source.subtract(&difference, &left)?));
            }
            if ta < halves.middle {
                waiting.push((halves.left, left));
            }
        }
        sum.map_or_else(|| self.source.zeros(), Ok)
    }

    /// The difference over the left half of a part, as kept, or from that over the part.
    fn left(&mut self, halves: &Halves, whole: &S::Value) -> Result<S::Value, S::Error> {
        let left = match self.kept.take(halves.place) {
            Some(left) => left,
            None => self.drawn_left(halves, whole)?,
        };
        self.kept.put(halves.place, self.source.share(&left));
        Ok(left)
    }

    fn drawn_left(&mut self, halves: &Halves, whole: &S::Value) -> Result<S::Value, S::Error> {
        let source = &mut self.source;
        let [length, per_length] = halves.mean();
        let mean = source.multiply(whole, length)?;
        let mean = source.multiply(&mean, per_length)?;
        let [seed] = seed_sequence::seeds(self.entropy, &halves.place);
        let normal = source.normal(seed.into())?;
        let noise = source.multiply(&normal, halves.deviation())?;
        source.add(&mean, &noise)
    }
}

/// Noise of variance 1 between sigmas, as ComfyUI's `BrownianTreeNoiseSampler(x, sigma_min,
/// sigma_max, seed, cpu=True)`.
pub struct BrownianNoise<S: Source> {
    tree: BrownianTree<S>,
    sign: f32,
}

impl<S: Source> BrownianNoise<S> {
    /// The noise of a seed, for sigmas between the least one above 0 and the largest one.
    ///
    /// # Errors
    /// The sigmas are no range ([`SigmaError::Range`]); those of the source.
    pub fn new(source: S, sigma_min: f32, sigma_max: f32, seed: u64) -> Result<Self, S::Error> {
        let ([least, most], sign) = in_order(sigma_min, sigma_max);
        Ok(Self { tree: BrownianTree::new(source, least, most, seed)?, sign })
    }

    /// The same noise that keeps at most `most` values, as [`BrownianTree::keeping`].
    #[must_use]
    pub fn keeping(self, most: usize) -> Self {
        Self { tree: self.tree.keeping(most), ..self }
    }

    /// The noise for the way from one sigma to another one. It depends on no earlier draw, so that
    /// a sample that goes on has the noise that it would have had.
    ///
    /// # Errors
    /// The sigmas are the same or not finite ([`SigmaError`]); those of the source.
    pub fn draw(&mut self, sigma: f32, sigma_next: f32) -> Result<S::Value, S::Error> {
        if sigma == sigma_next {
            return Err(SigmaError::Same(sigma).into());
        }
        let ([least, most], sign) = in_order(sigma, sigma_next);
        let increment = self.tree.increment(least, most)?;
        // As on a GPU: on a CPU libtorch leaves roots to MKL, which is off by a bit on some.
        let deviation = (sigma_next - sigma).abs().sqrt();
        self.tree.source.divide(&increment, self.sign * sign * deviation)
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
    fn halves(&self) -> Result<Halves, SigmaError> {
        let Self { start, end, depth, path } = *self;
        let middle = rounded(0.5 * (end + start));
        if !(start < middle && middle < end && depth < u128::BITS) {
            return Err(SigmaError::Large { least: start, most: end });
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
struct Kept<T> {
    most: usize,
    last: Vec<([u128; 2], T)>,
    now: Vec<([u128; 2], T)>,
}

impl<T> Kept<T> {
    fn new(most: usize) -> Self {
        Self { most, last: Vec::new(), now: Vec::new() }
    }

    fn take(&mut self, place: [u128; 2]) -> Option<T> {
        let found = self.last.iter().position(|(kept, _)| *kept == place)?;
        Some(self.last.swap_remove(found).1)
    }

    fn put(&mut self, place: [u128; 2], value: T) {
        if self.now.len() < self.most {
            self.now.push((place, value));
        }
    }

    fn turn(&mut self) {
        self.last = mem::take(&mut self.now);
    }
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use std::{fs, path::Path};

    use serde_json::Value;

    use super::*;

    struct Torch {
        normals: usize,
        values: i64,
    }

    impl Torch {
        fn new(values: i64) -> Self {
            Self { normals: 0, values }
        }
    }

    fn each(value: &[f32], function: impl Fn(f32) -> f32) -> Result<Vec<f32>, SigmaError> {
        Ok(value.iter().map(|number| function(*number)).collect())
    }

    fn pairs(first: &[f32], second: &[f32], function: impl Fn(f32, f32) -> f32) -> Result<Vec<f32>, SigmaError> {
        Ok(first.iter().zip(second).map(|(first, second)| function(*first, *second)).collect())
    }

    impl Source for Torch {
        type Value = Vec<f32>;
        type Error = SigmaError;

        fn normal(&mut self, seed: u64) -> Result<Vec<f32>, SigmaError> {
            self.normals += 1;
            Ok(Vec::try_from(tilewright_torch::noise(seed, &[self.values]).unwrap()).unwrap())
        }

        fn zeros(&mut self) -> Result<Vec<f32>, SigmaError> {
            (0..self.values).map(|_| Ok(0.0)).collect()
        }

        fn share(&self, value: &Vec<f32>) -> Vec<f32> {
            value.clone()
        }

        fn multiply(&mut self, value: &Vec<f32>, factor: f32) -> Result<Vec<f32>, SigmaError> {
            each(value, |number| number * factor)
        }

        fn divide(&mut self, value: &Vec<f32>, divisor: f32) -> Result<Vec<f32>, SigmaError> {
            each(value, |number| number / divisor)
        }

        fn add(&mut self, first: &Vec<f32>, second: &Vec<f32>) -> Result<Vec<f32>, SigmaError> {
            pairs(first, second, |first, second| first + second)
        }

        fn subtract(&mut self, first: &Vec<f32>, second: &Vec<f32>) -> Result<Vec<f32>, SigmaError> {
            pairs(first, second, |first, second| first - second)
        }
    }

    fn fixtures() -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/brownian.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn cases<'a>(fixtures: &'a Value, name: &str) -> &'a [Value] {
        fixtures[name].as_array().unwrap()
    }

    fn source(fixtures: &Value) -> Torch {
        Torch::new(cases(fixtures, "shape").iter().map(|extent| extent.as_i64().unwrap()).product())
    }

    fn number(value: &Value) -> f64 {
        value.as_f64().unwrap()
    }

    fn sigma(value: &Value) -> f32 {
        f32::from_bits(u32::from_str_radix(value.as_str().unwrap(), 16).unwrap())
    }

    fn bits(values: &[f32]) -> String {
        values.iter().map(|value| format!("{:08x}", value.to_bits())).collect()
    }

    fn tree(t0: f64, t1: f64) -> BrownianTree<Torch> {
        BrownianTree::new(Torch::new(4), t0, t1, 42).unwrap()
    }

    #[test]
    fn motions_are_torchsdes_to_the_last_bit() {
        let fixtures = fixtures();
        for case in cases(&fixtures, "trees") {
            let [t0, t1] = [0, 1].map(|end| number(&case["range"][end]));
            let mut tree = BrownianTree::new(source(&fixtures), t0, t1, case["seed"].as_u64().unwrap()).unwrap();
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
            let mut noise = BrownianNoise::new(source(&fixtures), least, most, seed).unwrap();
            for draw in cases(case, "draws") {
                let found = noise.draw(sigma(&draw[0]), sigma(&draw[1])).unwrap();
                assert_eq!(bits(&found), draw[2], "{draw} of {} with seed {seed}", case["name"]);
            }
        }
    }

    #[test]
    fn swapped_sigmas_turn_the_sign() {
        let [mut noise, mut swapped] =
            [(0.1, 1.0), (1.0, 0.1)].map(|(first, last)| BrownianNoise::new(Torch::new(4), first, last, 5).unwrap());
        let down = noise.draw(0.9, 0.3).unwrap();
        let turned = bits(&each(&down, |value| -value).unwrap());
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
            let mut tree = tree(0.1, 14.6).keeping(kept);
            for query in queries.iter().chain(queries.iter().rev()) {
                assert_eq!(bits(&tree.increment(query.0, query.1).unwrap()), fresh(query), "{query:?}");
            }
            assert!(tree.kept.last.len() <= kept);
        }
    }

    #[test]
    fn what_is_kept_saves_draws() {
        let drawn = |kept| {
            let mut tree = tree(0.03, 14.6).keeping(kept);
            for step in 0..12 {
                let [from, to] = [step, step + 1].map(|step| 14.0 - 1.1 * f64::from(step));
                tree.increment(to, from).unwrap();
            }
            tree.source.normals
        };
        assert_eq!(drawn(KEPT), drawn(usize::MAX));
        assert!(drawn(KEPT) < drawn(KEPT / 4) && drawn(KEPT / 4) < drawn(0));
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
            assert_eq!(tree.increment(ta, tb).unwrap(), [0.0; 4], "{ta} to {tb}");
        }
        assert_eq!(tree.increment(-1.0, 100.0), tree.increment(0.03, 14.6));
        // The sigmas of a sample of one step.
        assert_eq!(self::tree(1.0, 1.0).increment(0.0, 2.0).unwrap(), [0.0; 4]);
    }

    #[test]
    fn sigmas_that_are_none_are_refused() {
        let range = |t0, t1| BrownianTree::new(Torch::new(4), t0, t1, 0).err();
        for (t0, t1) in [(f64::NAN, 1.0), (0.0, f64::NAN), (1.0, 0.5), (0.0, f64::INFINITY)] {
            assert!(matches!(range(t0, t1), Some(SigmaError::Range { .. })), "{t0} to {t1}");
        }
        let mut tree = tree(0.03, 14.6);
        for (ta, tb) in [(f64::NAN, 1.0), (0.1, f64::NAN), (0.2, 0.1), (f64::NEG_INFINITY, 1.0)] {
            assert!(matches!(tree.increment(ta, tb), Err(SigmaError::Order { .. })), "{ta} to {tb}");
        }
        let mut noise = BrownianNoise::new(Torch::new(4), 0.03, 14.6, 0).unwrap();
        assert_eq!(noise.draw(0.5, 0.5), Err(SigmaError::Same(0.5)));
        assert!(matches!(noise.draw(0.5, f32::NAN), Err(SigmaError::Order { .. })));
        assert!(matches!(noise.draw(f32::INFINITY, 0.5), Err(SigmaError::Order { .. })));
    }

    #[test]
    fn sigmas_of_any_size_come_to_an_end() {
        for (t0, t1) in [(0.0, 1e30), (-1e300, 1e300), (-f64::MAX, f64::MAX), (1e-300, 1e-299), (4e9, 5e9)] {
            let mut tree = tree(t0, t1);
            for (ta, tb) in
                [(1e-6_f64, 2e-6_f64), (0.1, 1.0), (t0, 0.3), (4_000_000_000.123_456, 4_000_000_000.123_457)]
            {
                match tree.increment(ta, tb.max(ta)) {
                    Ok(answer) => assert_eq!(answer.len(), 4),
                    Err(error) => assert!(matches!(error, SigmaError::Large { .. }), "{error}"),
                }
            }
        }
        assert!(tree(0.0, 1e30).increment(0.1, 1.0).is_ok());
        assert!(matches!(tree(-1e300, 1e300).increment(0.1, 1.0), Err(SigmaError::Large { .. })));
    }
}
