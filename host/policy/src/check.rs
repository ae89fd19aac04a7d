//! Checks a plan against the engine's capabilities, by a table of rules that are applied in order.
//! A rule leaves the plan alone, or brings one part of it into range with a note. A plan that no
//! range could mend is nonsense.
//!
//! If frames of a clip are delivered already, the causal cache of their plan goes on under the next
//! one: in one piece or in bands as before, in the same tiles, and in no narrower type.

mod bounds;
mod rules;

use std::fmt;

use tilewright_plan::{Attempt, Dtype, Layout, Plan, Precision, Space, Tile, Time};

pub(crate) use self::bounds::Bounds;
use self::rules::{NONSENSE, RULES};

/// The detail of a fallback for an answer that has failed before.
pub const REPEATED: &str = "a plan that has failed before";

/// A part of a plan as a note shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Number(u32),
    Flag(bool),
    Space(Space),
    Precision(Precision),
    Layout(Layout),
    Time(Time),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Number(number) => number.fmt(f),
            Part::Flag(flag) => flag.fmt(f),
            Part::Space(space) => space.fmt(f),
            Part::Precision(precision) => precision.fmt(f),
            Part::Layout(layout) => layout.fmt(f),
            Part::Time(time) => time.fmt(f),
        }
    }
}

/// A change that a rule made.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    from: Part,
    to: Part,
}

/// One row of the table: the part that it is about, the reason that it gives, and the change that
/// it makes. `{unit}`, `{least}`, `{batch}`, `{prefetch}` and `{scale}` stand for the values of the
/// capabilities and the model.
struct Rule {
    subject: &'static str,
    because: &'static str,
    fit: fn(&mut Plan, &Bounds) -> Option<Change>,
}

/// A change that was made to a plan, and why.
pub(crate) struct Note<'a> {
    rule: &'static Rule,
    change: Change,
    bounds: &'a Bounds,
}

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capabilities = &self.bounds.capabilities;
        let because = (self.rule.because)
            .replace("{unit}", &self.bounds.unit().to_string())
            .replace("{least}", &capabilities.tile_least.to_string())
            .replace("{batch}", &capabilities.batch_most.to_string())
            .replace("{prefetch}", &capabilities.prefetch_most.to_string())
            .replace("{scale}", &self.bounds.scale.to_string());
        match self.rule.subject {
            "" => f.write_str(&because),
            subject => write!(f, "{subject} {} → {}: {because}", self.change.from, self.change.to),
        }
    }
}

/// Brings a plan into the bounds and passes a note of each change to `notes`. An unchanged plan
/// costs no allocation.
///
/// # Errors
/// The part of the plan that makes no sense; the plan is then left as it was.
pub(crate) fn fit(plan: &mut Plan, bounds: &Bounds, notes: &mut dyn FnMut(Note<'_>)) -> Result<(), &'static str> {
    if let Some((_, nonsense)) = NONSENSE.iter().find(|(makes_none, _)| makes_none(plan)) {
        return Err(nonsense);
    }
    for rule in RULES {
        if let Some(change) = (rule.fit)(plan, bounds) {
            notes(Note { rule, change, bounds });
        }
    }
    Ok(())
}

/// True if a plan repeats a failed one: it differs in nothing that makes the failure less likely.
///
/// Memory use and overflow come from the work that runs at once: parts of the same size, as many
/// together, in the same type and with as much kept in host memory. Plans that differ only in the
/// release of memory, memory order, overlap of parts or prefetch are the same plan here.
pub(crate) fn repeats(plan: &Plan, attempt: &Attempt) -> bool {
    let tried = &attempt.plan;
    let bare = |space: Space| match space {
        Space::Whole => Space::Whole,
        Space::Blended(tile) => Space::Blended(Tile { overlap: 0, ..tile }),
        Space::Exact(tile) => Space::Exact(Tile { overlap: 0, ..tile }),
    };
    plan.precision == tried.precision
        && bare(plan.space) == bare(tried.space)
        && plan.time == tried.time
        && plan.batch == tried.batch
        && plan.offload == tried.offload
}

/// The rank of a precision by how much of a value it keeps: range first, since a value that
/// overflows is lost.
pub fn rank_precision(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 6,
        Precision::Uniform(Dtype::Tf32) | Precision::Mixed(Dtype::Tf32) => 5,
        Precision::Mixed(Dtype::Bf16) => 4,
        Precision::Mixed(Dtype::F16) => 3,
        Precision::Uniform(Dtype::Bf16) => 2,
        Precision::Uniform(Dtype::F16) => 1,
        Precision::Mixed(_) | Precision::Uniform(_) => 0,
    }
}

#[cfg(test)]
mod tests;
