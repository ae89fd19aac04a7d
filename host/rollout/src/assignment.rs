//! Who decides for a job, settled when the job is accepted, and what came of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tilewright_plan::{Objective, Record};

use crate::{revision::Revision, shadow::Shadow, slot::Slot, source::Grants};

/// Who decides for a job. Holds the revision: it is there for as long as the job is.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The route that took the job.
    pub route: String,
    /// Who decides.
    pub revision: Arc<Revision>,
    /// Whether it decides on trial.
    pub canary: bool,
    /// Who would have decided, where the job is to be decoded a second time to compare.
    pub compare: Option<Arc<Revision>>,
    /// What matters most, where the route says.
    pub objective: Option<Objective>,
    /// Bytes, where the route says.
    pub memory_limit: Option<u64>,
    /// Whether a clip takes a new revision at its next chunk.
    pub takes_over: bool,
    pub(crate) slot: Arc<Slot>,
    pub(crate) shadow: Option<(Arc<Shadow>, Arc<Revision>)>,
}

/// What of an assignment outlives the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    pub(crate) route: String,
    pub(crate) policy: String,
    pub(crate) number: u64,
    pub(crate) digest: String,
    pub(crate) origin: String,
    pub(crate) since: String,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) grants: Grants,
    pub(crate) canary: bool,
    pub(crate) objective: Option<Objective>,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) takes_over: bool,
}

impl Pinned {
    /// The module that it needs.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl From<&Assignment> for Pinned {
    fn from(assignment: &Assignment) -> Self {
        let Assignment { route, revision, canary, objective, memory_limit, takes_over, .. } = assignment;
        Self {
            route: route.clone(),
            policy: revision.policy.clone(),
            number: revision.number,
            digest: revision.digest.clone(),
            origin: revision.origin.clone(),
            since: revision.since.clone(),
            settings: revision.settings.clone(),
            grants: revision.grants,
            canary: *canary,
            objective: *objective,
            memory_limit: *memory_limit,
            takes_over: *takes_over,
        }
    }
}

/// What came of a job.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its record, with what was said.
    pub record: Record,
    /// More than one revision decided for it: its outcome is nobody's.
    pub is_mixed: bool,
    /// It ended without a result, and how it was run has to do with it: no plan could be carried out, or not in time.
    pub is_lost: bool,
    /// The PSNR between its picture and the one of the incumbent's plan, in dB, where that was looked at.
    pub psnr: Option<f64>,
}
