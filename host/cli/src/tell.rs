//! Messages beside the output, on standard error. A reader that has gone (`2>&1 | head`) doesn't
//! end the work.

/// Prints a line on standard error; unlike `eprintln!`, it doesn't panic if the reader has gone.
/// Notes begin with `note: `, and lines that --quiet does not silence with `warning: ` or `error:
/// `.
macro_rules! tell {
    ($($text:tt)*) => { $crate::printer::line(format_args!($($text)*)) };
}

pub(crate) use tell;

/// Prints a note, as a callback.
pub fn note(line: &str) {
    tell!("note: {line}");
}
