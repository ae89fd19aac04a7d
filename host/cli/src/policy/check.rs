//! `tilewright policy check`: the gate that every policy passes, with all its findings.

use std::{collections::BTreeSet, io::Write};

use tilewright_gate::{Call, Finding, GoldenSet, Problem, Severity, State, Step, Verdict};
use tilewright_plan::bytes;

use crate::{
    args,
    failure::{Failure, Outcome},
    printer, table,
};

/// Checks one policy. A policy that does not pass is work that failed.
pub fn run(arguments: &args::Check) -> Outcome {
    let host = super::host(arguments.loaded.grants)?;
    let verdict = super::verify(&host, &arguments.policy)?.check(&host, &arguments.set, arguments.seed)?;
    if arguments.loaded.json {
        printer::json(&verdict)?;
    } else {
        show(&verdict, arguments.all)?;
    }
    match verdict.passes() {
        true => Ok(()),
        false => Err(Failure::work(format!("policy {} {}", verdict.policy, verdict.fails()))),
    }
}

fn show(verdict: &Verdict, all: bool) -> Outcome {
    let mut stdout = printer::stdout();
    let mut facts = vec![("policy", format!("{} {}", verdict.name, verdict.version))];
    facts.retain(|_| !verdict.name.is_empty());
    if verdict.policy != verdict.name {
        facts.push(("file", verdict.policy.clone()));
    }
    facts.push(("digest", verdict.digest.clone()));
    let settings: Vec<String> = verdict.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !settings.is_empty() {
        facts.push(("settings", settings.join(", ")));
    }
    writeln!(stdout, "{}\n", table::facts(facts))?;
    writeln!(stdout, "{}", table::listing(&["step", "state", "what it looks at"], &[], steps(verdict)))?;
    if !verdict.findings.is_empty() {
        let heading = ["finding", "what", "call", "requests", "found"];
        let rows = groups(verdict, all).into_iter().map(|group| group.row());
        writeln!(stdout, "\n{}", table::listing(&heading, &["requests"], rows))?;
        let advice = advice(verdict);
        if !advice.is_empty() {
            writeln!(stdout, "\n{}", table::listing(&["what", "what to do"], &[], advice))?;
        }
    }
    if verdict.passes() {
        writeln!(stdout, "\n{} {} passes: {}", verdict.name, verdict.version, figures(verdict))?;
    }
    Ok(())
}

fn steps(verdict: &Verdict) -> impl Iterator<Item = Vec<String>> {
    verdict.steps.iter().map(|row| {
        let state = match row.state {
            State::Passed => "ok",
            State::Failed => "failed",
            State::NotReached => "not reached",
        };
        let what = Step::ALL.iter().find(|(step, ..)| *step == row.step).map_or("", |(.., what)| what);
        let GoldenSet { requests, seed, tried, failing } = verdict.golden;
        let what = match row.step {
            Step::Golden if failing > 0 => {
                format!("{what}: fails {failing} of {tried} tried, {requests} in all, some drawn from seed {seed}")
            }
            Step::Golden if requests > 0 => {
                let stages = verdict.stages.iter().map(|set| format!("{} {}", set.requests, set.stage));
                let stages = stages.collect::<Vec<_>>().join(" and ");
                format!("{what}: {requests} ({stages}), some drawn from seed {seed}")
            }
            _ => what.to_owned(),
        };
        vec![row.step.to_string(), state.to_owned(), what]
    })
}

/// Findings of one kind.
struct Group<'a> {
    first: &'a Finding,
    requests: BTreeSet<&'a str>,
}

impl Group<'_> {
    fn row(&self) -> Vec<String> {
        let Finding { severity, problem, call, found, request, .. } = self.first;
        let severity = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let example = match request {
            Some(request) if self.requests.len() > 1 => format!("{found} [{request}, and others]"),
            Some(request) => format!("{found} [{request}]"),
            None => found.clone(),
        };
        let requests = if self.requests.is_empty() { String::new() } else { self.requests.len().to_string() };
        let call = call.map_or(String::new(), |call| call.to_string());
        vec![severity.into(), problem.name().into(), call, requests, example]
    }
}

/// One line per kind of finding, the gravest first; or one per finding.
fn groups(verdict: &Verdict, all: bool) -> Vec<Group<'_>> {
    let key =
        |finding: &Finding| -> (Severity, Problem, Option<Call>) { (finding.severity, finding.problem, finding.call) };
    let mut groups: Vec<Group<'_>> = Vec::new();
    for finding in &verdict.findings {
        let known = groups.iter_mut().find(|group| !all && key(group.first) == key(finding));
        match known {
            Some(group) => group.requests.extend(finding.request.as_deref()),
            None => groups.push(Group { first: finding, requests: finding.request.as_deref().into_iter().collect() }),
        }
    }
    groups
}

/// The remedies for errors and warnings, once for each problem.
fn advice(verdict: &Verdict) -> Vec<Vec<String>> {
    let grave = verdict.findings.iter().filter(|finding| finding.severity != Severity::Note);
    let problems: BTreeSet<(Severity, Problem, &str)> =
        grave.map(|finding| (finding.severity, finding.problem, finding.advice.as_str())).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (_, problem, advice) in problems {
        let row = vec![problem.name().to_owned(), advice.to_owned()];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows
}

fn figures(verdict: &Verdict) -> String {
    let count = |number: u32, one: &str| match number {
        0 => format!("no {one}s"),
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    };
    let worst = &verdict.worst;
    format!(
        "{}, {}, {}; at most {} fuel, {} and {}",
        count(verdict.golden.requests, "golden request"),
        count(verdict.counts.warnings, "warning"),
        count(verdict.counts.notes, "note"),
        table::count(worst.fuel as f64),
        table::milliseconds(worst.elapsed_ms),
        bytes::display(worst.memory_bytes)
    )
}
