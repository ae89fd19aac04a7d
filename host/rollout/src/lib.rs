//! Policies in service: revisions of a policy take over from each other while work goes on, routes say which policy decides for which
//! job, shadows are asked beside and only compared, canaries take a share until they are promoted or stopped, and a watchdog rolls back
//! what does worse. Knows nothing of HTTP, jobs or libtorch.
//!
//! [`Rollout`] holds it all. A job is given an [`Assignment`] when it is accepted, decides through a [`Decider`], and says at its end what
//! came of it ([`Rollout::ended`]).

#![forbid(unsafe_code)]

mod assignment;
mod canary;
mod comparison;
mod decider;
mod disk;
mod dump;
mod error;
mod event;
mod module;
mod revision;
mod rollout;
mod shadow;
mod slot;
mod source;
mod state;
mod tally;
mod watchdog;

pub use assignment::{Assignment, Ended, Pinned};
pub use canary::{CanaryFacts, CanaryState};
pub use comparison::{LOOKS, Rule};
pub use decider::{Decider, Unheard};
pub use disk::{Disk, Trouble, is_full};
pub use error::{Error, Result, without_error_numbers};
pub use event::{Event, What};
pub use module::Modules;
pub use revision::Revision;
pub use rollout::{Change, Checked, Replacement, Rollout};
pub use shadow::{Regret, ShadowFacts};
pub use slot::{Refused, SlotFacts};
pub use tally::TallyFacts;
pub use watchdog::RULE;
