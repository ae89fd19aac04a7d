//! Standard output and standard error, opened here alone: --quiet takes effect here, and texts from
//! files lose the control characters that a terminal would obey.

#![allow(clippy::disallowed_methods, reason = "everything that is printed goes through here")]

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, IsTerminal, StderrLock, Stdout, StdoutLock, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use tilewright_outputs::terminal_width;
use tilewright_plan::terminal::{Clean, one_line};

use crate::failure::{Failure, Outcome};

/// Set once, from the command line.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Warnings that were printed: the same one is printed once, however many files or stages it is of.
static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The most warnings that are remembered.
const MOST_WARNINGS: usize = 1000;

/// True if a line is a warning that was printed before.
fn is_repeated(line: &str) -> bool {
    if !line.starts_with("warning: ") {
        return false;
    }
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_repeated = warned.contains(line);
    if warned.len() < MOST_WARNINGS {
        warned.insert(line.to_owned());
    }
    is_repeated
}

/// Prints only errors, warnings and results from now on.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// True if notes, progress and summaries are left out.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Standard output for results: lists, reports, JSON.
pub fn stdout() -> Clean<StdoutLock<'static>> {
    Clean::new(io::stdout().lock())
}

/// Prints a report as JSON on standard output.
pub fn json(report: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(report).map_err(Failure::work)?;
    Ok(writeln!(stdout(), "{text}")?)
}

/// The columns of the terminal that standard output goes to; none if it goes elsewhere.
pub fn stdout_width() -> Option<u16> {
    terminal_width(io::stdout())
}

/// Standard output for summaries of the work, which --quiet leaves out.
pub fn summary() -> Box<dyn Write> {
    if is_quiet() { Box::new(io::sink()) } else { Box::new(stdout()) }
}

/// Standard output for a file's bytes, unchanged: completion scripts, a manual page, a picture.
pub fn raw_stdout() -> Stdout {
    io::stdout()
}

/// Prints a line on standard error: one line whatever it contains, in one write, so that lines of
/// several threads don't mix. If the reader has gone, the work goes on. With --quiet, only errors
/// and warnings are printed.
pub fn line(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    if is_quiet() && !["error: ", "warning: "].iter().any(|kind| text.starts_with(kind)) {
        return;
    }
    let text = one_line(&text);
    if !is_repeated(&text) {
        let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
    }
}

/// Prints lines of a result on standard error, even with --quiet.
pub fn lines(text: &str) {
    let _ = Clean::new(io::stderr().lock()).write_all(format!("{text}\n").as_bytes());
}

/// Standard error for this thread alone: others that print there wait until the lock is dropped.
pub fn alone() -> StderrLock<'static> {
    io::stderr().lock()
}

/// True if standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Prints a question on standard error; the answer follows on the same line.
pub fn ask(question: &str) {
    let _ = io::stderr().lock().write_all(one_line(question).as_bytes());
}

/// Standard error for the log: an event is one line, whatever its fields contain.
#[derive(Debug, Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = one_line(text.trim_end());
        if !is_repeated(&text) {
            io::stderr().lock().write_all(format!("{text}\n").as_bytes())?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_printed_once_and_an_error_each_time() {
        let lines = ["warning: once", "warning: once", "warning: other", "error: once", "error: once", "note: once"];
        let repeated: Vec<&str> = lines.into_iter().filter(|line| is_repeated(line)).collect();
        assert_eq!(repeated, ["warning: once"]);
    }
}
