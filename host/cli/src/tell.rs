//! What the program says beside its output, on standard error. Whoever listened may have gone (`2>&1 | head`): the work goes on.

use std::{
    fmt,
    io::{self, Write},
};

/// A line on standard error, as `eprintln!` writes it, which panics where nobody reads any more.
macro_rules! tell {
    ($($text:tt)*) => { $crate::tell::line(format_args!($($text)*)) };
}

pub(crate) use tell;

/// Writes the line at once, so that lines of several threads don't mix.
pub fn line(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
