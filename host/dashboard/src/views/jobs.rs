//! A job and its plan.

use tilewright_plan::AnyPlan;
use tilewright_service_api::{Job, PlanGrid};

/// A job, in lists and on its own page.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// The job as the API gives it.
    pub job: Job,
    /// The plan that it runs or ran by: of the stage at work, if it has several.
    pub plan: Option<AnyPlan>,
    /// The policy and the number of its revision that the plan under way is of; none if none is.
    pub decided_by: Option<(String, u64)>,
    /// The prompt, of a job from one.
    pub prompt: Option<String>,
    /// The seeds that were taken: one, or one for each sample.
    pub seeds: Vec<u64>,
    /// The parts that the plan divides the work into.
    pub grid: Option<PlanGrid>,
}
