//! Results of measurements as reports with charts.

use tilewright_bench::{Report, Row, suite::SuiteReport, sweep::SweepReport};
use tilewright_plan::{Device, bytes, words::with_noun};
use tilewright_plot::{Axis, Chart, Lines, Page, Series};

use super::tables;
use crate::table::headed;

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
    let table = headed(&tables::HEADING, report.runs.iter().map(tables::cells));
    Page { title: "Tilewright bench".into(), facts, table, charts: charts(report, "") }
}

fn charts(report: &Report, case: &str) -> Vec<Chart> {
    let labelled = || report.runs.iter().filter(|row| !row.samples_ms.is_empty());
    let drift = |row: &Row| Series {
        name: row.policy.clone(),
        points: row.samples_ms.iter().enumerate().map(|(index, sample)| (index as f64 + 1.0, *sample)).collect(),
    };
    let memory = |row: &Row| memory(&row.policy, row.peak_bytes, row.median_ms);
    let times = labelled().map(|row| (row.policy.clone(), row.samples_ms.clone()));
    let iterations = ["iteration", "time, ms"].map(Axis::linear);
    let held = ["most held, MiB", "median time, ms"].map(Axis::linear);
    vec![
        Chart::boxes(format!("{case}Time per policy (lower is better)"), "time, ms", times),
        Chart::plane(format!("{case}Time over iterations"), iterations, labelled().map(drift), Lines::Series),
        Chart::plane(format!("{case}Memory against time"), held, labelled().map(memory), Lines::None),
    ]
}

/// The point of a policy that held some memory for some time.
pub fn memory(policy: &str, held: Option<u64>, ms: Option<f64>) -> Series {
    let point = held.zip(ms).map(|(held, ms)| (held as f64 / MIB, ms));
    Series { name: policy.to_owned(), points: point.into_iter().collect() }
}

/// The suite's report: the claims, and a chart per case.
pub fn suite(report: &SuiteReport) -> Page {
    let mut facts = device(&report.device);
    facts.push(("weights".into(), report.weights.clone()));
    let table = headed(&tables::CLAIMS, tables::claims(report));
    let cases = report.cases.iter().filter_map(|case| Some((case, case.report.as_ref()?)));
    let charts = cases.map(|(case, found)| charts(found, &format!("{}: ", case.what)).swap_remove(0));
    Page { title: "Tilewright bench suite".into(), facts, table, charts: charts.collect() }
}

/// A sweep's report: estimates against measurements, and time against memory per size.
pub fn sweep(report: &SweepReport) -> Page {
    let mut facts = device(&report.device);
    facts.push(("policy".into(), report.policy.clone()));
    facts.extend(tables::honesty(report).into_iter().skip(1).map(|line| ("estimates".to_owned(), line)));
    let table = headed(&tables::CASES, tables::cases(report));
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
    let times = ["measured time, ms", "estimated time, ms"].map(Axis::logarithmic);
    let peaks = ["measured peak, MiB", "estimated peak, MiB"].map(Axis::logarithmic);
    let mut charts = vec![
        Chart::plane("Time: estimated against measured", times, series(time), Lines::Diagonal),
        Chart::plane("Memory: estimated against measured", peaks, series(peak), Lines::Diagonal),
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
        let title = format!("{width}×{height}: memory against time, every plan");
        let axes = ["most held, MiB", "median time, ms"].map(Axis::linear);
        charts.push(Chart::plane(title, axes, plans, Lines::None));
    }
    Page { title: "Tilewright bench sweep".into(), facts, table, charts }
}

pub fn device(device: &Device) -> Vec<(String, String)> {
    vec![("device".into(), format!("{} ({}, {})", device.name, device.arch, with_noun(device.compute_units, "unit")))]
}
