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

/// A text in one line that is safe on a terminal: at most so many characters, control characters and marks that turn the direction of
/// writing escaped.
pub fn shown(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == most {
            shown.push('…');
            break;
        }
        let turns = matches!(character, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match character.is_control() || turns {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}
