//! `tilewright history …`, and the history in a decode.

use std::{
    env,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use tilewright_history::{Entry, Error, Filter, History, Kept, MOST_ROWS, Merged, ProfileSummary, user_path};
use tilewright_pipeline::{HistoryFault, Session, Trials};
use tilewright_plan::{Record, bytes, of_any, terminal::shorten, words::with_noun};
use tilewright_torch::device::Choice;

use crate::{
    args::{self, HistoryCommand, HistoryFilters, HistoryList},
    failure::{Failure, Outcome},
    files, printer, profile, table,
    tell::tell,
    work::Reported,
};

/// The variable with the history's path, or `off`.
const VARIABLE: &str = "TILEWRIGHT_HISTORY";

/// Characters of a text that are shown in a table.
const SHOWN: usize = 40;

/// Categories of a profile that are shown in a table.
const SHARES: usize = 3;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Write(cause) => cause.into(),
            error if error.is_input() => Failure::Input(error.into()),
            error => Failure::Work(error.into()),
        }
    }
}

/// The device of a command and the user's history of its runs; a dry run does not create the
/// history. A fault of it becomes one line of warning, and the work goes on without.
pub fn session(choice: Choice, no_history: bool, dry_run: bool) -> Outcome<Session> {
    Ok(Session::find(choice, move |machine| {
        let path = if no_history { Ok(None) } else { place() };
        match path {
            Ok(Some(path)) => Trials::open(&path, &machine.fingerprint, !dry_run, report_fault),
            Ok(None) => Trials::none(),
            Err(error) => {
                report_fault(HistoryFault::Unusable(error));
                Trials::none()
            }
        }
    })?)
}

/// Keeps the record of a run, with the summary of its profile if it was profiled.
pub fn keep<W: Kept>(trials: &mut Trials, record: &Record<W>) {
    trials.keep(record, profile::summary_of(record).as_ref());
}

fn report_fault(fault: HistoryFault) {
    match fault {
        HistoryFault::Quarantined(path) => report_quarantined(&path),
        HistoryFault::Unusable(error) | HistoryFault::NotAdded(error) => {
            tell!("warning: going on without history: {} (--no-history leaves it out)", Failure::from(error));
        }
    }
}

fn report_quarantined(path: &Path) {
    tell!("warning: the history was damaged; it is {} now, and a new one has begun", path.display());
}

/// The history's path; none if it is switched off.
pub fn place() -> Result<Option<PathBuf>, Error> {
    match env::var_os(VARIABLE) {
        Some(value) if value == "off" => Ok(None),
        Some(value) if !value.is_empty() => Ok(Some(value.into())),
        _ => user_path().map(Some),
    }
}

/// Lists, exports or clears the history.
pub fn run(arguments: &args::History) -> Outcome {
    let path = place()?.ok_or_else(|| {
        Failure::input(format!("{VARIABLE}=off: no history is kept: unset it, or name a file with it"))
    })?;
    match &arguments.command {
        None => list(&path, &arguments.list),
        Some(HistoryCommand::List(arguments)) => list(&path, arguments),
        Some(HistoryCommand::Export { file, filters }) => export(&path, file, &filter(filters)),
        Some(HistoryCommand::Merge { files }) => merge(&path, files),
        Some(HistoryCommand::Clear { filters, yes }) => clear(&path, &filter(filters), *yes),
        Some(HistoryCommand::Path) => Ok(writeln!(printer::stdout(), "{}", path.display())?),
    }
}

fn filter(filters: &HistoryFilters) -> Filter {
    Filter {
        policy: filters.policy.clone(),
        family: filters.family.clone(),
        device: filters.device.clone(),
        since: filters.since,
        failed: filters.failed,
    }
}

fn list(path: &Path, arguments: &HistoryList) -> Outcome {
    let filter = filter(&arguments.filters);
    let history = History::existing(path)?;
    let listing =
        history.as_ref().map(|history| history.newest(&filter, arguments.limit)).transpose()?.unwrap_or_default();
    if listing.unreadable > 0 {
        tell!("note: {} were written by another version and are left out", records(listing.unreadable));
    }
    let mut stdout = BufWriter::new(printer::stdout());
    if arguments.json {
        for entry in &listing.entries {
            writeln!(stdout, "{}", entry.json_line()?)?;
        }
    } else if listing.entries.is_empty() {
        let nothing = match filter == Filter::default() {
            true => "Nothing yet: every decode, encode and sample from now on is kept in",
            false => "Nothing like that in",
        };
        writeln!(stdout, "{nothing} {}", path.display())?;
    } else {
        let mut heading = vec![
            "when (UTC)",
            "model",
            "size",
            "plan",
            "time",
            "expected",
            "ratio",
            "memory",
            "expected",
            "ratio",
            "policy",
            "device",
        ];
        let has_profiles = listing.entries.iter().any(|entry| entry.profile.is_some());
        heading.extend(has_profiles.then_some("profile"));
        let numbers = ["time", "expected", "ratio", "memory"];
        let rows = listing.entries.iter().map(|entry| {
            let mut row = row(entry);
            row.extend(has_profiles.then(|| entry.profile.as_ref().map_or_else(String::new, shares)));
            row
        });
        writeln!(stdout, "{}", table::listing(&heading, &numbers, rows))?;
    }
    Ok(stdout.flush()?)
}

fn row(entry: &Entry) -> Vec<String> {
    of_any!(&entry.record, record: W => cells::<W>(record))
}

