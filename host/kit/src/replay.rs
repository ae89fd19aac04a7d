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

use tilewright_plan::{
    AnyPlan, Denoise, DenoisePlan, DenoiseRequest, Device, Plan, Planner, PolicyIdentity, Request, Stage, Text,
    TextPlan, TextRequest, Time, Vae,
};

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

impl Replayed for Vae {
    fn describe(plan: &Plan) -> String {
        let mut words = format!("{} {} {}", plan.space, plan.precision, plan.layout);
        if plan.time != Time::Whole {
            words.push_str(&format!(", time {}", plan.time));
        }
        if plan.batch > 1 {
            words.push_str(&format!(", batch {}", plan.batch));
        }
        words.push_str(&plan.options.to_string());
        words
    }

    fn describe_fully(plan: &Plan) -> String {
        let Plan { batch, release, offload, prefetch, reason, .. } = plan;
        let words = Self::describe(&Plan { batch: 1, ..plan.clone() });
        format!("{words}, batch {batch}, release {release}, offload {offload}, prefetch {prefetch}, \"{reason}\"")
    }

    fn cost_key(Request { model, batch, frames, height, width, .. }: &Request) -> String {
        format!("{model:?} {batch} {frames} {height} {width}")
    }
}

impl Replayed for Denoise {
    fn describe_fully(plan: &DenoisePlan) -> String {
        format!("{plan}, release {}, \"{}\"", plan.release, plan.reason)
    }

    /// Prices are of a step, whatever the number of steps.
    fn cost_key(request: &DenoiseRequest) -> String {
        let DenoiseRequest { model, batch, frames, height, width, text_tokens, passes, sampler, .. } = request;
        format!("{model:?} {batch} {frames} {height} {width} {text_tokens} {passes} {sampler}")
    }
}

impl Replayed for Text {
    fn describe_fully(plan: &TextPlan) -> String {
        format!("{plan}, \"{}\"", plan.reason)
    }

    fn cost_key(TextRequest { model, tokens, .. }: &TextRequest) -> String {
        format!("{model:?} {tokens:?}")
    }
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
    match plan {
        AnyPlan::Vae(plan) => Vae::describe(plan),
        AnyPlan::Denoise(plan) => Denoise::describe(plan),
        AnyPlan::Text(plan) => Text::describe(plan),
    }
}
