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
    TextPlan, TextRequest, UnderWay, Vae, exchange::Call,
};

/// Puts the policy of a session to work, a new one each time; its error ends the replay.
pub type MakePlanner<'a, W = Vae> = dyn FnMut(&PolicyIdentity) -> Result<Box<dyn Planner<W>>, String> + 'a;

/// Work whose decisions can be made again.
pub trait Replayed: tilewright_plan::Work {
    /// The stage of a call.
    fn stage_of_call(call: &Call<Self>) -> Stage;

    /// The work that was under way.
    fn under_way(call: &Call<Self>) -> Option<UnderWay<Self>>;

    /// A plan in a few words.
    fn describe(plan: &Self::Plan) -> String;

    /// Every part of a plan that may differ, the reason included.
    fn describe_fully(plan: &Self::Plan) -> String;

    /// The model and the extents of a request, which determine what a plan costs.
    fn cost_key(request: &Self::Request) -> String;
}

impl Replayed for Vae {
    fn stage_of_call(call: &Call) -> Stage {
        call.stage()
    }

    fn under_way(call: &Call) -> Option<UnderWay> {
        call.under_way()
    }

    fn describe(plan: &Plan) -> String {
        describe_plan(plan)
    }

    fn describe_fully(plan: &Plan) -> String {
        let Plan { batch, release, offload, prefetch, reason, .. } = plan;
        let words = describe_plan(&Plan { batch: 1, ..plan.clone() });
        format!("{words}, batch {batch}, release {release}, offload {offload}, prefetch {prefetch}, \"{reason}\"")
    }

    fn cost_key(Request { model, batch, frames, height, width, .. }: &Request) -> String {
        format!("{model:?} {batch} {frames} {height} {width}")
    }
}

impl Replayed for Denoise {
    fn stage_of_call(call: &Call<Self>) -> Stage {
        call.stage.unwrap_or(Stage::Denoise)
    }

    fn under_way(call: &Call<Self>) -> Option<UnderWay<Self>> {
        let offer = call.question.offer()?;
        let done = offer.done.unwrap_or(0);
        offer.running.clone().map(|plan| UnderWay { done, plan })
    }

    fn describe(plan: &DenoisePlan) -> String {
        plan.to_string()
    }

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
    fn stage_of_call(call: &Call<Self>) -> Stage {
        call.stage.unwrap_or(Stage::Text)
    }

    /// Nothing is: after a failure all texts run again.
    fn under_way(_: &Call<Self>) -> Option<UnderWay<Self>> {
        None
    }

    fn describe(plan: &TextPlan) -> String {
        plan.to_string()
    }

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

/// A plan in a few words.
pub fn describe_plan(plan: &Plan) -> String {
    let mut words = format!("{} {} {}", plan.space, plan.precision, plan.layout);
    if plan.time != tilewright_plan::Time::Whole {
        words.push_str(&format!(", time {}", plan.time));
    }
    if plan.batch > 1 {
        words.push_str(&format!(", batch {}", plan.batch));
    }
    words.push_str(&plan.options.to_string());
    words
}
