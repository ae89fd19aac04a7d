//! Results of measurements as reports with charts.

use tilewright_bench::{Report, Row, suite::SuiteReport, sweep::SweepReport};
use tilewright_plan::{Device, bytes, words::with_noun};
use tilewright_plot::{Axis, Chart, Form, Lines, Page, Series};

use super::tables;

const MIB: f64 = 1024.0 * 1024.0;

/// A contest's report.
pub fn contest(report: &Report) -> Page {
    let mut facts = device(&report.device);
    if let Some(request) = &report.request {
        let frames = if request.frames > 1 { format!(", {} frames", request.frames) } else { String::new() };
        let size = format!("{} × {}×{}{frames}", request.batch, request.width, request.height);
        facts.push(("request".into(), format!("{size}, {}", request.model.family)));
        facts.push(("limit".into(), bytes::display(request.memory_limit)));
    }
    facts.push((
        "runs".into(),
        format!("first apart, {} warm-up, {} counted, in turns", report.warmup, report.iterations),
    ));
    let table = [tables::HEADING.map(str::to_owned).to_vec()].into_iter().chain(report.runs.iter().map(tables::cells));
    Page { title: "Tilewright bench".into(), facts, table: table.collect(), charts: charts(report, "") }
}

fn charts(report: &Report, case: &str) -> Vec<Chart> {
    let labelled = || report.runs.iter().filter(|row| !row.samples_ms.is_empty());
    let drift = |row: &Row| Series {
        name: row.policy.clone(),
        points: row.samples_ms.iter().enumerate().map(|(index, sample)| (index as f64 + 1.0, *sample)).collect(),
    };
    let memory = |row: &Row| Series {
        name: row.policy.clone(),
        points: row
            .peak_bytes
            .zip(row.median_ms)
            .map(|(peak, median)| (peak as f64 / MIB, median))
            .into_iter()
            .collect(),
    };
    vec![
        Chart::Rows {
            title: format!("{case}Time per policy (lower is better)"),
            axis: Axis::linear("time, ms"),
            rows: labelled().map(|row| (row.policy.clone(), row.samples_ms.clone())).collect(),
            form: Form::Box,
        },
        Chart::Plane {
            title: format!("{case}Time over iterations"),
            x: Axis::linear("iteration"),
            y: Axis::linear("time, ms"),
            series: labelled().map(drift).collect(),
            lines: Lines::Series,
        },
        Chart::Plane {
            title: format!("{case}Memory against time"),
            x: Axis::linear("most held, MiB"),
            y: Axis::linear("median time, ms"),
            series: labelled().map(memory).collect(),
            lines: Lines::None,
        },
    ]
}

/// The suite's report: the claims, and a chart per case.
pub fn suite(report: &SuiteReport) -> Page {
    let mut facts = device(&report.device);
    facts.push(("weights".into(), report.weights.clone()));
    let table = [tables::CLAIMS.map(str::to_owned).to_vec()].into_iter().chain(tables::claims(report));
    let cases = report.cases.iter().filter_map(|case| Some((case, case.report.as_ref()?)));
    let charts = cases.map(|(case, found)| charts(found, &format!("{}: ", case.what)).swap_remove(0));
    Page { title: "Tilewright bench suite".into(), facts, table: table.collect(), charts: charts.collect() }
}

/// A sweep's report: estimates against measurements, and time against memory per size.
pub fn sweep(report: &SweepReport) -> Page {
    let mut facts = device(&report.device);
    facts.push(("policy".into(), report.policy.clone()));
    facts.extend(tables::honesty(report).into_iter().skip(1).map(|line| ("estimates".to_owned(), line)));
    let table = [tables::CASES.map(str::to_owned).to_vec()].into_iter().chain(tables::cases(report)).collect();
    type Pick<'a> = &'a dyn Fn(&tilewright_bench::sweep::PlanRow) -> Option<(f64, f64)>;
    // A space's first word is its kind.
    let series = |pick: Pick<'_>| -> Vec<Series> {
        let of = |kind: &str| Series {
            name: kind.to_owned(),
            points: report
                .plans
                .iter()
                .filter(|row| row.plan.space.to_string().starts_with(kind))
                .filter_map(pick)
                .collect(),
        };
        ["whole", "exact", "blended"].map(of).into()
    };
    let time: Pick<'_> = &|row| Some((row.elapsed_ms?, row.estimate?.elapsed.as_secs_f64() * 1e3));
    let peak: Pick<'_> = &|row| Some((row.peak_bytes? as f64 / MIB, row.estimate?.peak_bytes as f64 / MIB));
    let mut charts = vec![
        Chart::Plane {
            title: "Time: estimated against measured".into(),
            x: Axis::logarithmic("measured time, ms"),
            y: Axis::logarithmic("estimated time, ms"),
            series: series(time),
            lines: Lines::Diagonal,
        },
        Chart::Plane {
            title: "Memory: estimated against measured".into(),
            x: Axis::logarithmic("measured peak, MiB"),
            y: Axis::logarithmic("estimated peak, MiB"),
            series: series(peak),
            lines: Lines::Diagonal,
        },
    ];
    let mut sizes: Vec<(u32, u32)> = report.plans.iter().map(|row| (row.width, row.height)).collect();
    sizes.dedup();
    for (width, height) in sizes {
        let held = |row: &tilewright_bench::sweep::PlanRow| {
            let here = (row.width, row.height) == (width, height);
            Some((row.peak_bytes.filter(|_| here)? as f64 / MIB, row.elapsed_ms?))
        };
        let mut plans = series(&held);
        let cases = report.cases.iter().filter(|case| (case.width, case.height) == (width, height));
        let chosen = cases.filter_map(|case| case.chosen.as_ref());
        plans.push(Series {
            name: format!("chosen by {}", report.policy),
            points: chosen.map(|choice| (choice.peak_bytes as f64 / MIB, choice.elapsed_ms)).collect(),
        });
        charts.push(Chart::Plane {
            title: format!("{width}×{height}: memory against time, every plan"),
            x: Axis::linear("most held, MiB"),
            y: Axis::linear("median time, ms"),
            series: plans,
            lines: Lines::None,
        });
    }
    Page { title: "Tilewright bench sweep".into(), facts, table, charts }
}

fn device(device: &Device) -> Vec<(String, String)> {
    vec![("device".into(), format!("{} ({}, {})", device.name, device.arch, with_noun(device.compute_units, "unit")))]
}
