//! Results of measurements as tables for people.

use tilewright_bench::{
    Ratio, Report, Row,
    suite::SuiteReport,
    sweep::{Choice, SweepReport},
};
use tilewright_plan::{Plan, Time, bytes, words::with_noun};

use crate::table;

/// The heading of contests, here and in reports.
pub const HEADING: [&str; 13] = [
    "policy",
    "plan",
    "first",
    "mean",
    "± std",
    "min",
    "median",
    "p99",
    "against first",
    "held",
    "max diff",
    "PSNR",
    "borders",
];

/// A contest: a row per policy, then notes on some.
pub fn contest(report: &Report) -> String {
    let mut text = table::listing(&HEADING, &HEADING[2..], report.runs.iter().map(cells));
    for row in &report.runs {
        for note in notes(row) {
            text += &format!("\n{}: {note}", row.policy);
        }
    }
    match &report.against {
        Some(against) => match &against.error {
            Some(error) => text += &format!("\n{error}"),
            None => text += &format!("\ndifferences are against {}", against.policy),
        },
        None => text += "\nno differences were asked for",
    }
    text
}

/// A row of [`HEADING`]'s columns.
pub fn cells(row: &Row) -> Vec<String> {
    let spread = match (row.std_ms, row.mean_ms) {
        (Some(std), Some(mean)) if mean > 0.0 => {
            format!("{:.1} %{}", 100.0 * std / mean, if row.noisy { " noisy" } else { "" })
        }
        _ => "–".into(),
    };
    let difference = |show: &dyn Fn(&tilewright_bench::Difference) -> Option<String>| {
        row.difference.as_ref().and_then(show).unwrap_or_else(|| "–".into())
    };
    vec![
        row.policy.clone(),
        or_dash(row.plan.as_ref(), plan),
        time(row.first_ms),
        time(row.mean_ms),
        spread,
        time(row.min_ms),
        time(row.median_ms),
        time(row.p99_ms),
        ratio(row.ratio),
        size(row.peak_bytes),
        difference(&|difference| Some(format!("{:.2e}", difference.max))),
        difference(&|difference| difference.psnr.map(|psnr| format!("{psnr:.1} dB"))),
        difference(&|difference| difference.border_over_inside.map(|ratio| format!("×{ratio:.2}"))),
    ]
}

/// Facts that a row's figures don't show.
fn notes(row: &Row) -> Vec<String> {
    let mut notes: Vec<String> = row.error.iter().map(|error| format!("failed: {error}")).collect();
    notes.extend(row.fallback.iter().map(|fallback| format!("the host's default ran instead ({fallback})")));
    notes.extend(row.adjusted.iter().cloned());
    if row.noisy {
        notes.push("noisy: the deviation is above 10 % of the mean".into());
    }
    if row.plans > 1 {
        notes.push(format!("{} different plans in the counted runs; the last is shown", row.plans));
    }
    if row.attempts > 0 {
        notes.push(format!("{} failed before others succeeded", with_noun(row.attempts, "attempt")));
    }
    notes
}

/// The suite: cases, then claims.
pub fn suite(report: &SuiteReport) -> String {
    let mut text = format!("{}; {}", report.device.name, report.weights);
    for case in &report.cases {
        text += &format!("\n\n{} ({})", case.id, case.what);
        let note = case.note.as_deref();
        match &case.report {
            Some(found) => {
                text += &format!("{}\n{}", note.map_or(String::new(), |note| format!(": {note}")), contest(found))
            }
            None => text += &format!(": {}", note.unwrap_or("not measured")),
        }
    }
    for workflow in &report.workflows {
        let heading = ["policy", "load", "sample", "step", "decode", "all", "held", ""];
        let rows = workflow.rows.iter().map(|row| {
            let held = size(row.peak_bytes);
            let error = row.error.clone().unwrap_or_default();
            let times = [row.load_ms, row.sample_ms, row.step_ms, row.decode_ms, row.total_ms].map(time);
            [row.policy.clone()].into_iter().chain(times).chain([held, error]).collect()
        });
        let steps = with_noun(workflow.steps, "step");
        text += &format!("\n\n{} ({}, {steps})\n", workflow.id, workflow.what);
        text += &table::listing(&heading, &heading[1..7], rows);
    }
    text + "\n\n" + &table::listing(&CLAIMS, &["published", "measured"], claims(report))
}

