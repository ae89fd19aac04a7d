//! `tilewright policy diff`: the decisions in which two policies differ, and their predicted cost.

use std::io::Write;

use tilewright_kit::compare::{self, CompareError, Comparison, Contender, Difference, Field};
use tilewright_plan::{PolicyIdentity, bytes, words::with_noun};

use crate::{
    args,
    failure::{Failure, Outcome},
    printer, table,
};

impl From<CompareError> for Failure {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Policy(error) => error.into(),
            _ => Failure::Input(error.into()),
        }
    }
}

/// Compares two policies.
pub fn run(arguments: &args::Diff) -> Outcome {
    let host = super::host(arguments.loaded.grants)?;
    let find = |policy: &str| Ok::<_, Failure>(super::verify(&host, policy)?.load(&host)?);
    let (a, b) = (find(&arguments.a)?, find(&arguments.b)?);
    let a = Contender { policy: &a, settings: &arguments.set_a };
    let b = Contender { policy: &b, settings: &arguments.set_b };
    let comparison = match &arguments.records {
        None => compare::on_golden(a, b)?,
        Some(path) => compare::on_records(a, b, &path.display().to_string(), &compare::read(path)?)?,
    };
    if arguments.loaded.json {
        return printer::json(&comparison);
    }
    show(&comparison)
}

fn show(comparison: &Comparison) -> Outcome {
    let mut stdout = printer::stdout();
    let (a, b) = (describe(&comparison.a, &comparison.b), describe(&comparison.b, &comparison.a));
    let Comparison { requests, compared, alike, worth, prices, differences, .. } = comparison;
    let from = match comparison.requests_from.as_str() {
        "golden" => "the golden set".to_owned(),
        file => file.to_owned(),
    };
    let mut facts = vec![
        ("A", a),
        ("B", b),
        ("asked", format!("{} of {from}, {}", with_noun(*requests, "request"), with_noun(*compared, "decision"))),
        ("alike", format!("{alike} of {compared}")),
    ];
    if differences.is_empty() {
        return Ok(writeln!(stdout, "{}", table::facts(facts))?);
    }
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), times);
    facts.push((
        "time",
        format!(
            "{} against {}, B takes {}; typically {}",
            table::milliseconds(worth.a_ms),
            table::milliseconds(worth.b_ms),
            ratio(worth.time_ratio),
            ratio(worth.typical_time_ratio)
        ),
    ));
    facts.push((
        "memory",
        format!(
            "{} against {}, B takes {}; typically {}",
            bytes::display(worth.a_bytes),
            bytes::display(worth.b_bytes),
            ratio(worth.memory_ratio),
            ratio(worth.typical_memory_ratio)
        ),
    ));
    if worth.only_a_over_limit + worth.only_b_over_limit > 0 {
        facts.push((
            "over the limit",
            format!(
                "only A's plan {}, only B's {}",
                with_noun(worth.only_a_over_limit, "time"),
                with_noun(worth.only_b_over_limit, "time")
            ),
        ));
    }
    let origins = [
        (prices.recorded, "recorded"),
        (prices.scaled, "by formula, scaled to the records"),
        (prices.formula, "by formula"),
    ];
    let origins: Vec<String> =
        origins.iter().filter(|(count, _)| *count > 0).map(|(count, origin)| format!("{count} {origin}")).collect();
    facts.push(("prices", format!("{} (sums and ratios are of the decisions that differ)", origins.join(", "))));
    writeln!(stdout, "{}\n", table::facts(facts))?;
    let heading = ["request", "call", "A", "B", "time", "memory"];
    writeln!(stdout, "{}", table::wrap(&heading, &["time", "memory"], differences.iter().map(row)))?;
    Ok(())
}

/// The policy, with the settings that tell it from the other if both are the same policy.
fn describe(one: &PolicyIdentity, other: &PolicyIdentity) -> String {
    let unlike = one.settings.iter().filter(|(name, value)| other.settings.get(*name) != Some(value));
    let settings: Vec<String> = unlike.map(|(name, value)| format!("{name}={value}")).collect();
    match one.digest == other.digest && !settings.is_empty() {
        true => format!("{} {} with {}", one.name, one.version, settings.join(", ")),
        false => format!("{} {} ({})", one.name, one.version, &one.digest[..one.digest.len().min(19)]),
    }
}

fn row(difference: &Difference) -> Vec<String> {
    let said = |of: fn(&Field) -> &str, fallback: bool, fits: Option<bool>| {
        let fields: Vec<String> = difference
            .fields
            .iter()
            .map(|field| match field.name {
                // These fields need no name.
                "space" | "precision" | "layout" => of(field).to_owned(),
                name => format!("{name} {}", of(field)),
            })
            .collect();
        let mut text = fields.join(", ");
        if fits == Some(false) {
            text += ", over the limit";
        }
        if fallback {
            text += " (the host's default)";
        }
        text
    };
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), times);
    let Difference { request, call, a, b, time_ratio, memory_ratio, .. } = difference;
    vec![
        request.clone(),
        call.to_string(),
        said(|field| &field.a, a.fallback.is_some(), a.fits),
        said(|field| &field.b, b.fallback.is_some(), b.fits),
        ratio(*time_ratio),
        ratio(*memory_ratio),
    ]
}

/// `0.52×`, `1.3×`, `12×`.
fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio >= 9.95 => format!("{ratio:.0}×"),
        _ if ratio >= 0.095 => format!("{ratio:.2}×"),
        _ => format!("{ratio:.3}×"),
    }
}
