//! `--profile FILE`: the stages of a command that were profiled, kept until its end, when they are
//! shown and written.

use std::{
    io::Write,
    mem,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::Args;
use tilewright_bench::StageProfile;
use tilewright_engine::Profiled;
use tilewright_history::ProfileSummary;
use tilewright_outputs::Roles;
use tilewright_plan::{Record, Work};
use tilewright_profile::{Difference, Profile, Recording, text, write_page, write_trace};

use crate::{
    failure::{Failure, Outcome},
    files, printer, table,
    tell::tell,
};

/// Operators, kernels and layers that are listed.
const LISTED: usize = 10;

/// The endings of a page; every other name is a trace's.
const PAGES: [&str; 2] = ["html", "htm"];

/// Set once, from the command line: all stages of the command are profiled.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The stages so far, and the numbers of those that were reported with a record, and that the
/// history has.
static STAGES: Mutex<Stages> = Mutex::new(Stages { found: Vec::new(), reported: 0, kept: 0 });

struct Stages {
    found: Vec<(Profile, Recording)>,
    reported: usize,
    kept: usize,
}

/// The file of a profile.
#[derive(Args, Debug)]
pub struct ProfileOption {
    /// Profile the work: where the time goes, as a table, and in this file as a trace for Perfetto
    /// and chrome://tracing, or as a page if it ends in .html. The work is rehearsed first
    #[arg(id = "profile", long = "profile", value_name = "FILE[.html]")]
    file: Option<PathBuf>,
}

impl ProfileOption {
    /// The file, if a profile is wanted.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Adds the file to what the command writes, and has the command's stages profiled.
    ///
    /// # Errors
    /// It can't be written, is another file of the command's, or nothing runs.
    pub fn begin(&self, roles: Roles, dry_run: bool) -> Outcome<Roles> {
        let Some(file) = &self.file else { return Ok(roles) };
        if dry_run {
            return Err(Failure::input("--profile and --dry-run: nothing runs that could be profiled: leave one out"));
        }
        let roles = files::check_file(roles, "--profile", Some(file))?;
        crate::output::writable(file)?;
        IS_WANTED.store(true, Ordering::Relaxed);
        Ok(roles)
    }

    /// Shows the profiles of work that has ended, and writes the file; `aside` shows them on
    /// standard error, where standard output is something else.
    ///
    /// # Errors
    /// That of the work, or the file can't be written.
    pub fn finish(&self, aside: bool, ended: Outcome) -> Outcome {
        let Some(file) = &self.file else { return ended };
        let found = mem::take(&mut stages().found);
        if found.is_empty() {
            return ended;
        }
        ended.and(self.show(file, aside, &found))
    }

    /// Shows and writes the profiles of policies, and where the others differ from the first one.
    ///
    /// # Errors
    /// That of the contest, or the file can't be written.
    pub fn finish_contest(&self, profiles: impl Iterator<Item = StageProfile>, aside: bool, ended: Outcome) -> Outcome {
        let Some(file) = &self.file else { return ended };
        let found: Vec<_> = profiles.map(|StageProfile { profile, recording }| (profile, recording)).collect();
        let Some(((first, _), others)) = found.split_first() else { return ended };
        let mut shown = self.show(file, aside, &found);
        let differences: Vec<String> = others.iter().map(|(other, _)| difference_in_words(first, other)).collect();
        if !aside && !differences.is_empty() {
            shown = shown.and(writeln!(printer::summary(), "\n{}", differences.join("\n\n")).map_err(Into::into));
        }
        ended.and(shown)
    }

    fn show(&self, file: &Path, aside: bool, found: &[(Profile, Recording)]) -> Outcome {
        // The file first: it must not depend on who reads the tables.
        write(file, found)?;
        let tables: Vec<String> = found.iter().map(|(profile, _)| in_words(profile)).collect();
        let tables = tables.join("\n\n");
        match (aside, printer::is_quiet()) {
            (true, true) => {}
            (true, false) => printer::lines(&tables),
            (false, _) => writeln!(printer::summary(), "\n{tables}")?,
        }
        Ok(())
    }
}

fn stages() -> std::sync::MutexGuard<'static, Stages> {
    STAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if the stages of the command are to be profiled.
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Keeps a stage that was profiled.
pub fn keep(Profiled { facts, recording }: Profiled) {
    match Profile::of(&recording, facts) {
        Ok(profile) => stages().found.push((profile, recording)),
        Err(error) => tell!("warning: {error}"),
    }
}

/// The profiles since the last record that was reported, for its JSON.
pub fn unreported() -> Vec<Profile> {
    let mut stages = stages();
    let new = stages.found.iter().skip(stages.reported).map(|(profile, _)| profile.clone()).collect();
    stages.reported = stages.found.len();
    new
}

/// The summary for the history of the next profile that is of a record's run; none if it was not
/// profiled.
pub fn summary_of<W: Work>(record: &Record<W>) -> Option<ProfileSummary> {
    let (stage, plan) = (record.stage().to_string(), record.plan.to_string());
    let mut stages = stages();
    let is_of = |(profile, _): &(Profile, Recording)| profile.facts.stage == stage && profile.facts.plan == plan;
    let next = stages.kept + stages.found.iter().skip(stages.kept).position(is_of)?;
    stages.kept = next + 1;
    stages.found.get(next).map(|(profile, _)| profile.summary())
}

/// Writes profiles into a file, by its name.
///
/// # Errors
/// It can't be written.
pub fn write(file: &Path, found: &[(Profile, Recording)]) -> Outcome {
    let is_page = file.extension().is_some_and(|ending| PAGES.iter().any(|page| ending.eq_ignore_ascii_case(page)));
    let written = if is_page { write_page(file, found) } else { write_trace(file, found) };
    written.map_err(Failure::work)?;
    let how = if is_page { "" } else { ", for ui.perfetto.dev or chrome://tracing" };
    tell!("wrote {}{how}", file.display());
    Ok(())
}

/// A profile as tables.
pub fn in_words(profile: &Profile) -> String {
    let facts = &profile.facts;
    let time = table::milliseconds;
    let mut rows = vec![
        ("profile", format!("{} {}, {}", facts.stage, facts.request, facts.device)),
        ("plan", format!("{} ({})", facts.plan, facts.policy)),
        (
            "time",
            format!(
                "{} under the profiler, {} without; the profiler's overhead, of {}, is {:+.1} %",
                time(profile.stage_ms),
                time(profile.unprofiled_ms),
                facts.compared,
                100.0 * profile.overhead,
            ),
        ),
    ];
    rows.extend(facts.estimated_ms.map(|estimated| ("expected", time(estimated))));
    rows.extend(profile.notes.iter().map(|note| ("note", note.clone())));
    rows.extend(profile.advice.iter().map(|advice| ("advice", advice.clone())));
    let tables = [
        text::categories(profile),
        text::operators(profile, LISTED),
        text::kernels(profile, LISTED),
        text::layers(profile, LISTED),
    ];
    let tables = tables.iter().filter(|table| !table.rows.is_empty()).map(listing);
    [table::facts(rows)].into_iter().chain(tables).collect::<Vec<_>>().join("\n\n")
}

/// The differences of a policy's profile from the first one's.
fn difference_in_words(first: &Profile, other: &Profile) -> String {
    let difference = Difference::between(first, other);
    let title = format!("{} against {}: {}", other.facts.policy, first.facts.policy, difference.sentence);
    let tables = text::difference(&difference, LISTED);
    [title].into_iter().chain(tables.iter().map(listing)).collect::<Vec<_>>().join("\n\n")
}

/// A table of words, in which every column that is no name has numbers.
pub fn listing(of: &text::Table) -> String {
    const NAMES: [&str; 7] = ["category", "operator", "kernel", "layer", "part", "name", "note"];
    let headings: Vec<&str> = of.headings.iter().map(String::as_str).collect();
    let numbers: Vec<&str> = headings.iter().copied().filter(|heading| !NAMES.contains(heading)).collect();
    table::listing(&headings, &numbers, of.rows.iter().cloned())
}
