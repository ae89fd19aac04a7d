//! The best plan by an objective, and the errors of estimates against measurements.

use serde::Serialize;
use tilewright_plan::{Dtype, Objective, Precision, Space};
use tilewright_statistics::{quantile, sorted};

use super::{Choice, PlanRow};

/// Leeway on the time that `leanest` allows, since both times are measured.
const LEEWAY: f64 = 1.10;

/// Sides of blended tiles that are counted while any of them, or an exact plan, fits.
const LEAST_TILE: u32 = 256;

/// Bars of the estimates: peak and time at the 90th percentile, and how far a peak may be too low.
const PEAK_BAR: f64 = 0.15;
const TIME_BAR: f64 = 0.25;
const TOO_LOW_BAR: f64 = -0.05;

/// The standard that a case's plans are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    pub objective: Objective,
    pub memory_limit: u64,
    /// Plans in f32 alone count where any of them fits.
    pub wide_only: bool,
    /// Blended plans count where exact ones fit.
    pub allows_blended: bool,
}

impl Judge {
    /// The best plan within the limit.
    pub fn best(&self, rows: &[PlanRow]) -> Option<Choice> {
        let mut fitting = self.fitting(rows);
        let quickest = quickest(&fitting)?;
        fitting.retain(|choice| self.objective.allows(choice.elapsed_ms, quickest));
        fitting.into_iter().min_by(|one, other| self.cost(one).total_cmp(&self.cost(other)))
    }

    fn fitting(&self, rows: &[PlanRow]) -> Vec<Choice> {
        let mut fitting: Vec<Choice> = rows.iter().filter_map(choice).collect();
        fitting.retain(|choice| choice.peak_bytes <= self.memory_limit);
        let is_wide = |choice: &Choice| choice.plan.precision == Precision::Uniform(Dtype::F32);
        // Seams show more than the rounding of a narrow type.
        if !self.allows_blended && fitting.iter().any(is_exact) {
            fitting.retain(is_exact);
        }
        if fitting.iter().any(is_sound) {
            fitting.retain(is_sound);
        }
        if self.wide_only && fitting.iter().any(is_wide) {
            fitting.retain(is_wide);
        }
        fitting
    }

    /// The cost of a plan by the objective; the least is best.
    pub fn cost(&self, choice: &Choice) -> f64 {
        self.objective.cost(choice.elapsed_ms, choice.peak_bytes, self.memory_limit)
    }

    /// True if a plan takes no longer than `leanest` allows.
    pub fn is_in_time(&self, choice: &Choice, rows: &[PlanRow]) -> bool {
        let quickest = quickest(&self.fitting(rows));
        quickest.is_none_or(|quickest| self.objective.allows(choice.elapsed_ms, LEEWAY * quickest))
    }
}

/// True if a plan's seams don't spoil the picture: smaller tiles count if nothing else fits.
fn is_sound(choice: &Choice) -> bool {
    match choice.plan.space {
        Space::Blended(tile) => tile.height.min(tile.width) >= LEAST_TILE,
        Space::Whole | Space::Exact(_) => true,
    }
}

fn is_exact(choice: &Choice) -> bool {
    !choice.plan.is_blended()
}

fn quickest(choices: &[Choice]) -> Option<f64> {
    choices.iter().map(|choice| choice.elapsed_ms).min_by(f64::total_cmp)
}

/// A row's measurement, where it has one.
pub fn choice(row: &PlanRow) -> Option<Choice> {
    Some(Choice { plan: row.plan.clone(), elapsed_ms: row.elapsed_ms?, peak_bytes: row.peak_bytes? })
}

/// A third of the least that whole in f32 holds: measured where it was, else estimated.
pub fn third_of_whole(rows: &[PlanRow]) -> Option<u64> {
    let whole = |row: &&PlanRow| row.plan.space == Space::Whole && row.plan.precision == Precision::Uniform(Dtype::F32);
    let held = |row: &PlanRow| row.peak_bytes.or(row.estimate.map(|estimate| estimate.peak_bytes));
    rows.iter().filter(whole).filter_map(held).min().map(|peak| peak / 3)
}

/// The error of one kind of estimate, as predicted / measured − 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    /// The 90th percentile of the absolute error.
    pub p90: Option<f64>,
    /// The most that an estimate was too low: negative, or zero and above where none was.
    pub lowest: Option<f64>,
    /// The most that one was too high.
    pub highest: Option<f64>,
    /// Within the bars.
    pub met: bool,
}

/// The errors of all estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Honesty {
    /// Plans that were both estimated and measured.
    pub plans: usize,
    /// Bars: 15 % at the 90th percentile, never more than 5 % too low.
    pub peak: Accuracy,
    /// Bar: 25 % at the 90th percentile.
    pub time: Accuracy,
}

