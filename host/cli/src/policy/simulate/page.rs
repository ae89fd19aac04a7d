//! A simulation as a report with charts.

use tilewright_kit::simulate::{PolicyRow, RequestRow, Simulation};
use tilewright_plan::{Objective, words::with_noun};
use tilewright_plot::{Axis, Chart, Form, Lines, Page, Series};

/// The page.
pub fn of(report: &Simulation) -> Page {
    let device = &report.device;
    let facts = [
        ("device", format!("{} ({}), as a table", device.name, device.arch)),
        (
            "workload",
            format!("{} over {}", with_noun(report.requests, "request"), with_noun(report.cases.len(), "case")),
        ),
        ("cases", report.cases.join("; ")),
        ("measured", report.about.clone()),
    ];
    let heading = ["policy", "done", "failed", "attempts failed", "not in table", "stood in", "mean regret", "worst"];
    let share = |regret: Option<f64>| regret.map(|regret| format!("{:.1} %", regret * 100.0)).unwrap_or_default();
    let row = |row: &PolicyRow| {
        vec![
            row.label.clone(),
            row.done.to_string(),
            row.failed.to_string(),
            row.failed_attempts.to_string(),
            row.not_in_table.to_string(),
            row.stood_in.to_string(),
            share(row.mean_regret),
            share(row.worst_regret),
        ]
    };
    let table = std::iter::once(heading.map(str::to_owned).to_vec()).chain(report.policies.iter().map(row));
    Page {
        title: format!("Policies on {}", report.table),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        table: table.collect(),
        charts: vec![
            Chart::Plane {
                title: "Cumulative regret against the best plan in the table, by each request's objective".into(),
                x: Axis::linear("requests"),
                y: Axis::linear("regret, multiples of the best"),
                series: lines(report, |row| row.regret),
                lines: Lines::Series,
            },
            Chart::Plane {
                title: "Cumulative time over the best plan's, failed attempts included; leanest aside".into(),
                x: Axis::linear("requests"),
                y: Axis::linear("time, s"),
                series: lines(report, |row| {
                    // For the leanest plan, time is no measure.
                    let best = row.best.as_ref().filter(|_| row.objective != Objective::Leanest)?;
                    Some((row.elapsed_ms? + row.lost_ms - best.elapsed_ms) / 1e3)
                }),
                lines: Lines::Series,
            },
            Chart::Rows {
                title: "Regret of each request".into(),
                axis: Axis::linear("regret, multiples of the best"),
                rows: report
                    .policies
                    .iter()
                    .map(|row| (row.label.clone(), row.requests.iter().filter_map(|row| row.regret).collect()))
                    .collect(),
                form: Form::Box,
            },
        ],
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
