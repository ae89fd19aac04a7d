//! The data of charts.

use std::time::SystemTime;

use tilewright_plan::Stage;

/// The charts of the overview.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charts {
    /// Times of decisions, a row per policy and revision, in the order shown.
    pub latency: Vec<LatencySamples>,
    /// Times of recent work in milliseconds, stage by stage, a line per route.
    pub work: Vec<(Stage, Vec<TimeSeries>)>,
    /// The shadow's predicted time against the best of the plans compared, a line per route: 0 is
    /// as good, 0.5 is half as long again.
    pub regret: Vec<TimeSeries>,
}

/// Times of a revision's decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencySamples {
    /// The policy.
    pub policy: String,
    /// The number of the revision.
    pub revision: u64,
    /// Microseconds, in any order. Values that are not finite or not above zero are left out.
    pub samples_us: Vec<f64>,
}

/// Points over time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeSeries {
    /// The name in the legend.
    pub name: String,
    /// Times and values, oldest first. Values that are not finite are left out.
    pub points: Vec<(SystemTime, f64)>,
}
