//! The gate's verdict, as it is printed and cached.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tilewright_plan::{Stage, Value};

use crate::{
    finding::{Finding, Severity, Step},
    trial::reasons,
};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has no finding of severity error.
    Passed,
    /// It has one.
    Failed,
    /// An earlier step failed.
    NotReached,
}

/// A step and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepState {
    /// The step.
    pub step: Step,
    /// The result.
    pub state: State,
}

/// The number of findings of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Findings that keep the policy from passing.
    pub errors: u32,
    /// Findings that cost time or memory.
    pub warnings: u32,
    /// The others.
    pub notes: u32,
}

/// The part of the golden set that was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoldenSet {
    /// Requests in the set, including the drawn ones.
    pub requests: u32,
    /// The seed of the drawn requests: 'tilewright policy check --seed' repeats them.
    pub seed: u32,
    /// Requests that were tried.
    pub tried: u32,
    /// Requests with a finding of severity error.
    pub failing: u32,
}

/// The part of a stage's golden requests that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSet {
    /// The stage.
    pub stage: Stage,
    /// Requests in the set, including the drawn ones.
    pub requests: u32,
    /// Requests that were tried.
    pub tried: u32,
    /// Requests with a finding of severity error.
    pub failing: u32,
}

/// The highest costs of single calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Fuel of a call.
    pub fuel: u64,
    /// The request of that call.
    pub fuel_request: Option<String>,
    /// Milliseconds of a decision, checking included.
    pub elapsed_ms: f64,
    /// The request of that call.
    pub elapsed_request: Option<String>,
    /// Bytes of linear memory after a call.
    pub memory_bytes: u64,
}

/// The gate's verdict on a policy with its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// As asked for: a name or a file.
    pub policy: String,
    /// As it describes itself; empty if that step was not reached.
    pub name: String,
    /// As it describes itself; empty if that step was not reached.
    pub version: String,
    /// `sha256:` and the digest of the file, in hexadecimal.
    pub digest: String,
    /// The policy's settings, defaults included.
    pub settings: BTreeMap<String, Value>,
    /// The host's version.
    pub tilewright: String,
    /// True if there is no finding of severity error.
    pub passes: bool,
    /// Every step.
    pub steps: Vec<StepState>,
    /// The part of the golden set that was tried.
    pub golden: GoldenSet,
    /// The same by stage, of the stages that the policy answers.
    #[serde(default)]
    pub stages: Vec<StageSet>,
    /// The number of findings.
    pub counts: Counts,
    /// The highest costs of single calls.
    pub worst: Worst,
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
    /// Milliseconds that the golden set took; 0 if it was not reached.
    pub elapsed_ms: f64,
}

impl Verdict {
    /// True if there is no finding of severity error.
    pub fn passes(&self) -> bool {
        self.passes
    }

    /// The failures in a few words: `fails 12 of 64 golden requests (trap)`.
    pub fn fails(&self) -> String {
        let reasons = reasons(&self.findings).join(", ");
        let GoldenSet { requests, tried, failing, .. } = self.golden;
        match self.steps.iter().find(|row| row.state == State::Failed) {
            Some(StepState { step: Step::Golden, .. }) if tried < requests => {
                format!("fails {failing} of the first {tried} golden requests ({reasons})")
            }
            Some(StepState { step: Step::Golden, .. }) => {
                format!("fails {failing} of {requests} golden requests ({reasons})")
            }
            Some(row) => format!("fails at {} ({reasons})", row.step),
            None => "passes".into(),
        }
    }

    /// A verdict on the findings so far. The last step reached is the one with an error, or the
    /// last of all.
    pub(crate) fn new(policy: &str, digest: String, findings: Vec<Finding>) -> Self {
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count() as u32;
        let counts =
            Counts { errors: count(Severity::Error), warnings: count(Severity::Warning), notes: count(Severity::Note) };
        let failed =
            findings.iter().filter(|finding| finding.severity == Severity::Error).map(|finding| finding.step).min();
        let state = |step: Step| match failed {
            Some(failed) if step == failed => State::Failed,
            Some(failed) if step > failed => State::NotReached,
            _ => State::Passed,
        };
        Self {
            policy: policy.into(),
            name: String::new(),
            version: String::new(),
            digest,
            settings: BTreeMap::new(),
            tilewright: env!("CARGO_PKG_VERSION").into(),
            passes: failed.is_none(),
            steps: Step::ALL.iter().map(|(step, ..)| StepState { step: *step, state: state(*step) }).collect(),
            golden: GoldenSet::default(),
            stages: Vec::new(),
            counts,
            worst: Worst::default(),
            findings,
            elapsed_ms: 0.0,
        }
    }
}
