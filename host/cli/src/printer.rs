//! What reaches standard output and standard error: the one place where both are opened, where --quiet holds, and where texts that files chose lose
//! what a terminal would obey.

#![allow(clippy::disallowed_methods, reason = "everything that is printed goes through here")]

use std::{
    fmt,
    io::{self, IsTerminal, Stdout, StdoutLock, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use tilewright_plan::terminal::{Clean, one_line};

/// Set once, from the command line.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Prints nothing from now on but errors, warnings and what was asked for.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether notes, progress and summaries are left out.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Standard output for what was asked for: lists, reports, JSON.
pub fn stdout() -> Clean<StdoutLock<'static>> {
    Clean::new(io::stdout().lock())
}

/// Standard output for what says how the work went, which --quiet leaves out.
pub fn summary() -> Box<dyn Write> {
    if is_quiet() { Box::new(io::sink()) } else { Box::new(stdout()) }
}

/// Standard output for bytes that are a file's own: completion scripts, a manual page, a picture.
pub fn raw_stdout() -> Stdout {
    io::stdout()
}

/// A line on standard error, in one line whatever it contains, and at once, so that lines of several threads don't mix. Where nobody reads any more,
/// the work goes on. With --quiet only errors and warnings are printed.
pub fn line(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    if is_quiet() && !["error: ", "warning: "].iter().any(|kind| text.starts_with(kind)) {
        return;
    }
    let _ = io::stderr().lock().write_all(format!("{}\n", one_line(&text)).as_bytes());
}

/// Lines on standard error that were asked for, whether or not it is to be quiet.
pub fn lines(text: &str) {
    let _ = Clean::new(io::stderr().lock()).write_all(format!("{text}\n").as_bytes());
}

/// Whether somebody looks at standard error as it is written.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A question on standard error, answered in the same line.
pub fn ask(question: &str) {
    let _ = io::stderr().lock().write_all(one_line(question).as_bytes());
}

/// Standard error for the log: an event is one line, whatever its fields contain.
#[derive(Debug, Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        io::stderr().lock().write_all(format!("{}\n", one_line(text.trim_end())).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
