//! Mean, deviation and order statistics of times.

use serde::Serialize;

/// The distribution of times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The number of runs.
    pub runs: usize,
    /// Their mean.
    pub mean_ns: f64,
    /// Their standard deviation.
    pub std_ns: f64,
    /// The least.
    pub min_ns: f64,
    /// The median.
    pub median_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
}

impl Spread {
    /// The distribution of these times, which it sorts. All zero if there are none.
    pub fn of(times: &mut [f64]) -> Self {
        times.sort_by(f64::total_cmp);
        let runs = times.len();
        let count = runs.max(1) as f64;
        let mean_ns = times.iter().sum::<f64>() / count;
        let std_ns = (times.iter().map(|time| (time - mean_ns).powi(2)).sum::<f64>() / count).sqrt();
        let rank = |share: f64| times.get(((runs as f64 * share).ceil() as usize).saturating_sub(1)).copied();
        Self {
            runs,
            mean_ns,
            std_ns,
            min_ns: times.first().copied().unwrap_or(0.0),
            median_ns: rank(0.5).unwrap_or(0.0),
            p99_ns: rank(0.99).unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let mut times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&mut times);
        assert_eq!((spread.runs, spread.mean_ns, spread.min_ns), (100, 50.5, 1.0));
        assert_eq!((spread.median_ns, spread.p99_ns), (50.0, 99.0));
        assert!((spread.std_ns - 28.866).abs() < 0.001);
        let one = Spread::of(&mut [7.0]);
        assert_eq!((one.mean_ns, one.std_ns, one.median_ns, one.p99_ns), (7.0, 0.0, 7.0, 7.0));
        assert_eq!(Spread::of(&mut []).mean_ns, 0.0);
    }
}
