//! A decision and its outcome as one JSON object: what `--json` prints, `--record` appends and a PNG carries.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Capabilities, Cost, Decision, Device, Exchange, Failure, Fallback, Outcome, Plan, PolicyIdentity, Request, Stage,
    milliseconds,
};

/// A decision, what it led to, and everything needed to make it again. Sizes are bytes, times milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Tilewright decision record")]
pub struct Record {
    /// The host's version.
    pub tilewright: String,
    /// When the decision was made, RFC 3339 in UTC.
    pub time: String,
    /// The kind of work; records of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// What was asked for.
    pub request: Request,
    /// What could be carried out; records of earlier programs tell it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// What it runs on.
    pub device: Device,
    /// Who decided.
    pub policy: PolicyIdentity,
    /// What the policy answered; null where it did not.
    pub answer: Option<Plan>,
    /// What was carried out: the answer after checking, or the native default.
    pub plan: Plan,
    /// What was changed in the answer.
    pub adjusted: Vec<String>,
    /// Set where the native default stood in.
    pub fallback: Option<Fallback>,
    /// Time spent deciding.
    #[serde(rename = "decision_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub decision: Duration,
    /// Fuel that the guest used.
    pub fuel: u64,
    /// The plan's price; null where it has none.
    pub estimate: Option<Cost>,
    /// The price corrected by what was measured before, where anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Cost>,
    /// The attempts that failed before, in order.
    pub attempts: Vec<FailedAttempt>,
    /// What was measured; null where nothing was decoded.
    pub outcome: Option<Outcome>,
    /// Output frames of a clip that an earlier run had left, and that this one went on from: its time is of the others alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed_frames: u32,
    /// What the policy was told, heard and answered, call by call; only with `--record full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
}

impl Record {
    /// The kind of work.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_hints(&self.request.hints))
    }

    /// What could be carried out, if the record tells all of it.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities.clone().or_else(|| Capabilities::of_hints(&self.request.hints))
    }

    /// The expected cost of the plan: corrected by earlier measurements if there were any, else its price.
    pub fn expectation(&self) -> Option<&Cost> {
        self.expected.as_ref().or(self.estimate.as_ref())
    }

    /// What was measured of the plan, where it is the plan's own: nothing of a clip that went on from an earlier run's frames, nor of one
    /// in the middle of which this plan took over from another.
    pub fn measured(&self) -> Option<&Outcome> {
        let is_shared = self.request.frames > 1 && !self.attempts.is_empty();
        self.outcome.as_ref().filter(|_| self.resumed_frames == 0 && !is_shared)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// An attempt that failed, with the decision that led to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailedAttempt {
    /// What was tried.
    pub plan: Plan,
    /// Why it failed.
    pub failure: Failure,
    /// What the policy answered; null where it did not.
    pub answer: Option<Plan>,
    /// What was changed in the answer.
    pub adjusted: Vec<String>,
    /// Set where the native default stood in.
    pub fallback: Option<Fallback>,
    /// Fuel that the guest used.
    pub fuel: u64,
}

impl FailedAttempt {
    /// The decision that led to a failure, and the failure.
    pub fn new(decision: Decision, failure: Failure) -> Self {
        let Decision { answer, plan, adjusted, fallback, fuel, .. } = decision;
        Self { plan, failure, answer, adjusted, fallback, fuel }
    }
}

/// The JSON Schema of [`Record`], as published in `record.schema.json`.
pub fn record_schema() -> serde_json::Value {
    schemars::schema_for!(Record).to_value()
}