impl Honesty {
    /// Over rows that were both estimated and measured.
    pub fn of(rows: &[PlanRow]) -> Self {
        let pairs: Vec<_> = rows.iter().filter_map(|row| Some((row.estimate?, choice(row)?))).collect();
        let error = |predicted: f64, measured: f64| predicted / measured.max(f64::MIN_POSITIVE) - 1.0;
        let peaks: Vec<f64> =
            pairs.iter().map(|(cost, found)| error(cost.peak_bytes as f64, found.peak_bytes as f64)).collect();
        let times: Vec<f64> =
            pairs.iter().map(|(cost, found)| error(cost.elapsed.as_secs_f64() * 1e3, found.elapsed_ms)).collect();
        Self {
            plans: pairs.len(),
            peak: accuracy(&peaks, PEAK_BAR, TOO_LOW_BAR),
            time: accuracy(&times, TIME_BAR, f64::NEG_INFINITY),
        }
    }
}

fn accuracy(errors: &[f64], bar: f64, lowest_bar: f64) -> Accuracy {
    if errors.is_empty() {
        return Accuracy::default();
    }
    let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    let (ordered, p90) = (sorted(errors), quantile(&sorted(&sizes), 0.9));
    let (lowest, highest) = (ordered[0], ordered[ordered.len() - 1]);
    Accuracy { p90: Some(p90), lowest: Some(lowest), highest: Some(highest), met: p90 <= bar && lowest >= lowest_bar }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tilewright_plan::{Cost, Layout, Plan, Tile};

    use super::*;

    fn row(side: u32, dtype: Dtype, elapsed_ms: f64, peak_bytes: u64, estimate: (f64, u64)) -> PlanRow {
        let space = match side {
            0 => Space::Whole,
            side => Space::Blended(Tile { height: side, width: side, overlap: 0 }),
        };
        let plan = Plan { space, precision: Precision::Uniform(dtype), layout: Layout::ChannelsLast, ..Plan::plain() };
        let elapsed = Duration::from_secs_f64(estimate.0 / 1e3);
        PlanRow {
            width: 512,
            height: 512,
            policy: String::new(),
            plan,
            elapsed_ms: Some(elapsed_ms),
            samples_ms: vec![elapsed_ms],
            peak_bytes: Some(peak_bytes),
            estimate: Some(Cost {
                peak_bytes: estimate.1,
                elapsed,
                tiles: 1,
                shapes: 1,
                rework: 1.0,
                weights_bytes: 0,
            }),
            error: None,
        }
    }

    fn rows() -> Vec<PlanRow> {
        vec![
            row(0, Dtype::F32, 100.0, 900, (110.0, 900)),
            row(256, Dtype::F32, 150.0, 400, (120.0, 360)),
            row(64, Dtype::F32, 500.0, 100, (500.0, 105)),
            row(128, Dtype::F32, 300.0, 200, (300.0, 210)),
            row(0, Dtype::Bf16, 50.0, 450, (50.0, 450)),
        ]
    }

    #[test]
    fn each_objective_has_its_best() {
        let judge = |objective, memory_limit| Judge { objective, memory_limit, wide_only: true, allows_blended: true };
        let best = |objective, limit| judge(objective, limit).best(&rows()).map(|best| best.elapsed_ms);
        assert_eq!(best(Objective::Fastest, 1000), Some(100.0));
        assert_eq!(best(Objective::Fastest, 300), Some(300.0));
        // Smaller tiles count where nothing else fits.
        assert_eq!(best(Objective::Leanest, 1000), Some(150.0));
        assert_eq!(best(Objective::Leanest, 300), Some(500.0));
        // 100 · 1.45 against 150 · 1.2.
        assert_eq!(best(Objective::Balanced, 1000), Some(100.0));
        assert_eq!(best(Objective::Fastest, 50), None);
        let any = Judge { wide_only: false, ..judge(Objective::Fastest, 1000) };
        assert_eq!(any.best(&rows()).unwrap().elapsed_ms, 50.0);
    }

    #[test]
    fn only_plans_that_are_allowed_compete() {
        let best = |objective, memory_limit| {
            let judge = Judge { objective, memory_limit, wide_only: true, allows_blended: false };
            judge.best(&rows()).map(|best| best.elapsed_ms)
        };
        // Tiles hold less than half, and bf16 less than f32: neither is the output that was asked
        // for.
        assert_eq!(best(Objective::Leanest, 1000), Some(100.0));
        assert_eq!(best(Objective::Balanced, 1000), Some(100.0));
        // The whole picture in bf16 comes before tiles in f32, and tiles where nothing else fits.
        assert_eq!(best(Objective::Fastest, 500), Some(50.0));
        assert_eq!(best(Objective::Fastest, 440), Some(150.0));
    }

    #[test]
    fn a_third_is_of_the_leanest_whole_decode_in_f32() {
        assert_eq!(third_of_whole(&rows()), Some(300));
        assert_eq!(third_of_whole(&rows()[1..4]), None);
    }

    /// The figures are NumPy's: percentile(|predicted / measured − 1|, 90).
    #[test]
    fn honesty_is_the_90th_percentile_and_the_worst() {
        let honesty = Honesty::of(&rows());
        assert_eq!(honesty.plans, 5);
        let close = |found: Option<f64>, expected: f64| assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}");
        close(honesty.peak.p90, 0.08);
        close(honesty.peak.lowest, -0.1);
        close(honesty.peak.highest, 0.05);
        close(honesty.time.p90, 0.16);
        assert!(!honesty.peak.met, "one estimate was 10 % too low");
        assert!(honesty.time.met);
        assert_eq!(Honesty::of(&[]), Honesty::default());
    }
}
