//! What the program says beside its output, on standard error. A reader that has gone (`2>&1 | head`) doesn't end the work.

/// A line on standard error, as `eprintln!` writes it, which panics where nobody reads any more. Notes begin with `note: `, and what --quiet does not
/// silence with `warning: ` or `error: `.
macro_rules! tell {
    ($($text:tt)*) => { $crate::printer::line(format_args!($($text)*)) };
}

pub(crate) use tell;
