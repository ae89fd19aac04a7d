//! Tables of a profile for a terminal, as headings and rows; whoever shows them lays them out.

use crate::{Difference, DifferenceRow, LayerRow, Profile, units};

/// A table of words. Every row has a cell for each heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The headings.
    pub headings: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn of(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Self {
        Self { headings: headings.iter().map(|heading| (*heading).to_owned()).collect(), rows: rows.collect() }
    }
}

/// The words of a figure that is missing.
const NONE: &str = "–";

fn or_none(figure: Option<f64>, words: fn(f64) -> String) -> String {
    figure.map_or_else(|| NONE.to_owned(), words)
}

fn share(profile: &Profile, ms: f64) -> String {
    if profile.stage_ms > 0.0 { units::percent(ms / profile.stage_ms) } else { NONE.to_owned() }
}

/// The categories, the longest first.
pub fn categories(profile: &Profile) -> Table {
    let headings = ["category", "time", "share", "calls", "operations", "bytes", "rate", "bandwidth", "of roof"];
    let rows = profile.categories.iter().map(|row| {
        vec![
            row.category.name().to_owned(),
            units::time(row.total_ms),
            units::percent(row.share),
            row.calls.to_string(),
            or_none(Some(row.operations).filter(|count| *count > 0.0), units::operations),
            or_none(Some(row.bytes).filter(|count| *count > 0.0), units::bytes),
            or_none(row.operations_per_second, units::operation_rate),
            or_none(row.bytes_per_second, units::byte_rate),
            or_none(row.of_roof, units::percent),
        ]
    });
    Table::of(&headings, rows)
}

/// At most this many operators, those with the most time of their own first.
pub fn operators(profile: &Profile, most: usize) -> Table {
    let has_kernels = profile.operators.iter().any(|row| row.device_ms.is_some());
    let headings = ["operator", "category", "calls", "self", "total", "device", "device total"];
    let shown = if has_kernels { headings.len() } else { headings.len() - 2 };
    let rows = profile.operators.iter().take(most).map(|row| {
        let mut cells = vec![
            row.name.clone(),
            row.category.name().to_owned(),
            row.calls.to_string(),
            units::time(row.self_ms),
            units::time(row.total_ms),
            or_none(row.device_ms, units::time),
            or_none(row.device_total_ms, units::time),
        ];
        cells.truncate(shown);
        cells
    });
    Table::of(&headings[..shown], rows)
}

/// At most this many kernels, the longest first.
pub fn kernels(profile: &Profile, most: usize) -> Table {
    let rows = profile.kernels.iter().take(most).map(|row| {
        let mean = units::time(row.total_ms / row.calls.max(1) as f64);
        let category = row.category.name().to_owned();
        vec![row.name.clone(), category, row.calls.to_string(), units::time(row.total_ms), mean]
    });
    Table::of(&["kernel", "category", "calls", "time", "mean"], rows)
}

/// At most this many layers, the slowest first.
pub fn layers(profile: &Profile, most: usize) -> Table {
    let mut layers: Vec<&LayerRow> = profile.layers.iter().collect();
    layers.sort_by(|one, other| other.total_ms.total_cmp(&one.total_ms));
    let rows = layers.into_iter().take(most).map(|row| {
        let category = row.category.name().to_owned();
        let [time, share] = [units::time(row.total_ms), share(profile, row.total_ms)];
        vec![row.name.clone(), category, row.calls.to_string(), time, share]
    });
    Table::of(&["layer", "category", "calls", "time", "share"], rows)
}

/// At most this many of the other parts, in their order.
pub fn parts(profile: &Profile, most: usize) -> Table {
    let rows = profile.parts.iter().take(most).map(|row| {
        let [time, share] = [units::time(row.total_ms), share(profile, row.total_ms)];
        vec![row.part.name().to_owned(), row.name.clone(), row.calls.to_string(), time, share]
    });
    Table::of(&["part", "name", "calls", "time", "share"], rows)
}

/// The categories of a comparison, and then at most this many of its layers.
pub fn difference(difference: &Difference, most: usize) -> [Table; 2] {
    let signed = |ms: f64| if ms > 0.0 { format!("+{}", units::time(ms)) } else { units::time(ms) };
    let cells = |row: &DifferenceRow| {
        vec![row.name.clone(), units::time(row.before_ms), units::time(row.after_ms), signed(row.difference_ms)]
    };
    [("category", &difference.categories, usize::MAX), ("layer", &difference.layers, most)].map(|(what, rows, most)| {
        Table::of(&[what, "before", "after", "difference"], rows.iter().take(most).map(cells))
    })
}
