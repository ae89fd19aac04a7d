//! The report of a contest, as one JSON object. Sizes are bytes, times milliseconds.

use std::collections::BTreeMap;

use serde::Serialize;
use tilewright_plan::{Cost, Device, Objective, Plan, PoolStatistics, Request, Vae, Value, Work};

use crate::{Difference, Ratio, Spelling, StageProfile, Summary, race::Lane};

/// A contest and its results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The host's version.
    pub tilewright: String,
    /// One row per policy, in the order given.
    pub runs: Vec<Row>,
    /// The device.
    pub device: Device,
    /// The request; limit and objective are the first policy's.
    pub request: Option<Request>,
    /// The reference of differences.
    pub against: Option<Against>,
    /// Runs per policy after the first that are not counted.
    pub warmup: usize,
    /// Runs per policy that are counted.
    pub iterations: usize,
    /// True if interrupted: rows hold the results until then.
    pub interrupted: bool,
}

/// The decode that the others are compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// As spelled.
    pub policy: String,
    /// The decode's plan; null if it was not run.
    pub plan: Option<Plan>,
    /// Time of its one run.
    pub elapsed_ms: Option<f64>,
    /// The decode's peak.
    pub peak_bytes: Option<u64>,
    /// The reason why there are no differences.
    pub error: Option<String>,
}

/// The results of one policy. Figures without counted runs are null.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// As spelled.
    pub policy: String,
    /// As the policy names itself.
    pub name: Option<String>,
    /// As the policy says.
    pub version: Option<String>,
    /// The policy's settings, defaults included.
    pub settings: BTreeMap<String, Value>,
    /// The policy's objective.
    pub objective: Objective,
    /// The policy's memory limit.
    pub memory_limit: u64,
    /// The plan of the last run.
    pub plan: Option<Plan>,
    /// The number of different plans of the counted runs: more than one if the policy learned.
    pub plans: usize,
    /// Changes to the policy's answer.
    pub adjusted: Vec<String>,
    /// Set if the fallback replaced the policy's answer.
    pub fallback: Option<String>,
    /// The very first run.
    pub first_ms: Option<f64>,
    /// Mean of the counted runs.
    pub mean_ms: Option<f64>,
    /// Standard deviation (n − 1).
    pub std_ms: Option<f64>,
    /// The quickest.
    pub min_ms: Option<f64>,
    /// The middle.
    pub median_ms: Option<f64>,
    /// The 99th percentile, interpolated.
    pub p99_ms: Option<f64>,
    /// 95 % confidence of the mean.
    pub mean_ci95_ms: Option<[f64; 2]>,
    /// The deviation is above 10 % of the mean.
    pub noisy: bool,
    /// Every counted run, in order.
    pub samples_ms: Vec<f64>,
    /// The highest peak of the counted runs, without weights.
    pub peak_bytes: Option<u64>,
    /// The memory pool in the last counted run.
    pub pool: Option<PoolStatistics>,
    /// Requests for memory served from the pool, of all in the counted runs.
    pub pool_hit_share: Option<f64>,
    /// Runs that ended in a picture, counted or not.
    pub finished: usize,
    /// Finished runs after the first whose weights were loaded already.
    pub found_loaded: usize,
    /// Attempts that failed before one succeeded, over the counted runs.
    pub attempts: usize,
    /// The estimate of the plan's cost.
    pub estimate: Option<Cost>,
    /// The ratio to the first policy's times.
    pub ratio: Option<Ratio>,
    /// The difference from the reference; null without one.
    pub difference: Option<Difference>,
    /// The run that was profiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<StageProfile>,
    /// The reason why it was stopped.
    pub error: Option<String>,
}

impl Row {
    /// The row of a lane's runs, without comparisons.
    pub(crate) fn new(spelling: &Spelling, objective: Objective, memory_limit: u64, lane: &Lane) -> Self {
        let samples = lane.samples_ms();
        let summary = Summary::of(&samples);
        let last = lane.records.last();
        let outcomes = || lane.records.iter().filter_map(|record| record.outcome.as_ref());
        let (hits, misses) =
            outcomes().fold((0, 0), |(hits, misses), outcome| (hits + outcome.pool.hits, misses + outcome.pool.misses));
        let mut plans: Vec<&Plan> = Vec::new();
        for record in &lane.records {
            if !plans.iter().any(|plan| Vae::is_same_work(plan, &record.plan)) {
                plans.push(&record.plan);
            }
        }
        Self {
            policy: spelling.to_string(),
            name: last.map(|record| record.policy.name.clone()),
            version: last.map(|record| record.policy.version.clone()),
            settings: last.map(|record| record.policy.settings.clone()).unwrap_or_default(),
            objective,
            memory_limit,
            plan: lane.plan.clone(),
            plans: plans.len(),
            adjusted: last.map(|record| record.adjusted.clone()).unwrap_or_default(),
            fallback: lane.fallback(),
            first_ms: lane.first_ms,
            mean_ms: summary.map(|summary| summary.mean),
            std_ms: summary.and_then(|summary| summary.std),
            min_ms: summary.map(|summary| summary.min),
            median_ms: summary.map(|summary| summary.median),
            p99_ms: summary.map(|summary| summary.p99),
            mean_ci95_ms: summary.and_then(|summary| summary.confidence),
            noisy: summary.is_some_and(|summary| summary.is_noisy()),
            samples_ms: samples,
            peak_bytes: outcomes().map(|outcome| outcome.peak_bytes).max(),
            pool: outcomes().next_back().map(|outcome| outcome.pool),
            pool_hit_share: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
            finished: lane.runs,
            found_loaded: lane.found_loaded,
            attempts: lane.records.iter().map(|record| record.attempts.len()).sum(),
            estimate: last.and_then(|record| record.estimate),
            ratio: None,
            difference: None,
            profile: lane.profile.clone(),
            error: lane.error.clone(),
        }
    }
}
