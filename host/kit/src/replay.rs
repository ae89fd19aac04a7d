//! Makes recorded decisions again, from what `--record full` wrote and nothing else: no
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

pub use gather::{MeasuredPlan, Recorded, RecordedCall, ReplayError, Session, check_full, gather};
pub use other_policy::{
    Basis, OtherPolicyReport, OtherPolicyRow, OtherPolicyTotals, PlanCost, PlanVerdict, replay_other_policy,
};
pub use same_policy::{CallVerdict, Difference, SamePolicyReport, SamePolicyRow, SamePolicyTotals, replay_same_policy};

use tilewright_plan::{AnyPlan, Device, Planner, PolicyIdentity, Stage, Vae, of_any};

/// Puts the policy of a session to work, a new one each time; its error ends the replay.
pub type MakePlanner<'a, W = Vae> = dyn FnMut(&PolicyIdentity) -> Result<Box<dyn Planner<W>>, String> + 'a;

/// Work whose decisions can be made again.
pub trait Replayed: tilewright_plan::Work {
    /// A plan in a few words.
    fn describe(plan: &Self::Plan) -> String {
        plan.to_string()
    }

    /// Every part of a plan that may differ, the reason included.
    fn describe_fully(plan: &Self::Plan) -> String;

    /// The model and the extents of a request, which determine what a plan costs.
    fn cost_key(request: &Self::Request) -> String;
}

/// The properties that must be equal for prices and measurements of one request to hold for
/// another: the model, the device, the stage and the extents. Limits and objectives don't change a
/// plan's cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    device: Device,
    stage: Stage,
    /// The model and the extents.
    request: String,
}

impl Work {
    /// The work of a request on a device.
    pub fn of<W: Replayed>(stage: Stage, request: &W::Request, device: &Device) -> Self {
        Self { device: device.identity(), stage, request: W::cost_key(request) }
    }
}

/// A plan of any kind of work in a few words.
pub fn describe_any(plan: &AnyPlan) -> String {
    of_any!(plan, plan: W => W::describe(plan))
}
