//! The types that the host's crates share: [`Request`], [`Plan`], [`Cost`], [`Outcome`], and the
//! [`Record`] of a decision with all of them.
//!
//! Nothing here runs anything: the engine carries plans out, the policy runtime makes them, and
//! both meet in the [`Planner`] and [`CostModel`] traits.

#![forbid(unsafe_code)]

pub mod bytes;
mod choice;
mod decision;
mod denoise;
mod exact;
pub mod exchange;
mod expectation;
mod kinds;
mod loss;
mod milliseconds;
mod names;
mod options;
mod outcome;
mod plan;
mod question;
mod record;
mod recorder;
pub mod records;
mod request;
mod settings;
pub mod terminal;
mod text;
mod vae;
pub mod words;
mod work;

pub use choice::DeviceChoice;
pub use decision::{
    Candidate, CostModel, Decision, Fallback, FallbackReason, LearnReport, LogLevel, LogLine, Planner, PolicyIdentity,
    Value,
};
pub use denoise::{
    Attention, Denoise, DenoiseCapabilities, DenoiseCost, DenoiseMeasured, DenoiseOutcome, DenoisePlan, DenoiseRecord,
    DenoiseRequest, DenoiserModel, ExactDenoiseCost, GuidanceOrder, LEAST_QUERIES, MOST_BLOCKS_AHEAD, MOST_PARTS,
    Products, StepReuse, StoredType, WeightForm,
};
pub use exchange::Exchange;
pub use expectation::predict_cost;
pub use kinds::{Any, AnyPlan, Each, FieldOf, Kind, ModelPart, Stage, VariantOf};
pub use loss::Loss;
pub use options::{CONVOLUTION, DIRECT, FP8_SUMS, MOST_OPTIONS, OptionChange, Options, PlanOption, QUICK, Values};
pub use outcome::{Attempt, Cost, Failure, Outcome, PoolStatistics, Trial};
pub use plan::{Layout, Plan, Precision, Release, Space, Tile, Time};
pub use question::{Capabilities, LEAST_TILE, MOST_AHEAD, MOST_BATCH, Question, UnderWay};
pub use record::{FailedAttempt, Record, record_schema};
pub use recorder::{Recorded, Recorder};
pub use request::{Backend, Device, Dtype, Hint, HostMemory, LEANEST_TIME, Model, Objective, Request};
pub use text::{
    EncoderModel, ExactTextCost, Place, Text, TextCapabilities, TextCost, TextMeasured, TextOutcome, TextPlan,
    TextRecord, TextRequest,
};
pub use vae::{ExactCost, Measured, Vae};
pub use work::{Data, Work};
