//! `tilewright policy bench`: the cost of a policy's calls.

use std::{io::Write, time::Duration};

use tilewright_kit::measure::{self, Beside, Call, Estimates, Lasting, Options, Report};
use tilewright_plan::{bytes, words::with_noun};

use crate::{args::BenchPolicy, failure::Outcome, printer, table, tell::tell};

/// The ratio of mean to typical time above which the machine is to blame.
const NOISY: f64 = 1.5;

/// Measures one policy.
pub fn run(arguments: &BenchPolicy) -> Outcome {
    let BenchPolicy { policy, set, iterations, loaded } = arguments;
    let options = Options { iterations: *iterations, limits: loaded.grants.limits(), ..Options::default() };
    let module = super::verify(&super::host(loaded.grants)?, policy)?;
    let report = measure::measure(&|host| module.load(host), set, &options)?;
    warn(&report);
    if loaded.json {
        return printer::json(&report);
    }
    let mut stdout = printer::stdout();
    writeln!(stdout, "{}\n", table::facts(facts(&report)))?;
    let numbers = ["runs", "mean", "± std", "least", "median", "p99", "typical", "per second", "fuel", "most fuel"];
    let heading: Vec<&str> = std::iter::once("warm").chain(numbers).collect();
    writeln!(stdout, "{}", table::listing(&heading, &numbers, report.calls.iter().map(row)))?;
    write_decisions(&mut stdout, report.estimates.as_ref(), &report.lasting)?;
    for Beside { heading, decisions, .. } in &report.beside {
        let Some(decisions) = decisions else { continue };
        let heading: Vec<&str> = std::iter::once(*heading).chain(numbers).collect();
        writeln!(stdout, "\n{}", table::listing(&heading, &numbers, decisions.calls.iter().map(row)))?;
        write_decisions(&mut stdout, decisions.estimates.as_ref(), &decisions.lasting)?;
    }
    Ok(())
}

/// The parts of a decision.
fn write_decisions(stdout: &mut impl Write, estimates: Option<&Estimates>, lasting: &Lasting) -> std::io::Result<()> {
    if let Some(estimates) = estimates {
        writeln!(
            stdout,
            "\nOf a decision, {} go into {:.1} estimates by the host, and {} are the policy's and what it takes to ask it.",
            time(estimates.host_ns),
            estimates.count,
            time(estimates.beside_ns),
        )?;
    }
    let beside = match estimates {
        Some(_) => format!(", {} of it beside the host's estimates", time(lasting.beside_ns)),
        None => String::new(),
    };
    writeln!(stdout, "\nIn an instance that lasts, a decision takes {}{beside}.", time(lasting.typical_ns))
}

fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let cold = &report.cold;
    let load = format!("{} compiled anew, {} from the cache", time(cold.load_ns), time(cold.cached_ns));
    let first = format!(
        "instance {}, configure {}, decide {}",
        time(cold.instantiate_ns),
        time(cold.configure_ns),
        time(cold.decide_ns)
    );
    let memory = format!(
        "{} in an instance, {} of compiled code",
        bytes::display(report.memory.linear_bytes as u64),
        bytes::display(report.memory.code_bytes as u64)
    );
    vec![
        ("policy", format!("{} {}", report.policy, report.version)),
        ("size", bytes::display(report.size_bytes)),
        ("memory", memory),
        ("load", load),
        ("first", first),
        (
            "decisions",
            format!(
                "{} per second and core, over {}",
                group_thousands(report.decisions_per_second),
                with_noun(report.requests, "request")
            ),
        ),
    ]
}

fn row(call: &Call) -> Vec<String> {
    let spread = &call.time;
    vec![
        call.function.to_string(),
        spread.runs.to_string(),
        time(spread.mean_ns),
        time(spread.std_ns),
        time(spread.min_ns),
        time(spread.median_ns),
        time(spread.p99_ns),
        time(call.typical_ns),
        group_thousands(call.per_second),
        group_thousands(call.fuel_mean),
        group_thousands(call.fuel_most as f64),
    ]
}

/// Warns of circumstances that distort the figures.
fn warn(report: &Report) {
    for call in &report.calls {
        let function = call.function;
        if call.failed > 0 {
            tell!(
                "warning: {function} failed in {} of {}: see 'tilewright policy check'",
                call.failed,
                with_noun(call.time.runs, "run")
            );
        }
        if call.declined > 0 {
            let (declined, runs) = (call.declined, with_noun(call.time.runs, "run"));
            tell!("warning: {function} was declined in {declined} of {runs}: their time holds the host's own plan");
        }
    }
    let is_noisy = |call: &&Call| call.time.mean_ns > NOISY * call.typical_ns;
    if let Some(call) = report.calls.iter().find(is_noisy) {
        let (function, mean, typical) = (call.function, time(call.time.mean_ns), time(call.typical_ns));
        tell!("warning: {function} takes {mean} on average but {typical} typically: the machine is busy");
    }
}

/// Nanoseconds for people: `850 ns`, `1.23 µs`, `12.3 ms`.
fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        _ if !nanoseconds.is_finite() => "unknown".into(),
        _ if nanoseconds < 1e3 => format!("{nanoseconds:.0} ns"),
        _ if nanoseconds < 1e5 => format!("{:.2} µs", nanoseconds / 1e3),
        _ => table::time(Duration::from_nanos(nanoseconds as u64)),
    }
}

/// A whole number with its thousands apart: `212,345`.
fn group_thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let first = digits.len() % 3;
    let places = digits.char_indices();
    places.fold(String::new(), |text, (place, digit)| {
        let comma = if place > 0 && place % 3 == first { "," } else { "" };
        text + comma + &digit.to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(
            ["0", "7", "999", "1,000", "212,345", "1,234,567"],
            [0.0, 7.0, 999.0, 1e3, 212_345.0, 1_234_567.0].map(group_thousands)
        );
        let times = [840.0, 1234.0, 45_678.0, 123_456.0, 45e6, f64::NAN].map(time);
        assert_eq!(times, ["840 ns", "1.23 µs", "45.68 µs", "0.12 ms", "45 ms", "unknown"]);
    }
}
