//! The interface between engine and policies: the planner that decides ([`Planner`]), the prices
//! that it may ask for ([`CostModel`]), and its answer ([`Decision`]).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Question, Trial, Vae, Work};

/// The value of a policy's setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// Any number.
    Number(f64),
    /// Anything else.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(value) => value.fmt(f),
            Value::Integer(value) => value.fmt(f),
            Value::Number(value) => value.fmt(f),
            Value::Text(value) => f.write_str(value),
        }
    }
}

/// The policy that decided, identified to the byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyIdentity {
    /// As the policy describes itself.
    pub name: String,
    /// As the policy describes itself.
    pub version: String,
    /// `sha256:` and the digest of the file, in hexadecimal.
    pub digest: String,
    /// The settings that it was configured with, defaults included.
    pub settings: BTreeMap<String, Value>,
}

/// Prices and measurements that a planner may ask for while it decides. Answers must not change
/// between calls of one decision.
pub trait CostModel<W: Work = Vae>: Send + Sync {
    /// The prices of plans for the request at hand, in the plans' order, one for each. A plan that
    /// can't be carried out has an error instead, one line for the policy.
    fn estimate(&self, plans: &[W::Plan]) -> Vec<Result<W::Cost, String>> {
        plans.iter().map(|plan| self.estimate_one(plan)).collect()
    }

    /// The price of one plan.
    ///
    /// # Errors
    /// One line, for the policy, if the plan can't be carried out at all.
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String>;

    /// Measurements on this device for this model at about this size, newest first, at most `most`.
    fn trials(&self, _most: u32) -> Vec<Trial<W>> {
        Vec::new()
    }
}

/// A plan that a policy asked the price of.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate<W: Work = Vae> {
    /// As the policy asked.
    pub plan: W::Plan,
    /// The answer that it got.
    pub cost: Result<W::Cost, String>,
}

/// The importance of a line of a policy's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// For the policy's author.
    Debug,
    /// For users who ask for details.
    Info,
    /// For every user.
    Warn,
}

/// A line that a policy logged while it decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The line's importance.
    pub level: LogLevel,
    /// The text, control characters removed.
    pub message: String,
}

crate::names! {
    /// The reason why the host's own plan replaces a policy's answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum FallbackReason {
        /// The policy answered with an error.
        Error = "error",
        /// The answer makes no sense.
        Nonsense = "nonsense",
        /// The guest trapped.
        Trap = "trap",
        /// The guest used up its fuel.
        OutOfFuel = "out-of-fuel",
        /// The guest used up its time.
        Timeout = "timeout",
        /// The guest asked for more memory than it may have.
        OutOfMemory = "out-of-memory",
        /// The policy failed too often and is no longer asked.
        OutOfService = "out-of-service",
        /// The policy's attempts are used up: the last ones are the host's own.
        Exhausted = "exhausted",
        /// The policy leaves the stage to the host.
        NotAnswered = "not-answered",
    }
}

impl FallbackReason {
    /// True if the policy is to blame. An honest error is an answer, and a stage may be left to the
    /// host: neither is a failure.
    pub const fn is_failure(self) -> bool {
        !matches!(self, FallbackReason::Error | FallbackReason::NotAnswered)
    }
}

/// The host's own plan was taken, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fallback {
    /// The kind of failure.
    pub reason: FallbackReason,
    /// One line for the person who reads the record.
    pub detail: String,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

/// A planner's decision, and what led to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<W: Work = Vae> {
    /// The policy's answer, if it gave one.
    pub answer: Option<W::Plan>,
    /// The plan that will be carried out.
    pub plan: W::Plan,
    /// The changes made to the answer, a line each: `overlap 300 → 192: at most a quarter of the
    /// tile`.
    pub adjusted: Vec<String>,
    /// Set if the host's own plan replaces the answer.
    pub fallback: Option<Fallback>,
    /// Time spent deciding.
    pub elapsed: Duration,
    /// Fuel that the guest used.
    pub fuel: u64,
    /// The plans that the policy asked the price of, in order.
    pub candidates: Vec<Candidate<W>>,
    /// The lines that the policy logged.
    pub log: Vec<LogLine>,
}

/// The end of a call of `learn`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnReport {
    /// Fuel that the guest used.
    pub fuel: u64,
    /// The reason of the failure, if it failed.
    pub failure: Option<Fallback>,
}

/// Decides how work is run. Never fails: if there is no usable answer, it falls back to a plan of
/// its own and says so.
pub trait Planner<W: Work = Vae> {
    /// The policy in whose name it decides.
    fn identity(&self) -> &PolicyIdentity;

    /// Decides how a request is run; after failures, which are the question's attempts, decides
    /// again.
    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W>;

    /// The host's own plan, for the attempts that are left after the planner's are used up. No
    /// failed plan is tried again. `None` if no such plan is left, or if the host has no plans of
    /// its own for this planner.
    fn fallback(&mut self, _question: &Question<'_, W>, _costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        None
    }

    /// Learns from the outcome of a plan. Planners that can't fail at that report nothing.
    fn learn(&mut self, question: &Question<'_, W>, plan: &W::Plan, outcome: &W::Outcome) -> LearnReport;
}
