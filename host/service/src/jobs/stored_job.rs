//! A job as the database has it.

use serde::{Deserialize, Serialize};
use tilewright_rollout::StoredAssignment;
use tilewright_service_api::{Job, JobRequest};

/// A job with what callers don't see. Its JSON is the database's: fields keep their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredJob {
    /// The job as callers see it.
    pub job: Job,
    /// The request.
    pub request: JobRequest,
    /// The revision that decides.
    pub pinned: StoredAssignment,
    /// The revision that decides on the decode, of a job from a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_decode: Option<StoredAssignment>,
    /// The deadline, in milliseconds since 1970.
    pub deadline_ms: u64,
    /// The number of times that work on it has begun.
    pub starts: u32,
    /// The server's crashes in the middle of it; kills and power failures don't count.
    #[serde(default)]
    pub crashes: u32,
}
