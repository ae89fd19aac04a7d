//! The assignment of a job to a revision, made when the job is accepted, and the job's result.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tilewright_plan::{Objective, Record, Vae};

use crate::{revision::Revision, served::Served, shadow::Shadow, slot::Slot, state::SavedRevision};

/// The revision that decides for a job. Holds the revision: it exists as long as the job.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The route that took the job.
    pub route: String,
    /// The revision that decides.
    pub revision: Arc<Revision>,
    /// True if it decides as a canary.
    pub canary: bool,
    /// The incumbent, if the job is to be decoded a second time to compare.
    pub compare: Option<Arc<Revision>>,
    /// The objective, if the route sets one.
    pub objective: Option<Objective>,
    /// True if the route allows blended tiles and chunks where an exact plan fits.
    pub allows_blended: bool,
    /// The memory limit in bytes, if the route sets one.
    pub memory_limit: Option<u64>,
    /// True if a clip takes a new revision at its next chunk, and a sample at its next step.
    pub takes_over: bool,
    pub(crate) slot: Arc<Slot>,
    pub(crate) shadow: Option<(Arc<Shadow>, Arc<Revision>)>,
}

/// The part of an assignment that outlives the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAssignment {
    pub(crate) route: String,
    pub(crate) policy: String,
    #[serde(flatten)]
    pub(crate) revision: SavedRevision,
    pub(crate) canary: bool,
    pub(crate) objective: Option<Objective>,
    /// Jobs that an earlier program stored were allowed it.
    #[serde(default = "is_allowed")]
    pub(crate) allows_blended: bool,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) takes_over: bool,
}

const fn is_allowed() -> bool {
    true
}

impl StoredAssignment {
    /// The module that it needs.
    pub fn digest(&self) -> &str {
        &self.revision.digest
    }

    /// The route that took the job.
    pub fn route(&self) -> &str {
        &self.route
    }

    /// The policy that decides, and the number of its revision.
    pub fn revision(&self) -> (&str, u64) {
        (&self.policy, self.revision.number)
    }

    /// True if it decides as a canary.
    pub const fn is_canary(&self) -> bool {
        self.canary
    }
}

impl From<&Assignment> for StoredAssignment {
    fn from(assignment: &Assignment) -> Self {
        let Assignment { route, revision, canary, objective, allows_blended, memory_limit, takes_over, .. } =
            assignment;
        Self {
            route: route.clone(),
            policy: revision.policy.clone(),
            revision: revision.saved.clone(),
            canary: *canary,
            objective: *objective,
            allows_blended: *allows_blended,
            memory_limit: *memory_limit,
            takes_over: *takes_over,
        }
    }
}

/// The result of a job.
#[derive(Clone, Debug)]
pub struct EndedJob<W: Served = Vae> {
    /// The job's record, with the exchange.
    pub record: Record<W>,
    /// True if several revisions decided for it: its outcome counts for none of them.
    pub is_mixed: bool,
    /// True if it ended without a result because of its plans: none could be carried out, or not in
    /// time.
    pub is_lost: bool,
    /// The PSNR between its result and that of the incumbent's plan, in dB, if it was measured.
    pub psnr: Option<f64>,
}
