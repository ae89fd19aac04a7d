//! What is charted.

use std::time::SystemTime;

/// The charts of the overview.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charts {
    /// How long deciding took, a row per policy and revision, in the order to show them in.
    pub latency: Vec<Latency>,
    /// How long recent jobs took to decode, a line per route; milliseconds.
    pub decode: Vec<Series>,
    /// How much slower the shadow's plan was predicted to be than the best of the plans compared, a line per route: 0 is as good, 0.5 is
    /// half as long again.
    pub regret: Vec<Series>,
}

/// How long a revision's decisions took.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// The policy.
    pub policy: String,
    /// Its revision.
    pub revision: u64,
    /// Of recent decisions, in any order, in microseconds. What is not finite or not above zero is left out.
    pub samples_us: Vec<f64>,
}

/// Points over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// When, and how much; oldest first. What is not finite is left out.
    pub points: Vec<(SystemTime, f64)>,
}
