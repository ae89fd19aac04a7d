//! The data of charts: points and axes.

/// An axis. A value that is not finite, or that can't be distinguished from zero or from infinity
/// in a drawing, is left out, and so is one without a logarithm if the axis is logarithmic.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The label, with its unit; empty for none.
    pub label: String,
    /// True for a logarithmic axis. A linear one shows zero.
    pub logarithmic: bool,
    /// The values that may be ticks, ascending; if there are none, round numbers are. A linear axis
    /// extends to them, a logarithmic one to the nearest around its values.
    pub ticks: Vec<f64>,
    /// The words for a value.
    pub words: fn(f64) -> String,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), logarithmic: false, ticks: Vec::new(), words: number }
    }

    /// A logarithmic axis.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { logarithmic: true, ..Self::linear(label) }
    }

    /// True for a value that has a place on this axis.
    pub fn has_place(&self, value: f64) -> bool {
        let size = if self.logarithmic { value } else { value.abs() };
        (1e-12..1e15).contains(&size) || (value == 0.0 && !self.logarithmic)
    }
}

/// A number in few letters.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e5 => format!("{value:.0e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{}", (value * 10.0).round() / 10.0),
        size if size >= 0.1 => format!("{}", (value * 100.0).round() / 100.0),
        _ => format!("{value:.1e}"),
    }
}

/// A series of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Pairs of x and y.
    pub points: Vec<(f64, f64)>,
}

/// The data of a chart.
#[derive(Clone, Debug)]
pub enum Chart {
    /// A row of samples per name, with the median as a line.
    Rows {
        /// The title above the chart.
        title: String,
        /// The axis of the samples.
        axis: Axis,
        /// The rows from the top.
        rows: Vec<(String, Vec<f64>)>,
        /// The form of each row.
        form: Form,
    },
    /// Points in a plane.
    Plane {
        /// The title above the chart.
        title: String,
        /// The axis across.
        x: Axis,
        /// The axis upwards.
        y: Axis,
        /// The series, a kind of mark each.
        series: Vec<Series>,
        /// The lines besides the marks.
        lines: Lines,
    },
}

impl Chart {
    /// Rows of samples over a linear axis, each with its quartiles.
    pub fn boxes(title: impl Into<String>, axis: &str, rows: impl Iterator<Item = (String, Vec<f64>)>) -> Self {
        Chart::Rows { title: title.into(), axis: Axis::linear(axis), rows: rows.collect(), form: Form::Box }
    }

    /// Points over two axes, across and upwards.
    pub fn plane(
        title: impl Into<String>,
        [x, y]: [Axis; 2],
        series: impl IntoIterator<Item = Series>,
        lines: Lines,
    ) -> Self {
        Chart::Plane { title: title.into(), x, y, series: series.into_iter().collect(), lines }
    }
}

/// The form of a row of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every sample, and the quartiles as a box.
    Box,
    /// A histogram, for a logarithmic axis.
    Histogram,
}

/// The lines among points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// None.
    None,
    /// A line per series.
    Series,
    /// The line on which x and y, an estimate, are equal. Both axes are the same.
    Diagonal,
    /// Lines without marks for this many series, the first ones, which bound the others. Every
    /// series has its name beside it.
    Bounds(usize),
}
