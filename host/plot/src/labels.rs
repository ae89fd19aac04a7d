//! The names of series among their points.

use maud::{Markup, html};

use crate::draw::{LETTER, at, truncate};

/// Pixels from one line of letters to the next, and from a point up to its name.
const HEIGHT: f64 = 16.0;
const ABOVE: f64 = 7.5;

/// The names of series beside their last points, on the side that has more room, and moved up or
/// down where they would cover each other.
pub fn beside(series: &[(&str, (f64, f64))], [left, right]: [f64; 2]) -> Markup {
    let mut taken: Vec<[f64; 3]> = Vec::new();
    let mut placed = Vec::new();
    for (name, (x, y)) in series {
        let is_right = *x > (left + right) / 2.0;
        let room = if is_right { x - left } else { right - x };
        let shown = truncate(name, room / LETTER);
        let length = shown.chars().count() as f64 * LETTER;
        let (anchor, from) = if is_right { ("end", x - length) } else { ("start", *x) };
        let is_free = |line: f64| {
            let covers =
                |[start, end, y]: &[f64; 3]| *start < from + length && from < *end && (y - line).abs() < HEIGHT;
            !taken.iter().any(covers)
        };
        let lines = (0..=taken.len()).flat_map(|step| {
            let away = step as f64 * HEIGHT;
            [y - ABOVE - away, y + HEIGHT + away]
        });
        let line = lines.into_iter().find(|line| is_free(*line)).unwrap_or(y - ABOVE);
        taken.push([from, from + length, line]);
        placed.push((shown, *x, line, anchor));
    }
    html! {
        @for (name, x, y, anchor) in &placed { text x=(at(*x)) y=(at(*y)) text-anchor=(anchor) { (name) } }
    }
}
