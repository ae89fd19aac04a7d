//! The places of values along an axis.

use crate::Axis;

/// The range of an axis.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a> {
    axis: &'a Axis,
    from: f64,
    to: f64,
}

impl<'a> Scale<'a> {
    /// From zero, or from just below the least value if the axis is logarithmic; never empty.
    pub fn of(axis: &'a Axis, values: impl Iterator<Item = f64>) -> Self {
        let ticks = axis.ticks.iter().copied().filter(|_| !axis.logarithmic);
        let (least, most) = values
            .chain(ticks)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        let (from, to) = match axis.logarithmic {
            true if least <= most => {
                // The lines of ticks are read as the plane's edges: no value lies beyond the last.
                let below = axis.ticks.iter().copied().filter(|tick| *tick <= least).fold(f64::NAN, f64::max);
                let above = axis.ticks.iter().copied().filter(|tick| *tick >= most).fold(f64::NAN, f64::min);
                ((least / 1.3).min(below), (most * 1.3).max(above))
            }
            true => (1.0, 10.0),
            false if least < 0.0 || most > 0.0 => (least.min(0.0) * 1.08, most.max(0.0) * 1.08),
            false => (0.0, 1.0),
        };
        Self { axis, from, to }
    }

    /// The range that holds both.
    pub fn and(self, other: Self) -> Self {
        Self { from: self.from.min(other.from), to: self.to.max(other.to), ..self }
    }

    /// The ends of the range.
    pub fn ends(&self) -> [f64; 2] {
        [self.from, self.to]
    }

    /// The place of a value: 0 at the start, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        let of = |value: f64| if self.axis.logarithmic { value.log10() } else { value };
        (of(value) - of(self.from)) / (of(self.to) - of(self.from))
    }

    /// At most this many values to label, with their words.
    pub fn ticks(&self, most: f64) -> Vec<(f64, String)> {
        let decades = (self.to / self.from).log10();
        let ticks = if !self.axis.ticks.is_empty() {
            self.axis.ticks.clone()
        } else if self.axis.logarithmic && decades > 1.0 {
            let steps: &[f64] = if decades > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power))).collect()
        } else {
            let step = round_up((self.to - self.from) / most);
            let first = (self.from / step).ceil();
            (0..=most as u32).map(|tick| (first + f64::from(tick)) * step).collect()
        };
        let shown: Vec<f64> = ticks.into_iter().filter(|tick| (self.from..=self.to).contains(tick)).collect();
        let stride = (shown.len() as f64 / most).ceil().max(1.0) as usize;
        shown.into_iter().step_by(stride).map(|tick| (tick, (self.axis.words)(tick))).collect()
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn round_up(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|round| *round >= step * 0.999).unwrap_or(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_not_too_many() {
        let ticks = |axis: Axis, ends: [f64; 2]| {
            Scale::of(&axis, ends.into_iter()).ticks(5.0).into_iter().map(|(_, words)| words).collect::<Vec<_>>()
        };
        assert_eq!(ticks(Axis::linear(""), [3.0, 90.0]), ["0", "20", "40", "60", "80"]);
        assert_eq!(ticks(Axis::linear(""), [-2.0, 3.0]), ["-2", "0", "2"]);
        assert_eq!(ticks(Axis::logarithmic(""), [1.0, 1e6]), ["1", "100", "10000", "1e6"]);
        assert_eq!(ticks(Axis::logarithmic(""), [3.0, 50.0]), ["5", "10", "20", "50"]);
        assert_eq!(ticks(Axis::logarithmic(""), [30.0, 50.0]), ["30", "40", "50", "60"]);
        let given = Axis { ticks: vec![1.0, 60.0, 3600.0], ..Axis::logarithmic("") };
        assert_eq!(ticks(given.clone(), [2.0, 100.0]), ["1", "60", "3600"]);
        assert_eq!(ticks(given, [0.5, 7200.0]), ["1", "60", "3600"], "there are no ticks beyond");
    }

    #[test]
    fn a_range_is_never_empty() {
        for values in [vec![], vec![0.0], vec![5.0], vec![-5.0]] {
            for axis in [Axis::linear(""), Axis::logarithmic("")] {
                let placed: Vec<f64> = values.iter().copied().filter(|value| axis.has_place(*value)).collect();
                let [from, to] = Scale::of(&axis, placed.iter().copied()).ends();
                assert!(from < to, "{values:?}");
            }
        }
    }
}
