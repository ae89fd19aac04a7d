//! Tables and figures for people.

use std::time::Duration;

use tilewright_plan::terminal::one_line;

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

use crate::printer;

/// The fewest columns, however narrow the terminal: the cells of a narrower table would be torn to
/// single words.
const LEAST_WIDTH: u16 = 60;

/// A table of two columns: names and values. Each value is one line, here and in lists: a line
/// break in one can't forge a row.
pub fn facts<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    for (name, value) in rows {
        table.add_row([name.to_owned(), one_line(&value).into_owned()]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_constraint(ColumnConstraint::ContentWidth);
        column.set_padding((0, 1));
    }
    trim_lines(&table)
}

/// The rows of a report's table, the heading first.
pub fn headed(heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let heading = heading.iter().map(|name| (*name).to_owned()).collect();
    [heading].into_iter().chain(rows).collect()
}

/// A table with a heading; columns named in `numbers` are aligned to the right.
pub fn listing(heading: &[&str], numbers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    trim_lines(&build_table(heading, numbers, rows))
}

/// A table that is at most as wide as the terminal: longer texts wrap within their columns. In a
/// file or a pipe each row is one line, for those who search or cut it.
pub fn wrap(heading: &[&str], numbers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let table = build_table(heading, numbers, rows);
    match printer::stdout_width() {
        Some(width) => fit_width(table, width.max(LEAST_WIDTH)),
        None => trim_lines(&table),
    }
}

fn fit_width(mut table: Table, width: u16) -> String {
    trim_lines(table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width))
}

fn build_table(heading: &[&str], numbers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let align = |index: usize| match heading.get(index).is_some_and(|name| numbers.contains(name)) {
        true => CellAlignment::Right,
        false => CellAlignment::Left,
    };
    let cells = |texts: Vec<String>| -> Vec<Cell> {
        texts
            .into_iter()
            .enumerate()
            .map(|(index, text)| Cell::new(one_line(&text)).set_alignment(align(index)))
            .collect()
    };
    table.set_header(cells(heading.iter().map(|name| (*name).to_owned()).collect()));
    for row in rows {
        table.add_row(cells(row));
    }
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 1));
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(1)));
    }
    table
}

fn trim_lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// `850 ms`, `3.21 s`, `2 min 5 s`.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        _ if seconds < 0.000_1 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 0.01 => format!("{:.2} ms", seconds * 1e3),
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 100.0 => format!("{seconds:.2} s"),
        _ => format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60),
    }
}

/// Milliseconds, as [`time`] shows them.
pub fn milliseconds(value: f64) -> String {
    time(Duration::try_from_secs_f64(value.max(0.0) / 1e3).unwrap_or(Duration::MAX))
}

/// `3 h 20 min`, `11 d 18 h`: a time of an hour or more.
pub fn long_time(duration: Duration) -> String {
    const HOUR: u64 = 60 * 60;
    const DAY: u64 = 24 * HOUR;
    match duration.as_secs() {
        seconds @ DAY.. => format!("{} d {} h", seconds / DAY, seconds % DAY / HOUR),
        seconds => format!("{} h {} min", seconds / HOUR, seconds % HOUR / 60),
    }
}

/// `49.5 M`, `2.47 T`.
pub fn count(number: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(scale, _)| number >= *scale) {
        // Three digits after the point, without trailing zeros.
        Some((scale, unit)) => format!("{} {unit}", (number / scale * 1e3).round() / 1e3),
        None => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_no_more_digits_than_they_need() {
        assert_eq!([50e6, 49.5e6, 2.4712e12, 999.0].map(count), ["50 M", "49.5 M", "2.471 T", "999"]);
    }

    #[test]
    fn a_table_is_no_wider_than_it_may_be_and_loses_nothing() {
        let words: Vec<String> = (0..40).map(|number| format!("word-{number}")).collect();
        let rows = || [vec![words[..20].join(" "), "decide".into(), words[20..].join(" "), "1.50×".into()]];
        let heading = ["request", "call", "A", "time"];
        let table = build_table(&heading, &["time"], rows());
        for width in [60, 80, 120, 1000] {
            let text = fit_width(table.clone(), width);
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
            assert!(words.iter().all(|word| text.contains(word.as_str())), "{text}");
            assert_eq!(text.lines().count() == 2, width == 1000, "{text}");
        }
        assert_eq!(fit_width(table, 1000), listing(&heading, &["time"], rows()));
    }

    #[test]
    fn no_row_is_forged_by_a_line_break() {
        assert_eq!(facts([("file", "a\nerror: b\u{1b}".to_owned())]), r"file  a\nerror: b\u001b");
        assert_eq!(listing(&["name"], &[], [vec!["a\r\nb".to_owned()]]).lines().count(), 2);
    }
}
