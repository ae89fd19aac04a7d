//! Reports of decisions and outcomes: tables for people, records for programs.

use std::{io::Write, path::PathBuf};

use serde::Serialize;
use tilewright_engine::{Error, Unfinished};
use tilewright_history::Kept;
use tilewright_media::STANDARD;
use tilewright_pipeline::Trials;
use tilewright_plan::{Candidate, Exchange, FailedAttempt, Record, Recorder, Vae, Work, bytes, words::with_noun};
use tilewright_profile::Profile;

use crate::{
    args::Recording,
    failure::{Failure, Outcome},
    files, printer, profile, table,
};

/// Appends the record to the user's file, with the exchange if it was asked for, in one write, so
/// that records of several processes don't mix.
pub fn keep<W: Work>(recording: &Recording, record: &Record<W>, exchange: Option<Exchange<W>>) -> Outcome {
    let Some(path) = recording.file() else { return Ok(()) };
    let line = match exchange {
        // Only here: pictures, standard output and the history have the ordinary record.
        Some(_) => serde_json::to_vec(&Record { exchange, ..record.clone() }),
        None => serde_json::to_vec(record),
    };
    let mut line = line.map_err(Failure::work)?;
    line.push(b'\n');
    tilewright_files::append(path).and_then(|mut file| file.write_all(&line)).map_err(files::unwritten(path))
}

/// The same of work that did not end; the history learns of it unless it says nothing of the plan:
/// of an interruption, or an unreadable source.
pub fn keep_unfinished<W: Kept>(
    (recording, trials): (&Recording, &mut Trials),
    error: &Error,
    record: &Record<W>,
    exchange: Option<Exchange<W>>,
) -> Outcome {
    if !matches!(error, Error::Interrupted | Error::Source(_)) {
        trials.keep(record, None);
    }
    keep(recording, record, exchange)
}

/// The form of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// The record alone on standard output, as JSON.
    pub json: bool,
    /// Every plan that was considered.
    pub explain: bool,
    /// The record is one of several: its JSON is one line.
    pub several: bool,
    /// Standard output carries the output file: tables go to standard error.
    pub aside: bool,
}

/// A record as it is printed.
#[derive(Serialize)]
#[serde(bound = "")]
struct Printed<'a, W: Work> {
    #[serde(flatten)]
    record: &'a Record<W>,
    /// The final names of the files and folders that were written.
    outputs: Vec<String>,
    /// The profile of the work, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<Profile>,
}

/// Prints the record on standard output, with the names of the files written.
pub fn print_json<W: Work>(shown: Shown, record: &Record<W>, files: &[PathBuf]) -> Outcome {
    let outputs = files.iter().map(|file| file.display().to_string()).collect();
    let printed = Printed { record, outputs, profile: profile::unreported() };
    let text = if shown.several { serde_json::to_string(&printed) } else { serde_json::to_string_pretty(&printed) };
    Ok(writeln!(printer::stdout(), "{}", text.map_err(Failure::work)?)?)
}

/// The failure of work that did not end, after its record is kept and shown.
pub fn fail<W: Kept>(
    recording: &Recording,
    shown: Shown,
    trials: &mut Trials,
    planner: &mut Recorder<W>,
    unfinished: Unfinished<W>,
) -> Failure {
    let Unfinished { error, record } = unfinished;
    let kept = record.as_deref().map_or(Ok(()), |record| {
        keep_unfinished((recording, trials), &error, record, planner.take())?;
        if shown.json { print_json(shown, record, &[]) } else { Ok(()) }
    });
    kept.err().unwrap_or_else(|| error.into())
}

/// Reports a decision and its outcome: the record alone as JSON on standard output, or tables.
pub fn report(shown: Shown, record: &Record, candidates: &[Candidate], files: &[PathBuf]) -> Outcome {
    present(shown, record, files, || explanation(record, candidates), || summary(record, files))
}

