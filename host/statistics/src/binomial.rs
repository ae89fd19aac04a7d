//! Exact tails of the binomial distribution, for counts of at most some thousands.

/// The probability of at least `hits` successes in `trials` independent trials of probability `p`.
pub fn at_least(hits: u32, trials: u32, p: f64) -> f64 {
    (hits..=trials).map(|k| mass(k, trials, p)).sum::<f64>().min(1.0)
}

/// The probability of at most `hits` successes.
pub fn at_most(hits: u32, trials: u32, p: f64) -> f64 {
    (0..=hits.min(trials)).map(|k| mass(k, trials, p)).sum::<f64>().min(1.0)
}

fn mass(k: u32, n: u32, p: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 {
        return f64::from(u8::from((p <= 0.0 && k == 0) || (p >= 1.0 && k == n)));
    }
    let choose: f64 = (0..k).map(|i| (f64::from(n - i) / f64::from(k - i)).ln()).sum();
    (choose + f64::from(k) * p.ln() + f64::from(n - k) * (1.0 - p).ln()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_scipys() {
        // Expected values are the sums of comb(n, i) pⁱ (1 − p)ⁿ⁻ⁱ in Python.
        for (k, n, p, above, below) in [
            (8, 8, 0.5, 0.00390625, 1.0),
            (14, 16, 0.5, 0.0020904541, 0.9997406006),
            (2, 16, 0.5, 0.9997406006, 0.0020904541),
            (3, 10, 0.02, 0.0008639063, 0.9999694942),
            (80, 128, 0.5, 0.0029626033, 0.9983129075),
            (0, 5, 0.3, 1.0, 0.16807),
        ] {
            assert!((at_least(k, n, p) - above).abs() < 1e-8, "{k} {n} {}", at_least(k, n, p));
            assert!((at_most(k, n, p) - below).abs() < 1e-8, "{k} {n} {}", at_most(k, n, p));
        }
    }

    #[test]
    fn certainties_are_certain() {
        assert_eq!((at_least(0, 0, 0.5), at_most(0, 0, 0.5)), (1.0, 1.0));
        assert_eq!((at_least(1, 4, 0.0), at_least(4, 4, 1.0), at_most(3, 4, 1.0)), (0.0, 1.0, 0.0));
    }
}
