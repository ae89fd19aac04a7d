"""Median, deviation and the median's interval of a contestant's samples."""

import statistics

import numpy as np

RESAMPLES, SEED = 10_000, 20261121
# Above this share of the mean a spread is flagged, as `tilewright bench` does.
NOISY = 0.10


def summary(samples):
    """Seconds in, seconds out; the interval is the bootstrap's, 95 %, of the median."""
    values = np.asarray(samples)
    drawn = np.random.default_rng(SEED).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    std = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return {"n": len(samples), "median_s": statistics.median(samples), "mean_s": statistics.fmean(samples), "std_s": std,
            "low_s": float(low), "high_s": float(high), "min_s": min(samples), "noisy": std > NOISY * statistics.fmean(samples)}
