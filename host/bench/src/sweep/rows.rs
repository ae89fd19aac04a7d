//! The results of a sweep, as one JSON object. Sizes are bytes, times milliseconds.

use serde::Serialize;
use tilewright_plan::{Capabilities, Cost, Device, Objective, Plan, Request, Stage};

use super::Honesty;

/// The results of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    /// The host's version.
    pub tilewright: String,
    /// The device.
    pub device: Device,
    /// The policy whose choices were judged.
    pub policy: String,
    /// Runs of each plan.
    pub iterations: usize,
    /// The requests, one per size; limits and objectives are the cases'.
    pub requests: Vec<SweptRequest>,
    /// Every plan, per size.
    pub plans: Vec<PlanRow>,
    /// Every case.
    pub cases: Vec<CaseRow>,
    /// Over all plans that were measured.
    pub honesty: Honesty,
    /// Ended from outside: what was measured until then.
    pub interrupted: bool,
}

/// A request of a sweep, and all else that a table needs of it.
#[derive(Clone, Debug, Serialize)]
pub struct SweptRequest {
    /// The request.
    #[serde(flatten)]
    pub request: Request,
    /// The kind of work.
    pub stage: Stage,
    /// The plans that can be carried out.
    pub capabilities: Capabilities,
}

/// A plan that was measured, or why not.
#[derive(Clone, Debug, Serialize)]
pub struct PlanRow {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// As a spelling of the `fixed` policy.
    pub policy: String,
    /// The plan.
    pub plan: Plan,
    /// The median of the runs.
    pub elapsed_ms: Option<f64>,
    /// The runs.
    pub samples_ms: Vec<f64>,
    /// The most held in any run.
    pub peak_bytes: Option<u64>,
    /// The estimate before the first run.
    pub estimate: Option<Cost>,
    /// Why it does not count.
    pub error: Option<String>,
}

/// A plan and what it costs, as measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Median time.
    pub elapsed_ms: f64,
    /// The most held.
    pub peak_bytes: u64,
}

/// A case: the best plan, and the policy's.
#[derive(Clone, Debug, Serialize)]
pub struct CaseRow {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// The limit's name.
    pub limit: String,
    /// The limit in bytes.
    pub memory_limit: u64,
    /// The objective.
    pub objective: Objective,
    /// The best plan within the limit, of those measured.
    pub best: Option<Choice>,
    /// The policy's.
    pub chosen: Option<Choice>,
    /// The peak of the policy's own run, under the limit.
    pub run_peak_bytes: Option<u64>,
    /// The policy's cost by the objective over the best one's.
    pub ratio: Option<f64>,
    /// Within 10 % of the best, and within the limit.
    pub met: bool,
    /// A remark for the table.
    pub note: String,
}
