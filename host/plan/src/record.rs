//! A decision and its outcome as one JSON object: `--json` prints it, `--record` appends it to a
//! file, and a PNG carries it.

use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, CostModel, Decision, Device, Exchange, Failure, Fallback, PolicyIdentity, Question, Stage, Vae, Work,
    milliseconds, predict_cost,
};

/// A decision, its outcome, and everything needed to make the decision again. Sizes are bytes,
/// times milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Record")]
pub struct Record<W: Work = Vae> {
    /// The host's version.
    pub tilewright: String,
    /// The time of the decision, RFC 3339 in UTC.
    pub time: String,
    /// The stage; records of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The request.
    pub request: W::Request,
    /// The plans that could be carried out; records of earlier programs have them in the request's
    /// hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<W::Capabilities>,
    /// The device that the work runs on.
    pub device: Device,
    /// The policy that decided.
    pub policy: PolicyIdentity,
    /// The policy's answer; null if it gave none.
    pub answer: Option<W::Plan>,
    /// The plan that was carried out: the answer after checking, or the host's own plan.
    pub plan: W::Plan,
    /// The changes made to the answer.
    pub adjusted: Vec<String>,
    /// Set if the host's own plan replaced the answer.
    pub fallback: Option<Fallback>,
    /// Time spent deciding.
    #[serde(rename = "decision_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub decision: Duration,
    /// Fuel that the guest used.
    pub fuel: u64,
    /// The plan's price; null if it has none.
    pub estimate: Option<W::Cost>,
    /// The price corrected by earlier measurements, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<W::Cost>,
    /// The attempts that failed before, in order.
    pub attempts: Vec<FailedAttempt<W>>,
    /// The measurements; null if nothing was made.
    pub outcome: Option<W::Outcome>,
    /// Output frames of a clip, or steps of a sample, that an earlier run had done and this run
    /// continued from: its time is of the others alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed_frames: u32,
    /// The policy's inputs, questions and answers, call by call; only with `--record full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange<W>>,
}

impl<W: Work> Record<W> {
    /// The stage of the work.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_request::<W>(&self.request))
    }

    /// The plans that could be carried out, if the record holds all of it.
    pub fn capabilities(&self) -> Option<W::Capabilities> {
        self.capabilities.clone().or_else(|| W::capabilities_of_hints(W::hints(&self.request)))
    }

    /// The expected cost of the plan: corrected by earlier measurements if there were any, else its
    /// price.
    pub fn expectation(&self) -> Option<&W::Cost> {
        self.expected.as_ref().or(self.estimate.as_ref())
    }

    /// The outcome, if it is the plan's alone. `None` for a clip or a sample that continued from an
    /// earlier run's frames or steps, and for one of which another plan made a part.
    pub fn own_outcome(&self) -> Option<&W::Outcome> {
        let is_shared = W::is_continued(&self.request) && !self.attempts.is_empty();
        self.outcome.as_ref().filter(|_| self.resumed_frames == 0 && !is_shared)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// An attempt that failed, with the decision that led to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "FailedAttempt")]
pub struct FailedAttempt<W: Work = Vae> {
    /// The plan.
    pub plan: W::Plan,
    /// The reason of the failure.
    pub failure: Failure,
    /// The policy's answer; null if it gave none.
    pub answer: Option<W::Plan>,
    /// The changes made to the answer.
    pub adjusted: Vec<String>,
    /// Set if the host's own plan replaced the answer.
    pub fallback: Option<Fallback>,
    /// Fuel that the guest used.
    pub fuel: u64,
    /// Steps of a sample that were finished before it: the next plan went on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
}

impl<W: Work> FailedAttempt<W> {
    /// The decision that led to a failure, and the failure.
    pub fn new(decision: Decision<W>, failure: Failure) -> Self {
        let Decision { answer, plan, adjusted, fallback, fuel, .. } = decision;
        Self { plan, failure, answer, adjusted, fallback, fuel, step: None }
    }

    /// The attempt, as policies get it.
    pub fn attempt(&self) -> Attempt<W> {
        Attempt { plan: self.plan.clone(), failure: self.failure }
    }
}

impl<W: Work> Record<W> {
    /// The record of a decision that was made now, with its price by the costs that the planner was
    /// given.
    pub fn of(
        question: &Question<'_, W>,
        policy: &PolicyIdentity,
        decision: &Decision<W>,
        costs: &dyn CostModel<W>,
    ) -> Self {
        Self {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            stage: Some(question.stage),
            request: question.request.clone(),
            capabilities: Some(question.capabilities.clone()),
            device: question.device.clone(),
            policy: policy.clone(),
            answer: decision.answer.clone(),
            plan: decision.plan.clone(),
            adjusted: decision.adjusted.clone(),
            fallback: decision.fallback.clone(),
            decision: decision.elapsed,
            fuel: decision.fuel,
            estimate: costs.estimate_one(&decision.plan).ok(),
            expected: predict_cost(costs, &decision.plan),
            attempts: Vec::new(),
            outcome: None,
            resumed_frames: 0,
            exchange: None,
        }
    }
}

/// The JSON Schema of the records of a kind of work, as published in `record.schema.json` and its
/// neighbours.
pub fn record_schema<W: Work>() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Record<W>);
    schema.insert("title".into(), W::RECORD_TITLE.into());
    schema.to_value()
}
