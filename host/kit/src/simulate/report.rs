//! The report of a simulation. Sizes are bytes, times milliseconds; those of samples are of a step,
//! and with the weights.

use serde::Serialize;
use tilewright_plan::{AnyPlan, Device, Objective, PolicyIdentity};

use super::Choice;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestResult {
    /// Carried out.
    Done,
    /// Four attempts failed, or one that no other plan could mend.
    Failed,
    /// Unknown: neither the policy's plan nor one that stands in for it is in the table, or the
    /// fallback needed prices that the table lacks.
    NotInTable,
}

/// One request, as one policy ran it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestRow {
    /// The table's case, counted from 0.
    pub case: usize,
    /// The limit in bytes.
    pub memory_limit: u64,
    /// The objective.
    pub objective: Objective,
    /// The result.
    pub what: RequestResult,
    /// The plan that it ended with.
    pub plan: AnyPlan,
    /// The measured plan that stands in for it, if it was not measured itself.
    pub stands_in: Option<AnyPlan>,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// Time of the attempts that failed, each as long as its plan takes: an upper bound.
    pub lost_ms: f64,
    /// Time of the attempt that succeeded.
    pub elapsed_ms: Option<f64>,
    /// The highest memory use.
    pub peak_bytes: Option<u64>,
    /// The best plan of the table within the limit.
    pub best: Option<Choice>,
    /// The cost by the objective over the best plan's, minus 1; 0 for a plan better than the rules
    /// for the best allow. A request that failed has its lost time over the best's, plus 1. `None`
    /// if the plan's cost or the best is unknown.
    pub regret: Option<f64>,
    /// The host's changes to the answer.
    pub adjusted: Vec<String>,
    /// The reason of a fallback.
    pub fallback: Option<String>,
}

/// A policy's results over the workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRow {
    /// The label that it was given.
    pub label: String,
    /// The policy's identity.
    pub policy: PolicyIdentity,
    /// Requests carried out.
    pub done: usize,
    /// Requests given up.
    pub failed: usize,
    /// Requests without a known result.
    pub not_in_table: usize,
    /// Requests with another plan's measurement.
    pub stood_in: usize,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// Requests that the fallback decided.
    pub fallbacks: usize,
    /// Prices that the policy asked for.
    pub prices_asked: usize,
    /// The prices of those that the table lacks.
    pub prices_unknown: usize,
    /// Time of all requests that are done, including failed attempts.
    pub elapsed_ms: f64,
    /// Time of the best plans for these requests.
    pub best_ms: f64,
    /// The highest memory use in any request.
    pub peak_bytes: u64,
    /// Requests with a known regret.
    pub judged: usize,
    /// Mean regret.
    pub mean_regret: Option<f64>,
    /// The worst regret.
    pub worst_regret: Option<f64>,
    /// Fuel of all decisions.
    pub fuel: u64,
    /// Each request, in order.
    pub requests: Vec<RequestRow>,
}

/// A workload on a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    /// The host's version.
    pub tilewright: String,
    /// The table's name.
    pub table: String,
    /// The table's source.
    pub about: String,
    /// The device that the table was measured on.
    pub device: Device,
    /// The cases in a few words each.
    pub cases: Vec<String>,
    /// The number of requests.
    pub requests: usize,
    /// The results of each policy.
    pub policies: Vec<PolicyRow>,
}

impl PolicyRow {
    pub(super) fn new(label: String, policy: PolicyIdentity, requests: Vec<RequestRow>) -> Self {
        let count = |what| requests.iter().filter(|row: &&RequestRow| row.what == what).count();
        let regrets: Vec<f64> = requests.iter().filter_map(|row| row.regret).collect();
        let done = requests.iter().filter(|row| row.what == RequestResult::Done);
        let elapsed_ms = done.clone().filter_map(|row| Some(row.elapsed_ms? + row.lost_ms)).sum();
        let best_ms = done.filter_map(|row| row.best.as_ref()).map(|best| best.elapsed_ms).sum();
        Self {
            label,
            policy,
            done: count(RequestResult::Done),
            failed: count(RequestResult::Failed),
            not_in_table: count(RequestResult::NotInTable),
            stood_in: requests.iter().filter(|row| row.stands_in.is_some()).count(),
            failed_attempts: requests.iter().map(|row| row.failed_attempts).sum(),
            fallbacks: requests.iter().filter(|row| row.fallback.is_some()).count(),
            prices_asked: 0,
            prices_unknown: 0,
            elapsed_ms,
            best_ms,
            peak_bytes: requests.iter().filter_map(|row| row.peak_bytes).max().unwrap_or(0),
            judged: regrets.len(),
            mean_regret: (!regrets.is_empty()).then(|| regrets.iter().sum::<f64>() / regrets.len() as f64),
            worst_regret: regrets.iter().copied().max_by(f64::total_cmp),
            fuel: 0,
            requests,
        }
    }
}
