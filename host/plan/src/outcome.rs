//! The expected cost of a plan, and its outcome. Mirrors the contract's `vae.cost`, `.outcome` and
//! `.failure`.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Vae, Work, bytes, milliseconds};

/// The expected cost of a plan for the request at hand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The highest memory use, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Bytes of weights in the peak: 0 if the limit does not count them.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Time of the work, without loading.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Tiles in all, over samples and chunks.
    pub tiles: u32,
    /// Distinct tensor shapes that the convolutions will see; each new one may cost a kernel
    /// search.
    pub shapes: u32,
    /// Output computed over output kept: 1.0 if nothing is computed twice.
    pub rework: f64,
}

/// The memory pool's work during a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatistics {
    /// Requests served from memory that was held.
    pub hits: u64,
    /// Requests that had to go to the system or the driver.
    pub misses: u64,
    /// Bytes held when the work ended, in use or not.
    pub held_bytes: u64,
    /// Fragmentation of the held memory that was not in use when the work ended, from 0 (one piece)
    /// to 1.
    #[serde(default)]
    pub fragmentation: f64,
}

/// Measurements of a plan that was carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Time of the attempt that succeeded, without loading and failed attempts.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Time spent reading and converting the weights.
    #[serde(rename = "load_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub load: Duration,
    /// The highest memory use, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Bytes of weights in the peak: 0 if the limit does not count them.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
    /// The memory pool's work.
    pub pool: PoolStatistics,
    /// True if the process ran on its GPU in this format for the first time: libraries were loaded
    /// and kernels compiled meanwhile, so that the time says little of the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold: bool,
}

/// A plan that was carried out, and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Trial")]
pub struct Trial<W: Work = Vae> {
    /// The plan.
    pub plan: W::Plan,
    /// The measurements.
    pub outcome: W::Outcome,
}

/// The reason why a plan did not give an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Failure {
    /// An allocation failed.
    OutOfMemory {
        /// The bytes that could not be allocated.
        bytes: u64,
    },
    /// The result held NaN or infinity.
    NonFinite {
        /// The number of values that were not finite.
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

/// A plan that failed, as policies see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Attempt")]
pub struct Attempt<W: Work = Vae> {
    /// The plan.
    pub plan: W::Plan,
    /// The reason of the failure.
    pub failure: Failure,
}
