//! A simulation as a report with charts.

use tilewright_kit::simulate::{PolicyRow, RequestRow, Simulation};
use tilewright_plan::Objective;
use tilewright_plot::{Axis, Chart, Lines, Page, Series};

use crate::table::headed;

/// The page.
pub fn of(report: &Simulation) -> Page {
    let device = &report.device;
    let facts = [
        ("device", format!("{} ({}), as a table", device.name, device.arch)),
        ("workload", super::extent(report)),
        ("cases", report.cases.join("; ")),
        ("measured", report.about.clone()),
    ];
    let heading = ["policy", "done", "failed", "attempts failed", "not in table", "stood in", "mean regret", "worst"];
    // The charts show time and memory.
    let row = |mut row: Vec<String>| {
        row.drain(6..9);
        row
    };
    let charts = vec![
        Chart::plane(
            "Cumulative regret against the best plan in the table, by each request's objective",
            ["requests", "regret, multiples of the best"].map(Axis::linear),
            lines(report, |row| row.regret),
            Lines::Series,
        ),
        Chart::plane(
            "Cumulative time over the best plan's, failed attempts included; leanest aside",
            ["requests", "time, s"].map(Axis::linear),
            lines(report, |row| {
                // For the leanest plan, time is no measure.
                let best = row.best.as_ref().filter(|_| row.objective != Objective::Leanest)?;
                Some((row.elapsed_ms? + row.lost_ms - best.elapsed_ms) / 1e3)
            }),
            Lines::Series,
        ),
        Chart::boxes(
            "Regret of each request",
            "regret, multiples of the best",
            report
                .policies
                .iter()
                .map(|row| (row.label.clone(), row.requests.iter().filter_map(|row| row.regret).collect())),
        ),
    ];
    Page {
        title: format!("Policies on {}", report.table),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        table: headed(&heading, super::rows(report, 1).map(row)),
        charts,
    }
}

/// A sum that grows request by request, per policy; unknown values add nothing.
fn lines(report: &Simulation, value: impl Fn(&RequestRow) -> Option<f64>) -> Vec<Series> {
    let line = |policy: &PolicyRow| {
        let mut sum = 0.0;
        let point = |(index, row): (usize, &RequestRow)| {
            sum += value(row).unwrap_or(0.0);
            ((index + 1) as f64, sum)
        };
        Series { name: policy.label.clone(), points: policy.requests.iter().enumerate().map(point).collect() }
    };
    report.policies.iter().map(line).collect()
}