fn cells<W: Reported>(record: &Record<W>) -> Vec<String> {
    let Record { request, plan, .. } = record;
    let text = |text: &str| shorten(text, SHOWN);
    let mut row =
        vec![text(&to_the_second(&record.time)), text(W::family(request)), W::size(request), W::short_plan(plan)];
    let measured = record.outcome.as_ref().map(|outcome| (W::elapsed(outcome), W::all_measured(outcome)));
    let expected = record.expectation().map(|cost| (W::expected_time(cost, W::steps(request)), W::all_bytes(cost)));
    let mut add = |value: fn((Duration, u64)) -> f64, show: fn((Duration, u64)) -> String| {
        let quotient = measured.map(value).zip(expected.map(value).filter(|expected| *expected > 0.0));
        row.push(measured.map_or("failed".into(), show));
        row.push(expected.map_or(String::new(), show));
        row.push(quotient.map_or(String::new(), |(measured, expected)| format!("{:.2}", measured / expected)));
    };
    add(|(time, _)| time.as_secs_f64(), |(time, _)| table::time(time));
    add(|(_, held)| held as f64, |(_, held)| bytes::display(held));
    row.extend([text(&record.policy.name), text(&record.device.name)]);
    row
}

/// The categories that took the most of a profiled run, and the profiler's overhead.
fn shares(profile: &ProfileSummary) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let longest = profile.categories.iter().take(SHARES);
    let mut shares: Vec<String> =
        longest.map(|row| format!("{} {}", row.category.name(), percent(row.share))).collect();
    shares.push(format!("overhead {:+.1} %", 100.0 * profile.overhead));
    shares.join(", ")
}

/// `2026-11-21 08:30:00`, of a record's time.
fn to_the_second(time: &str) -> String {
    time.chars().take(19).collect::<String>().replacen('T', " ", 1)
}

fn export(path: &Path, file: &Path, filter: &Filter) -> Outcome {
    let history = History::existing(path)?;
    let is_parquet = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"));
    // A table without rows has columns, too.
    let history = history.map_or_else(History::empty, Ok)?;
    let exported = if file == Path::new("-") {
        history.export(filter, &mut BufWriter::new(printer::stdout()))?
    } else {
        let failed = |cause: io::Error| Failure::input(format!("{}: can't be written: {cause}", file.display()));
        // A device or pipe would be replaced.
        if file.exists() && !file.is_file() {
            return Err(Failure::input(format!("{}: not a file: - is standard output", file.display())));
        }
        files::roles().writes("FILE", file).check()?;
        let temporary = tilewright_outputs::temporary(file, ".tmp").map_err(failed)?;
        let written = match is_parquet {
            true => history.export_parquet(filter, temporary.as_file()),
            false => history.export(filter, &mut BufWriter::new(temporary.as_file())),
        };
        let exported = written.map_err(|error| match error {
            Error::Write(cause) => files::unwritten(file)(cause),
            error => error.into(),
        })?;
        tilewright_outputs::place(temporary, file).map_err(failed)?;
        exported
    };
    if exported.unreadable > 0 {
        tell!("note: {} were written by another version and are left out", records(exported.unreadable));
    }
    tell!("exported {}", records(exported.records));
    Ok(())
}

fn merge(path: &Path, files: &[PathBuf]) -> Outcome {
    // All are looked at before the first is merged.
    let open = |file: &PathBuf| {
        let missing = || Failure::input(format!("{}: there is no such history", file.display()));
        History::existing(file)?.ok_or_else(missing)
    };
    let others = files.iter().map(open).collect::<Outcome<Vec<_>>>()?;
    let mut history = History::open(path)?;
    history.take_quarantined().iter().for_each(|path| report_quarantined(path));
    for (file, other) in files.iter().zip(&others) {
        let Merged { added, known, unreadable, removed } = history.merge(other)?;
        if unreadable > 0 {
            tell!("note: {}: {} were written by another version and are left out", file.display(), records(unreadable));
        }
        if removed > 0 {
            tell!("note: the {} are removed: a history keeps {MOST_ROWS}", with_noun(removed, "oldest record"));
        }
        writeln!(printer::stdout(), "{}: {} added, {known} there already", file.display(), records(added))?;
    }
    Ok(())
}

fn clear(path: &Path, filter: &Filter, yes: bool) -> Outcome {
    let opened = match History::existing(path) {
        Err(Error::Corrupt { .. }) => History::open(path).map(Some),
        opened => opened,
    };
    let Some(mut history) = opened? else {
        return Ok(writeln!(printer::stdout(), "Nothing to remove: there is no {}", path.display())?);
    };
    // A damaged file is quarantined whole: no record is lost, so no question is asked.
    let found = match history.count(filter) {
        Err(Error::Corrupt { .. }) => None,
        found => Some(found?),
    };
    if found.is_some_and(|found| found > 0 && !yes) && !confirm(found.unwrap_or(0), path)? {
        return Ok(writeln!(printer::stdout(), "Nothing was removed.")?);
    }
    let removed = history.clear(filter)?;
    history.take_quarantined().iter().for_each(|path| report_quarantined(path));
    Ok(writeln!(printer::stdout(), "Removed {}.", records(removed))?)
}

fn confirm(count: u64, path: &Path) -> Outcome<bool> {
    if !io::stdin().is_terminal() || !printer::stderr_is_terminal() {
        return Err(Failure::input(format!("{} would be removed: give --yes to agree", records(count))));
    }
    printer::ask(&format!("Remove {} from {}? [y/N] ", records(count), path.display()));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::work)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn records(count: u64) -> String {
    with_noun(count, "record")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_to_the_second() {
        assert_eq!(to_the_second("2026-11-21T08:30:00.123Z"), "2026-11-21 08:30:00");
        assert_eq!(to_the_second("today"), "today");
    }
}
