//! Statistics of few samples: centre, spread, and confidence.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use serde::Serialize;

use crate::{median, quantile, sorted};

/// The share of the mean above which a spread is worth a warning.
const NOISY: f64 = 0.10;

/// Resamplings of the bootstrap.
const RESAMPLES: usize = 2000;

/// Two-sided 95 % quantiles of Student's t for 1 to 4 degrees of freedom, for which the expansion
/// below is too coarse.
const FEW: [f64; 4] = [12.706_204_7, 4.302_652_7, 3.182_446_3, 2.776_445_1];

/// A summary of samples, in their unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The number of samples.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// The sample's standard deviation (n − 1); none for one sample.
    pub std: Option<f64>,
    /// The least.
    pub min: f64,
    /// The middle.
    pub median: f64,
    /// The 99th percentile, interpolated: near the largest if there are few.
    pub p99: f64,
    /// 95 % confidence of the mean by Student's t; none for one sample.
    pub confidence: Option<[f64; 2]>,
}

impl Summary {
    /// The summary of at least one sample, all finite.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let count = samples.len();
        let mean = samples.iter().sum::<f64>() / count as f64;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let std = (count > 1).then(|| (squares / (count - 1) as f64).sqrt());
        let half = std.map(|std| student(count - 1) * std / (count as f64).sqrt());
        let sorted = sorted(samples);
        Some(Self {
            count,
            mean,
            std,
            min: sorted[0],
            median: quantile(&sorted, 0.5),
            p99: quantile(&sorted, 0.99),
            confidence: half.map(|half| [mean - half, mean + half]),
        })
    }

    /// The spread is above 10 % of the mean.
    pub fn is_noisy(&self) -> bool {
        self.std.is_some_and(|std| std > NOISY * self.mean)
    }
}

/// A ratio of medians with its 95 % interval by the percentile bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio of the medians.
    pub of_medians: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

impl Ratio {
    /// The ratio of the samples' median to that of `base`; the same samples give the same interval.
    pub fn of(samples: &[f64], base: &[f64]) -> Option<Self> {
        let of_medians = median(samples)? / median(base)?;
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut drawn = |samples: &[f64]| {
            let drawn: Vec<f64> = samples.iter().map(|_| samples[below(&mut random, samples.len())]).collect();
            quantile(&sorted(&drawn), 0.5)
        };
        let ratios: Vec<f64> = (0..RESAMPLES).map(|_| drawn(samples) / drawn(base)).collect();
        let ratios = sorted(&ratios);
        let found = Self { of_medians, low: quantile(&ratios, 0.025), high: quantile(&ratios, 0.975) };
        [found.of_medians, found.low, found.high].iter().all(|value| value.is_finite()).then_some(found)
    }
}

/// The two-sided 95 % quantile of Student's t: Cornish and Fisher's expansion about the normal one
/// (Abramowitz and Stegun 26.7.5).
fn student(freedom: usize) -> f64 {
    if let Some(quantile) = freedom.checked_sub(1).and_then(|index| FEW.get(index)) {
        return *quantile;
    }
    let (z, n): (f64, f64) = (1.959_964, freedom as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / n + second / n.powi(2) + third / n.powi(3)
}

/// A number below `most`; its bias of most / 2⁶⁴ is nothing beside the samples' own noise.
fn below(random: &mut ChaCha8Rng, most: usize) -> usize {
    (random.next_u64() % most as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures are NumPy 2.4's and SciPy's: mean, std(ddof=1), min, median, percentile(…, 99),
    /// t.interval(0.95, …).
    #[test]
    fn summaries_are_numpys() {
        let summary = Summary::of(&[10.2, 9.8, 10.5, 10.1, 9.9, 10.0, 10.3, 9.7, 10.4, 12.6]).unwrap();
        let [low, high] = summary.confidence.unwrap();
        let std = summary.std.unwrap();
        for (found, expected) in [
            (summary.mean, 10.35),
            (std, 0.831_664_966_6),
            (summary.min, 9.7),
            (summary.median, 10.15),
            (summary.p99, 12.411),
            (low, 9.755_062_7),
            (high, 10.944_937_3),
        ] {
            assert!((found - expected).abs() < 2e-4, "{found} is not {expected}");
        }
        assert!(!summary.is_noisy());
        assert!(Summary::of(&[1.0, 1.0, 1.4]).unwrap().is_noisy());
    }

    #[test]
    fn students_quantiles_are_scipys() {
        for (freedom, expected) in [(1, 12.7062), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423), (100, 1.9840)] {
            assert!((student(freedom) - expected).abs() < 0.003, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn few_samples_say_little() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN]), None);
        let one = Summary::of(&[2.0]).unwrap();
        assert_eq!((one.mean, one.median, one.p99, one.std, one.confidence), (2.0, 2.0, 2.0, None, None));
        assert!(!one.is_noisy());
    }

    #[test]
    fn ratios_have_an_interval_that_holds_them() {
        let (fast, slow) = ([1.0, 1.1, 0.9, 1.05, 0.95], [2.0, 2.2, 1.8, 2.1, 1.9]);
        let ratio = Ratio::of(&fast, &slow).unwrap();
        assert!((ratio.of_medians - 0.5).abs() < 1e-12);
        assert!(ratio.low < 0.5 && 0.5 < ratio.high && ratio.low > 0.4 && ratio.high < 0.62, "{ratio:?}");
        assert_eq!(Ratio::of(&fast, &slow), Some(ratio));
        assert_eq!(Ratio::of(&fast, &[]), None);
        assert_eq!(Ratio::of(&fast, &[0.0]), None);
    }
}
