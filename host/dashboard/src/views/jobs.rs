//! A job and its plan.

use tilewright_plan::AnyPlan;
use tilewright_service_api::{Job, PlanGrid};

/// A job, in lists and on its own page.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// The job as the API gives it.
    pub job: Job,
    /// The plan that it runs or ran by.
    pub plan: Option<AnyPlan>,
    /// The parts that the plan divides the work into.
    pub grid: Option<PlanGrid>,
}
