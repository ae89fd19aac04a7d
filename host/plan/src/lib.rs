//! The types that the host's crates share: [`Request`], [`Plan`], [`Cost`], [`Outcome`], and the
//! [`Record`] of a decision with all of them.
//!
//! Nothing here runs anything: the engine carries plans out, the policy runtime makes them, and
//! both meet in the [`Planner`] and [`CostModel`] traits.

#![forbid(unsafe_code)]

pub mod bytes;
mod decision;
mod denoise;
mod exact;
pub mod exchange;
mod expectation;
mod milliseconds;
mod outcome;
mod plan;
mod question;
mod record;
mod recorder;
pub mod records;
mod request;
mod stage;
pub mod terminal;
pub mod words;

pub use decision::{
    Candidate, CostModel, Decision, Fallback, FallbackReason, LearnReport, LogLevel, LogLine, Planner, PolicyIdentity,
    Value,
};
pub use denoise::{
    Attention, DenoiseAttempt, DenoiseCost, DenoiseOutcome, DenoisePlan, DenoiseRecord, DenoiseRequest, DenoiserModel,
    GuidanceOrder, Products, StepReuse, StoredType, WeightForm, denoise_record_schema,
};
pub use exchange::Exchange;
pub use expectation::predict_cost;
pub use outcome::{Attempt, Cost, Failure, Outcome, PoolStatistics, Trial};
pub use plan::{Layout, Plan, Precision, Release, Space, Tile, Time};
pub use question::{Capabilities, LEAST_TILE, MOST_AHEAD, MOST_BATCH, Question, UnderWay};
pub use record::{FailedAttempt, Record, record_schema};
pub use recorder::Recorder;
pub use request::{Backend, Device, Dtype, Hint, Model, Objective, Request};
pub use stage::Stage;
