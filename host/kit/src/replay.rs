//! MakePlanner recorded decisions again, from what `--record full` wrote and nothing else: no
//! model, no device, no host that prices plans.
//!
//! [`replay_same_policy`] asks the policy of the record. Every answer, plan, adjustment, fallback
//! and unit of fuel must be equal, since a policy sees nothing but what the record holds.
//! [`replay_other_policy`] asks another policy the same questions, and compares the costs of its
//! plans as far as the records hold them.

mod facts;
mod gather;
mod other_policy;
mod same_policy;
#[cfg(test)]
mod tests;

pub use gather::{Recorded, RecordedCall, ReplayError, Session, gather};
pub use other_policy::{
    Basis, OtherPolicyReport, OtherPolicyRow, OtherPolicyTotals, PlanCost, PlanVerdict, replay_other_policy,
};
pub use same_policy::{CallVerdict, Difference, SamePolicyReport, SamePolicyRow, SamePolicyTotals, replay_same_policy};

use tilewright_plan::{Device, Model, Plan, Planner, PolicyIdentity, Request, Stage};

/// Puts the policy of a session to work, a new one each time; its error ends the replay.
pub type MakePlanner<'a> = dyn FnMut(&PolicyIdentity) -> Result<Box<dyn Planner>, String> + 'a;

/// The properties that must be equal for prices and measurements of one request to hold for
/// another: the model, the device, the stage and the extents. Limits and objectives don't change a
/// plan's cost.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    model: Model,
    device: Device,
    stage: Stage,
    extents: [u32; 4],
}

impl Work {
    pub fn of(stage: Stage, request: &Request, device: &Device) -> Self {
        Self {
            model: request.model.clone(),
            // Free memory differs from hour to hour.
            device: Device { free_bytes: 0, ..device.clone() },
            stage,
            extents: [request.batch, request.frames, request.height, request.width],
        }
    }
}

/// A plan in a few words.
pub fn describe_plan(plan: &Plan) -> String {
    let mut words = format!("{} {} {}", plan.space, plan.precision, plan.layout);
    if plan.time != tilewright_plan::Time::Whole {
        words.push_str(&format!(", time {}", plan.time));
    }
    if plan.batch > 1 {
        words.push_str(&format!(", batch {}", plan.batch));
    }
    words
}