/// The heading of the claims.
pub const CLAIMS: [&str; 5] = ["claim", "published", "measured", "", "why"];

/// The claims' rows.
pub fn claims(report: &SuiteReport) -> Vec<Vec<String>> {
    let row = |claim: &tilewright_bench::suite::ClaimRow| {
        let measured = claim.measured.clone().unwrap_or_else(|| "–".into());
        vec![claim.claim.into(), claim.published.into(), measured, claim.verdict.to_string(), claim.why.clone()]
    };
    report.claims.iter().map(row).collect()
}

/// The heading of a sweep's cases.
pub const CASES: [&str; 8] = ["size", "limit", "objective", "best", "", "chosen", "", "ratio"];

/// A sweep: the cases, then the accuracy of the estimates.
pub fn sweep(report: &SweepReport) -> String {
    let mut text = table::listing(&CASES, &["ratio"], cases(report));
    let met = report.cases.iter().filter(|case| case.met).count();
    text += &format!(
        "\nwithin 10 % of the best plan and within the limit: {met} of {}\n\n",
        with_noun(report.cases.len(), "case")
    );
    text + &honesty(report).join("\n")
}

/// The cases' rows.
pub fn cases(report: &SweepReport) -> Vec<Vec<String>> {
    let choice = |choice: &Option<Choice>| match choice {
        Some(choice) => {
            [plan(&choice.plan), format!("{}, {}", time(Some(choice.elapsed_ms)), bytes::display(choice.peak_bytes))]
        }
        None => ["–".into(), String::new()],
    };
    let row = |case: &tilewright_bench::sweep::CaseRow| {
        let [best, best_cost] = choice(&case.best);
        let [chosen, chosen_cost] = choice(&case.chosen);
        let note = if case.note.is_empty() { String::new() } else { format!(" ({})", case.note) };
        vec![
            format!("{}×{}", case.width, case.height),
            format!("{} ({})", case.limit, bytes::display(case.memory_limit)),
            format!("{:?}", case.objective).to_lowercase(),
            best,
            best_cost,
            chosen,
            chosen_cost,
            verdict(case.met, case.ratio) + &note,
        ]
    };
    report.cases.iter().map(row).collect()
}

/// The estimates' errors beside their bounds, a line each.
pub fn honesty(report: &SweepReport) -> Vec<String> {
    let honesty = &report.honesty;
    vec![
        format!("estimates of {} against what was measured:", with_noun(honesty.plans, "plan")),
        format!(
            "peak  90th percentile off by {} (bar: 15 %), at worst {} (bar: −5 %): {}",
            percent(honesty.peak.p90),
            percent(honesty.peak.lowest),
            verdict(honesty.peak.met, None)
        ),
        format!(
            "time  90th percentile off by {} (bar: 25 %): {}",
            percent(honesty.time.p90),
            verdict(honesty.time.met, None)
        ),
    ]
}

/// A plan in a few words.
pub fn plan(plan: &Plan) -> String {
    let batch = if plan.batch > 1 { format!(" batch {}", plan.batch) } else { String::new() };
    let time = if plan.time == Time::Whole { String::new() } else { format!(" {}", plan.time) };
    format!("{}{time} {} {}{batch}", plan.space, plan.precision, plan.layout)
}

/// A figure in words, or a dash.
pub fn or_dash<T>(value: Option<T>, words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), words)
}

/// Milliseconds in the unit that fits.
pub fn time(milliseconds: Option<f64>) -> String {
    or_dash(milliseconds, table::milliseconds)
}

/// Bytes in the unit that fits.
pub fn size(bytes: Option<u64>) -> String {
    or_dash(bytes, bytes::display)
}

/// A share of one.
pub fn percent(share: Option<f64>) -> String {
    or_dash(share, |share| format!("{:.1} %", share * 100.0))
}

/// The ratio of times, and its likely bounds.
pub fn ratio(ratio: Option<Ratio>) -> String {
    or_dash(ratio, |ratio| format!("{:.3} ({:.3}–{:.3})", ratio.of_medians, ratio.low, ratio.high))
}

/// The verdict on a case, behind its ratio if that is known.
pub fn verdict(met: bool, ratio: Option<f64>) -> String {
    let verdict = if met { "met" } else { "not met" };
    ratio.map_or_else(|| verdict.to_owned(), |ratio| format!("{ratio:.3} {verdict}"))
}
