//! The kinds of work that policies decide. Each has types of its own and a pair of the contract's
//! interfaces; everything else is written once for all of them.

use std::{fmt, hash::Hash};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Capabilities, Cost, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan, DenoiseRequest, Outcome, Plan,
    Request, TextCapabilities, TextCost, TextOutcome, TextPlan, TextRequest,
    exchange::{DenoiseMeasured, ExactCost, ExactDenoiseCost, ExactTextCost, Measured, TextMeasured},
};

/// Facts that are compared, recorded and sent to other threads.
pub trait Data:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T> Data for T where
    T: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

/// A kind of work.
pub trait Work: Data + Copy + Default + Eq + Hash {
    /// The work itself.
    type Request: Data;
    /// The plans that can be carried out.
    type Capabilities: Data + Default;
    /// The way in which work will be run.
    type Plan: Data + Eq + Hash + Into<AnyPlan>;
    /// The expected cost of a plan.
    type Cost: Data + Copy + for<'a> From<&'a Self::ExactCost>;
    /// The measurements of a plan that was carried out.
    type Outcome: Data + Copy + From<Self::Measured>;
    /// A cost, exact to the bit, for replay.
    type ExactCost: Data + From<Self::Cost>;
    /// The part of an outcome that policies get.
    type Measured: Data + Copy + for<'a> From<&'a Self::Outcome>;

    /// A plan's reason, for people.
    fn reason(plan: &Self::Plan) -> &str;

    /// The same, to be changed.
    fn reason_mut(plan: &mut Self::Plan) -> &mut String;

    /// The same plan without its reason.
    fn without_reason(plan: &Self::Plan) -> Self::Plan {
        let mut plan = plan.clone();
        Self::reason_mut(&mut plan).clear();
        plan
    }

    /// True if both are carried out in the same way: they differ in their reasons at most.
    fn is_same_work(one: &Self::Plan, other: &Self::Plan) -> bool {
        Self::without_reason(one) == Self::without_reason(other)
    }

    /// True if an attempt goes on where a failed one ended, so that the result is of both plans.
    fn is_continued(request: &Self::Request) -> bool;
}

/// Decodes and encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Vae;

/// Samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Denoise;

/// Runs of text encoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Text;

/// A plan of any kind of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AnyPlan {
    /// Of a decode or an encode.
    Vae(Plan),
    /// Of a sample.
    Denoise(DenoisePlan),
    /// Of a text encoder's run.
    Text(TextPlan),
}

impl AnyPlan {
    /// True if both are carried out in the same way: they differ in their reasons at most.
    pub fn is_same_work(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Vae(one), Self::Vae(other)) => Vae::is_same_work(one, other),
            (Self::Denoise(one), Self::Denoise(other)) => Denoise::is_same_work(one, other),
            (Self::Text(one), Self::Text(other)) => Text::is_same_work(one, other),
            _ => false,
        }
    }
}

impl From<Plan> for AnyPlan {
    fn from(plan: Plan) -> Self {
        Self::Vae(plan)
    }
}

impl From<DenoisePlan> for AnyPlan {
    fn from(plan: DenoisePlan) -> Self {
        Self::Denoise(plan)
    }
}

impl From<TextPlan> for AnyPlan {
    fn from(plan: TextPlan) -> Self {
        Self::Text(plan)
    }
}

impl Work for Vae {
    type Request = Request;
    type Capabilities = Capabilities;
    type Plan = Plan;
    type Cost = Cost;
    type Outcome = Outcome;
    type ExactCost = ExactCost;
    type Measured = Measured;

    fn reason(plan: &Plan) -> &str {
        &plan.reason
    }

    fn reason_mut(plan: &mut Plan) -> &mut String {
        &mut plan.reason
    }

    fn is_continued(request: &Request) -> bool {
        request.frames > 1
    }
}

impl Work for Denoise {
    type Request = DenoiseRequest;
    type Capabilities = DenoiseCapabilities;
    type Plan = DenoisePlan;
    type Cost = DenoiseCost;
    type Outcome = DenoiseOutcome;
    type ExactCost = ExactDenoiseCost;
    type Measured = DenoiseMeasured;

    fn reason(plan: &DenoisePlan) -> &str {
        &plan.reason
    }

    fn reason_mut(plan: &mut DenoisePlan) -> &mut String {
        &mut plan.reason
    }

    fn is_continued(_: &DenoiseRequest) -> bool {
        true
    }
}

impl Work for Text {
    type Request = TextRequest;
    type Capabilities = TextCapabilities;
    type Plan = TextPlan;
    type Cost = TextCost;
    type Outcome = TextOutcome;
    type ExactCost = ExactTextCost;
    type Measured = TextMeasured;

    fn reason(plan: &TextPlan) -> &str {
        &plan.reason
    }

    fn reason_mut(plan: &mut TextPlan) -> &mut String {
        &mut plan.reason
    }

    fn is_continued(_: &TextRequest) -> bool {
        false
    }
}
