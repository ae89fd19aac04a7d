//! Makes recorded decisions again, from what `--record full` wrote down and nothing else: no model, no device, no host that prices
//! plans.
//!
//! [`again`] asks the policy that decided then: every answer, plan, adjustment, fallback and unit of fuel has to be what it was, since a
//! policy sees nothing but what the record holds. [`other`] asks another policy the same questions, and says what its plans would have
//! been worth as far as the records tell; where they don't it says nothing.

mod again;
mod facts;
mod gather;
mod other;
#[cfg(test)]
mod tests;

pub use again::{Again, AgainRow, AgainTotals, Difference, Verdict, again};
pub use gather::{Recorded, ReplayError, Session, Spoken, gather};
pub use other::{Basis, Other, OtherRow, OtherTotals, OtherVerdict, Worth, other};

use tilewright_plan::{Device, Model, Plan, Planner, PolicyIdentity, Request, Stage};

/// Puts the policy of a session to work, anew each time; its error ends the replay.
pub type Makes<'a> = dyn FnMut(&PolicyIdentity) -> Result<Box<dyn Planner>, String> + 'a;

/// A plan without its reason, which changes nothing of how it is run.
pub(crate) fn bare(plan: &Plan) -> Plan {
    Plan { reason: String::new(), ..plan.clone() }
}

/// What has to be alike for prices and measurements of one request to hold for another: the model, the device, the stage and the extents. Limits and
/// objectives don't change what a plan costs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    model: Model,
    device: Device,
    stage: Stage,
    extents: [u32; 4],
}

impl Work {
    pub fn of(stage: Stage, request: &Request, device: &Device) -> Self {
        Self {
            model: request.model.clone(),
            // What is free differs from hour to hour.
            device: Device { free_bytes: 0, ..device.clone() },
            stage,
            extents: [request.batch, request.frames, request.height, request.width],
        }
    }
}

/// A plan in a few words.
pub fn in_words(plan: &Plan) -> String {
    let mut words = format!("{} {} {}", plan.space, plan.precision, plan.layout);
    if plan.time != tilewright_plan::Time::Whole {
        words.push_str(&format!(", time {}", plan.time));
    }
    if plan.batch > 1 {
        words.push_str(&format!(", batch {}", plan.batch));
    }
    words
}