/// Reports a decision of any kind of work, explained and summed up in words.
pub fn present<W: Work>(
    shown: Shown,
    record: &Record<W>,
    files: &[PathBuf],
    explanation: impl FnOnce() -> String,
    summary: impl FnOnce() -> String,
) -> Outcome {
    if shown.json || shown.aside {
        // Standard output carries only the record or the output.
        if shown.explain {
            printer::lines(&explanation());
        }
        if shown.aside {
            if !printer::is_quiet() {
                printer::lines(&summary());
            }
            return Ok(());
        }
        return print_json(shown, record, files);
    }
    if shown.explain {
        writeln!(printer::stdout(), "{}\n", explanation())?;
    }
    Ok(writeln!(printer::summary(), "{}", summary())?)
}

/// The rows of a summary that say who decided, and how the plan came about.
pub fn decision_rows<W: Work>(
    record: &Record<W>,
    plan: String,
    failed: impl Fn(&FailedAttempt<W>) -> String,
) -> Vec<(&'static str, String)> {
    let Record { policy, decision, fuel, fallback, .. } = record;
    let decided = format!("{} {} in {}, {fuel} fuel", policy.name, policy.version, table::time(*decision));
    let mut rows = vec![("policy", decided), ("plan", plan)];
    let reason = W::reason(&record.plan);
    rows.extend((!reason.is_empty()).then(|| ("why", reason.to_owned())));
    rows.extend(record.adjusted.iter().map(|line| ("adjusted", line.clone())));
    rows.extend(fallback.iter().map(|fallback| ("fallback", format!("{}: {}", fallback.reason, fallback.detail))));
    rows.extend(record.attempts.iter().map(|attempt| ("failed", failed(attempt))));
    rows
}

/// The decision and its outcome in a few lines.
fn summary(record: &Record, files: &[PathBuf]) -> String {
    let plan = &record.plan;
    let request = &record.request;
    let samples = if request.batch == 1 { String::new() } else { format!("{} × ", request.batch) };
    let mut rows = vec![(
        "request",
        format!(
            "{samples}{}×{}{} {}, at most {}, weights {}",
            request.width,
            request.height,
            if request.frames > 1 { format!(", {} frames,", request.frames) } else { String::new() },
            request.model.family,
            bytes::display(request.memory_limit),
            if request.limit_counts_weights { "included" } else { "aside" }
        ),
    )];
    let plan = match request.frames {
        1 => format!("{}, {}, {}, batch {}", plan.space, plan.precision, plan.layout, plan.batch),
        _ => format!("{}, time {}, {}, {}", plan.space, plan.time, plan.precision, plan.layout),
    };
    rows.extend(decision_rows(record, plan, |attempt| format!("{}: {}", attempt.plan, attempt.failure)));
    if let Some(cost) = record.expectation() {
        let price = record.estimate.filter(|_| record.expected.is_some());
        let price = price.map_or(String::new(), |price| {
            format!(" (by what was measured before; priced at {})", table::time(price.elapsed))
        });
        // The outcome shows this for a plan that was carried out.
        let is_over = record.outcome.is_none() && cost.peak_bytes > record.request.memory_limit;
        let over = if is_over { ", over the limit: a run would stop there and try a smaller plan" } else { "" };
        rows.push((
            "expected",
            format!(
                "{} in {}, {} held{over}, rework {:.2}{price}",
                table::time(cost.elapsed),
                with_noun(cost.tiles, "tile"),
                bytes::display(cost.peak_bytes),
                cost.rework
            ),
        ));
    }
    if let Some(outcome) = &record.outcome {
        rows.push((
            "measured",
            format!(
                "{}, {} held, loaded in {}",
                table::time(outcome.elapsed),
                bytes::display(outcome.peak_bytes),
                table::time(outcome.load)
            ),
        ));
    }
    rows.extend(files.iter().map(|file| match file.as_os_str() == STANDARD {
        true => ("wrote", "standard output".to_owned()),
        false => ("wrote", file.display().to_string()),
    }));
    table::facts(rows)
}

