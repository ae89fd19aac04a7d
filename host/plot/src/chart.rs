//! The data of charts: points and axes.

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The label, with its unit.
    pub label: String,
    /// True for a logarithmic axis.
    pub logarithmic: bool,
}

impl Axis {
    /// A linear axis from zero.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), logarithmic: false }
    }

    /// A logarithmic axis.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { label: label.into(), logarithmic: true }
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

/// A chart's data.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// A row per name: every sample, the quartiles as a box, the median as a line.
    Boxes {
        /// The title above the chart.
        title: String,
        /// The axis of the samples.
        axis: Axis,
        /// The rows from the top.
        rows: Vec<(String, Vec<f64>)>,
    },
    /// Lines through points.
    Lines {
        /// The title above the chart.
        title: String,
        /// The axis across.
        x: Axis,
        /// The axis upwards.
        y: Axis,
        /// The series, a line each.
        series: Vec<Series>,
    },
    /// Points alone.
    Scatter {
        /// The title above the chart.
        title: String,
        /// The axis across.
        x: Axis,
        /// The axis upwards.
        y: Axis,
        /// The series, a kind of mark each.
        series: Vec<Series>,
        /// Draws the line on which x and y are equal.
        diagonal: bool,
    },
}

impl Chart {
    pub(crate) fn has_points(&self) -> bool {
        match self {
            Chart::Boxes { rows, .. } => rows.iter().any(|(_, samples)| !samples.is_empty()),
            Chart::Lines { series, .. } | Chart::Scatter { series, .. } => {
                series.iter().any(|series| !series.points.is_empty())
            }
        }
    }
}
