//! What a simulation found. Sizes are bytes, times milliseconds.

use serde::Serialize;
use tilewright_plan::{Device, Objective, Plan, PolicyIdentity};

use super::Choice;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Carried out.
    Done,
    /// Four attempts failed, or one that no other mends.
    Failed,
    /// The policy's plan is not in the table and none that stands for it, or the host's default stood in and needed prices that are not:
    /// nothing is known.
    NotInTable,
}

/// One request, as one policy ran it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestRow {
    /// Which of the table's cases, from 0.
    pub case: usize,
    /// In bytes.
    pub memory_limit: u64,
    /// What mattered most.
    pub objective: Objective,
    /// What became of it.
    pub what: What,
    /// The plan that it ended with.
    pub plan: Plan,
    /// The measured plan that stands for it, where it was not measured itself.
    pub stands_in: Option<Plan>,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// Time of the attempts that failed, each as long as its plan takes: the most that it may have cost.
    pub lost_ms: f64,
    /// Time of the one that succeeded.
    pub elapsed_ms: Option<f64>,
    /// The most held.
    pub peak_bytes: Option<u64>,
    /// The best plan of the table within the limit.
    pub best: Option<Choice>,
    /// By the objective, what it cost over what the best would have, less 1; 0 for what is better than the rules of the best let it be. A
    /// request that failed has its lost time over the best's, and 1 on top. None where the plan's cost or the best is not known.
    pub regret: Option<f64>,
    /// What the host changed in the answer.
    pub adjusted: Vec<String>,
    /// Why the host's default stood in.
    pub fallback: Option<String>,
}

/// A policy's way through the workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRow {
    /// As it was given.
    pub label: String,
    /// Who it was.
    pub policy: PolicyIdentity,
    /// Requests carried out.
    pub done: usize,
    /// Requests given up.
    pub failed: usize,
    /// Requests of which nothing is known.
    pub not_in_table: usize,
    /// Requests whose plan another stood for.
    pub stood_in: usize,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// Requests that the host's default was taken for.
    pub fallbacks: usize,
    /// Prices that the policy asked for, and those that the table does not hold.
    pub prices_asked: usize,
    /// Of those, the ones that the table does not hold.
    pub prices_unknown: usize,
    /// Time of all requests that are done, failed attempts included.
    pub elapsed_ms: f64,
    /// What the best plans would have taken for these.
    pub best_ms: f64,
    /// The most held in any request.
    pub peak_bytes: u64,
    /// Requests whose regret is known.
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
    /// Where the table comes from.
    pub about: String,
    /// The device that the table was measured on.
    pub device: Device,
    /// The cases in words.
    pub cases: Vec<String>,
    /// How many requests.
    pub requests: usize,
    /// Each policy's way.
    pub policies: Vec<PolicyRow>,
}

impl PolicyRow {
    pub(super) fn new(label: String, policy: PolicyIdentity, requests: Vec<RequestRow>) -> Self {
        let count = |what| requests.iter().filter(|row: &&RequestRow| row.what == what).count();
        let regrets: Vec<f64> = requests.iter().filter_map(|row| row.regret).collect();
        let done = requests.iter().filter(|row| row.what == What::Done);
        let elapsed_ms = done.clone().filter_map(|row| Some(row.elapsed_ms? + row.lost_ms)).sum();
        let best_ms = done.filter_map(|row| row.best.as_ref()).map(|best| best.elapsed_ms).sum();
        Self {
            label,
            policy,
            done: count(What::Done),
            failed: count(What::Failed),
            not_in_table: count(What::NotInTable),
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
