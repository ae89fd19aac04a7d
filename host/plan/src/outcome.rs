//! What a plan is expected to cost, and what became of it. Mirrors the contract's `decoding.cost`, `.outcome` and `.failure`.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Plan, bytes, milliseconds};

/// What the host expects of a plan for the request at hand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The most held at once, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Time of the decode, loading aside.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Tiles in all, over samples and chunks.
    pub tiles: u32,
    /// Distinct tensor shapes that the convolutions will see; each new one may cost a kernel search.
    pub shapes: u32,
    /// Output computed over output kept: 1.0 where nothing is computed twice.
    pub rework: f64,
}

/// What the memory pool did during a decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatistics {
    /// Requests served from memory that was held.
    pub hits: u64,
    /// Requests that had to ask the system or the driver.
    pub misses: u64,
    /// Bytes held when the decode ended, in use or not.
    pub held_bytes: u64,
    /// How broken up the memory was that was held and not in use when the decode ended, from 0 (one piece) to 1.
    #[serde(default)]
    pub fragmentation: f64,
}

/// What was measured of a plan that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Time of the decode that succeeded, loading and failed attempts aside.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Time spent reading and converting the weights.
    #[serde(rename = "load_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub load: Duration,
    /// The most held at once, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
    /// What the memory pool did.
    pub pool: PoolStatistics,
}

/// A plan that was carried out, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// How it was run.
    pub plan: Plan,
    /// What was measured.
    pub outcome: Outcome,
}

/// Why a plan did not end in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Failure {
    /// Memory could not be had.
    OutOfMemory {
        /// The bytes that could not be had.
        bytes: u64,
    },
    /// The result held NaN or infinity.
    NonFinite {
        /// How many values were not finite.
        values: u64,
    },
    /// The peak went over the limit.
    OverLimit {
        /// The peak in bytes.
        bytes: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::OutOfMemory { bytes } => write!(f, "out of memory ({} more were needed)", bytes::display(*bytes)),
            Failure::NonFinite { values } => write!(f, "{values} values are NaN or infinite"),
            Failure::OverLimit { bytes } => write!(f, "the peak of {} went over the limit", bytes::display(*bytes)),
        }
    }
}

/// A plan that failed, as a policy is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// How it was run.
    pub plan: Plan,
    /// Why it failed.
    pub failure: Failure,
}
