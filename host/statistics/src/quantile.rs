//! Order statistics.

/// The quantile of ascending samples, linear between neighbours, as NumPy does by default. At least
/// one sample is needed.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

/// The samples, ascending.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The median, the mean of two in the middle; none for no samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The median, the lower one of two in the middle; none for no values.
pub fn lower_median<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        let samples: [&[f64]; 4] = [&[], &[3.0], &[300.0, 100.0], &[5.0, 1.0, 2.0]];
        assert_eq!(samples.map(median), [None, Some(3.0), Some(200.0), Some(2.0)]);
        assert_eq!(
            [vec![], vec![4, 1], vec![5, 1, 2]].map(|values| lower_median(values.into_iter())),
            [None, Some(1), Some(2)]
        );
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
    }
}
