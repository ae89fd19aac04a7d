//! Policies in service: revisions replace each other while work goes on, routes assign policies to
//! jobs, shadows are asked beside and only compared, canaries take a share until they are promoted
//! or stopped, and a watchdog rolls back worse revisions. Knows nothing of HTTP, jobs or libtorch.
//!
//! [`Rollout`] holds the state. A job gets an [`Assignment`] when it is accepted, decides through a
//! [`Decider`], and reports its result at its end ([`Rollout::record_result`]).

#![forbid(unsafe_code)]

mod assignment;
mod canary;
mod comparison;
mod counts;
mod decider;
mod disk;
mod dump;
mod error;
mod event;
mod module;
mod revision;
mod rollout;
mod served;
mod shadow;
mod slot;
mod source;
mod state;
mod tally;
mod unanswered;
mod watchdog;

pub use assignment::{Assignment, EndedJob, StoredAssignment};
pub use canary::{CanaryFacts, CanaryState};
pub use comparison::{LOOKS, Rule};
pub use decider::{Decider, UntrackedPlanner};
pub use disk::{Disk, WriteFailure, is_full};
pub use error::{Error, Result, without_error_numbers};
pub use event::{Event, EventKind};
pub use module::Modules;
pub use revision::Revision;
pub use rollout::{Change, CheckResult, Replacement, Rollout};
pub use served::Served;
pub use shadow::{Regret, ShadowFacts};
pub use slot::{RefusedModule, SlotFacts};
pub use tally::TallyFacts;
pub use unanswered::Unanswered;
pub use watchdog::RULE;