/// Every plan that the policy asked the price of, listed once, with a mark at the one carried out.
pub fn explanation(record: &Record, candidates: &[Candidate]) -> String {
    // The column that differs: a picture's batch, a clip's chunks.
    let divided = if record.request.frames > 1 { "chunks" } else { "batch" };
    let heading = ["", "space", "precision", "layout", divided, "tiles", "rework", "memory", "time", "note"];
    // Plans that look alike in the table may differ in when they release memory.
    let releases = candidates.iter().any(|one| one.plan.release != candidates[0].plan.release);
    considered(&record.policy.name, candidates, (&heading, &heading[4..9]), |candidate, row| {
        let plan = &candidate.plan;
        let is_chosen = Vae::is_same_work(plan, &record.plan);
        row.extend([plan.space.to_string(), plan.precision.to_string(), plan.layout.to_string()]);
        row.push(if record.request.frames > 1 { plan.time.to_string() } else { plan.batch.to_string() });
        let mut notes = Vec::new();
        if releases {
            notes.push(format!("release {}", plan.release));
        }
        if let Ok(cost) = &candidate.cost {
            row.extend([cost.tiles.to_string(), format!("{:.2}", cost.rework)]);
            row.extend([bytes::display(cost.peak_bytes), table::time(cost.elapsed)]);
            match &record.outcome {
                Some(outcome) if is_chosen => {
                    let (held, took) = (bytes::display(outcome.peak_bytes), table::time(outcome.elapsed));
                    notes.push(format!("measured {held}, {took}"));
                }
                _ if cost.peak_bytes > record.request.memory_limit => notes.push(OVER.into()),
                _ => {}
            }
        }
        (is_chosen, notes)
    })
}

/// The note on a plan that does not fit.
pub const OVER: &str = "over the limit";

/// A table of the plans that a policy asked the price of; `row` adds the cells between mark and
/// note, says whether the plan is the one carried out, and returns notes. The reason that a plan
/// has no price follows them.
pub fn considered<W: Work>(
    policy: &str,
    candidates: &[Candidate<W>],
    (heading, numbers): (&[&str], &[&str]),
    row: impl Fn(&Candidate<W>, &mut Vec<String>) -> (bool, Vec<String>),
) -> String {
    if candidates.is_empty() {
        return format!("{policy} asked for no prices: it decides by rule.");
    }
    let considered = unique_plans(candidates);
    let rows = considered.iter().map(|candidate| {
        let mut cells = vec![String::new()];
        let (is_chosen, mut notes) = row(candidate, &mut cells);
        cells[0] = if is_chosen { "→" } else { "" }.to_owned();
        cells.resize(heading.len() - 1, String::new());
        notes.extend(candidate.cost.as_ref().err().cloned());
        cells.push(notes.join(", "));
        cells
    });
    let count = with_noun(considered.len(), "plan");
    format!("{policy} considered {count}:\n{}", table::listing(heading, numbers, rows))
}

/// Policies may ask for a price again; a plan is listed at its first request.
fn unique_plans<W: Work>(candidates: &[Candidate<W>]) -> Vec<&Candidate<W>> {
    let mut known = Vec::new();
    let is_new = |candidate: &&Candidate<W>| {
        let plan = W::without_reason(&candidate.plan);
        let is_new = !known.contains(&plan);
        known.extend(is_new.then_some(plan));
        is_new
    };
    candidates.iter().filter(is_new).collect()
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Plan, Release};

    use super::*;

    #[test]
    fn a_plan_is_listed_once_however_often_its_price_was_asked() {
        let plan = |reason: &str, release| Plan { release, reason: reason.into(), ..Plan::plain() };
        let asked =
            [("first", Release::Keep), ("again", Release::Keep), ("other", Release::AtEnd), ("", Release::Keep)];
        let candidates =
            asked.map(|(reason, release)| Candidate::<Vae> { plan: plan(reason, release), cost: Err("no".into()) });
        let listed: Vec<&str> =
            unique_plans(&candidates).iter().map(|candidate| candidate.plan.reason.as_str()).collect();
        assert_eq!(listed, ["first", "other"]);
    }
}
