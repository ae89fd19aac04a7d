//! The meeting point of engine and policies: who decides ([`Planner`]), what it may ask ([`Facts`]),
//! what it may choose from ([`Offer`]) and what it decided ([`Decision`]).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Attempt, Cost, Device, Dtype, Hint, Outcome, Plan, Request, Trial};

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

/// Which policy decided, to the byte.
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

/// What the engine can carry out for the request at hand; answers are checked against it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offer {
    /// The types that convolutions can run in on this device.
    pub dtypes: Vec<Dtype>,
    /// Tiles and overlaps are multiples of this many pixels.
    pub tile_unit: u32,
    /// The smallest side of a tile, in pixels.
    pub tile_least: u32,
    /// The most samples or tiles that run together.
    pub batch_most: u32,
    /// `exact` tiles can be run.
    pub exact: bool,
    /// Chunks with the causal state carried across can be run.
    pub carried: bool,
    /// Activations can wait in host memory.
    pub offload: bool,
    /// The most inputs that can be copied ahead.
    pub prefetch_most: u32,
    /// What a clip is under way with, some of its frames delivered; none before that, and for pictures. Its state goes on: in one piece or
    /// bands, or in the same tiles; carried on or whole in time as it was begun; in the same memory order and no narrower type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Plan>,
}

impl Offer {
    /// The offer as hints, since the contract's request has no fields for it: `offer.exact` is `true` or `false`, `offer.dtypes` is
    /// `f32,bf16`, and so on.
    pub fn hints(&self) -> Vec<Hint> {
        self.hints_beyond(&[])
    }

    /// The offer as hints, without those whose name is among the ones told already. Costs little where all are, as in a request that
    /// began with [`Offer::hints`].
    pub fn hints_beyond(&self, told: &[Hint]) -> Vec<Hint> {
        let is_told = |place: usize, name: &str| {
            told.get(place).is_some_and(|hint| hint.name == name) || told.iter().any(|hint| hint.name == name)
        };
        let beyond = HINTS.iter().enumerate().filter(|(place, (name, _))| !is_told(*place, name));
        beyond.map(|(_, (name, value))| Hint { name: (*name).into(), value: value(self) }).collect()
    }
}

/// What of an offer is told as hints, and how.
type Told = (&'static str, fn(&Offer) -> String);

const HINTS: [Told; 8] = [
    ("offer.dtypes", |offer| offer.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",")),
    ("offer.tile-unit", |offer| offer.tile_unit.to_string()),
    ("offer.tile-least", |offer| offer.tile_least.to_string()),
    ("offer.batch-most", |offer| offer.batch_most.to_string()),
    ("offer.exact", |offer| offer.exact.to_string()),
    ("offer.carried", |offer| offer.carried.to_string()),
    ("offer.offload", |offer| offer.offload.to_string()),
    ("offer.prefetch-most", |offer| offer.prefetch_most.to_string()),
];

/// What a policy may ask of the host while it decides. Answers must not change between calls of one decision.
pub trait Facts: Send + Sync {
    /// What a plan would cost for the request at hand.
    ///
    /// # Errors
    /// One line, for the policy, where the plan can't be carried out at all.
    fn estimate(&self, plan: &Plan) -> Result<Cost, String>;

    /// What was measured on this device for this model at about this size, newest first, at most `most`.
    fn trials(&self, most: u32) -> Vec<Trial>;
}

/// A plan that a policy asked the price of.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// As the policy asked.
    pub plan: Plan,
    /// The answer that it got.
    pub cost: Result<Cost, String>,
}

/// How much a line of a policy's log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// For the policy's author.
    Debug,
    /// For the curious.
    Info,
    /// For everybody.
    Warn,
}

/// A line that a policy logged while it decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How much it matters.
    pub level: LogLevel,
    /// The text, control characters removed.
    pub message: String,
}

/// Why the host's native default stands in for a policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FallbackReason {
    /// The policy answered with an error.
    Error,
    /// The answer makes no sense.
    Nonsense,
    /// The guest trapped.
    Trap,
    /// The guest used up its fuel.
    OutOfFuel,
    /// The guest used up its time.
    Timeout,
    /// The guest asked for more memory than it may have.
    OutOfMemory,
    /// The policy failed too often and is no longer asked.
    OutOfService,
    /// The policy's attempts are used up: the last ones are the host's own.
    Exhausted,
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FallbackReason::Error => "error",
            FallbackReason::Nonsense => "nonsense",
            FallbackReason::Trap => "trap",
            FallbackReason::OutOfFuel => "out-of-fuel",
            FallbackReason::Timeout => "timeout",
            FallbackReason::OutOfMemory => "out-of-memory",
            FallbackReason::OutOfService => "out-of-service",
            FallbackReason::Exhausted => "exhausted",
        })
    }
}

/// The host's native default was taken, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fallback {
    /// The kind of failure.
    pub reason: FallbackReason,
    /// One line for the person who reads the record.
    pub detail: String,
}

/// What a planner decided, and how it came to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What the policy answered, where it did.
    pub answer: Option<Plan>,
    /// What will be carried out.
    pub plan: Plan,
    /// What was changed in the answer, a line each: `overlap 300 → 192: at most a quarter of the tile`.
    pub adjusted: Vec<String>,
    /// Set where the native default stands in.
    pub fallback: Option<Fallback>,
    /// Time spent deciding.
    pub elapsed: Duration,
    /// Fuel that the guest used.
    pub fuel: u64,
    /// The plans that the policy asked the price of, in order.
    pub candidates: Vec<Candidate>,
    /// What the policy logged.
    pub log: Vec<LogLine>,
}

/// What became of a call of `learn`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learnt {
    /// Fuel that the guest used.
    pub fuel: u64,
    /// Why it failed, where it did.
    pub failure: Option<Fallback>,
}

/// Decides how work is run. Never fails: where there is no usable answer, it falls back to a default of its own and says so.
pub trait Planner {
    /// Who decides.
    fn identity(&self) -> &PolicyIdentity;

    /// Decides how a request is run.
    fn decide(&mut self, request: &Request, device: &Device, offer: &Offer, facts: Arc<dyn Facts>) -> Decision;

    /// Decides again after a failure; `attempts` are in order, the latest last, and never empty.
    fn recover(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Decision;

    /// The host's own plan, for the attempts that are left after the planner's are used up; nothing that has failed is
    /// tried again. `None` if no such plan is left, or if the host has no plans of its own for this planner.
    fn stand_in(
        &mut self,
        _request: &Request,
        _device: &Device,
        _offer: &Offer,
        _facts: Arc<dyn Facts>,
        _attempts: &[Attempt],
    ) -> Option<Decision> {
        None
    }

    /// Hears what became of a plan.
    fn learn(&mut self, request: &Request, device: &Device, plan: &Plan, outcome: &Outcome);

    /// What became of the last `learn`, for records; planners that can't fail to learn have nothing to say.
    fn learnt(&self) -> Learnt {
        Learnt::default()
    }
}
