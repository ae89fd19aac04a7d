//! A job as the database has it.

use serde::{Deserialize, Serialize};
use tilewright_plan::Stage;
use tilewright_rollout::StoredAssignment;
use tilewright_service_api::{Job, JobRequest};

use crate::clock;

/// A job with what callers don't see. Its JSON is the database's: fields keep their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredJob {
    /// The job as callers see it.
    pub job: Job,
    /// The request.
    pub request: JobRequest,
    /// The digest of the files that came with the request, of a job with an idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<String>,
    /// The revision that decides; of a job from a prompt, on the sample.
    pub pinned: StoredAssignment,
    /// The revision that decides on the encoders' runs, of a job from a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_text: Option<StoredAssignment>,
    /// The revision that decides on the decode, of a job from a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_decode: Option<StoredAssignment>,
    /// The revision that decides on the encode of the picture that a job from a prompt begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_encode: Option<StoredAssignment>,
    /// The deadline by the steady clock, in milliseconds since 1970.
    pub deadline_ms: u64,
    /// The shortest time that its work is expected to take, in milliseconds; none if nothing is
    /// known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// The number of times that work on it has begun.
    pub starts: u32,
    /// The server's crashes in the middle of it; kills and power failures don't count.
    #[serde(default)]
    pub crashes: u32,
}

impl StoredJob {
    /// The revisions that decide on the stages beside a sample, of a job from a prompt.
    const fn pinned_beside(&self) -> [(Stage, &Option<StoredAssignment>); 3] {
        [(Stage::Text, &self.pinned_text), (Stage::Encode, &self.pinned_encode), (Stage::Decode, &self.pinned_decode)]
    }

    /// The revision that decides on a stage.
    pub fn pinned_of(&self, stage: Stage) -> &StoredAssignment {
        let beside = self.pinned_beside().into_iter().find(|(of, _)| *of == stage);
        beside.and_then(|(_, pinned)| pinned.as_ref()).unwrap_or(&self.pinned)
    }

    /// A time of the job, in RFC 3339, from the steady clock's: the wall clock counts when the job
    /// is accepted, and the times after it are as far behind as they are in fact.
    pub fn time_of(&self, steady_ms: u64) -> String {
        let passed = clock::accepted_ms(&self.job.id).map_or(0, |accepted| steady_ms.saturating_sub(accepted));
        clock::format_ms(clock::parse_ms(&self.job.created).saturating_add(passed))
    }

    /// The revisions of all stages.
    pub fn pins(&self) -> impl Iterator<Item = &StoredAssignment> {
        std::iter::once(&self.pinned).chain(self.pinned_beside().into_iter().filter_map(|(_, pinned)| pinned.as_ref()))
    }
}
