//! What is drawn: points, and the axes that they stand against.

/// What is along an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// With its unit.
    pub label: String,
    /// Logarithmic.
    pub logarithmic: bool,
}

impl Axis {
    /// From zero, in even steps.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), logarithmic: false }
    }

    /// In powers of ten.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { label: label.into(), logarithmic: true }
    }
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Pairs of x and y.
    pub points: Vec<(f64, f64)>,
}

/// A chart's data.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// A row per name: every sample, the quartiles as a box, the median as a line.
    Boxes {
        /// Above the chart.
        title: String,
        /// Of the samples.
        axis: Axis,
        /// From the top.
        rows: Vec<(String, Vec<f64>)>,
    },
    /// Lines through points.
    Lines {
        /// Above the chart.
        title: String,
        /// Across.
        x: Axis,
        /// Up.
        y: Axis,
        /// One line each.
        series: Vec<Series>,
    },
    /// Points alone.
    Scatter {
        /// Above the chart.
        title: String,
        /// Across.
        x: Axis,
        /// Up.
        y: Axis,
        /// One mark each.
        series: Vec<Series>,
        /// Draws where x and y are equal.
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
