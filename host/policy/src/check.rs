//! Checks a plan against what the engine offers: a table of rules, applied in order. Each either leaves the plan alone or brings one
//! part of it into range and says so. What no range could mend is nonsense.
//!
//! Where frames of a clip have left already, the causal state that their plan left behind goes on under the next one: in one piece or in
//! bands as it was begun, in tiles as they were cut, and in no narrower type.

mod bounds;
mod rules;

use std::fmt;

use tilewright_plan::{Attempt, Dtype, Layout, Plan, Precision, Space, Tile, Time};

pub(crate) use self::bounds::Bounds;
use self::rules::{NONSENSE, RULES};

/// What is said of an answer that has failed before.
pub const REPEATED: &str = "a plan that has failed before";

/// A part of a plan as a note shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    Number(u32),
    Flag(bool),
    Space(Space),
    Precision(Precision),
    Layout(Layout),
    Time(Time),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Number(number) => number.fmt(f),
            Shown::Flag(flag) => flag.fmt(f),
            Shown::Space(space) => space.fmt(f),
            Shown::Precision(precision) => precision.fmt(f),
            Shown::Layout(layout) => layout.fmt(f),
            Shown::Time(time) => time.fmt(f),
        }
    }
}

/// What a rule changed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    from: Shown,
    to: Shown,
}

/// One row of the table: what it looks at, what it does, and what it says. `{unit}`, `{least}`, `{batch}`, `{prefetch}` and `{scale}`
/// stand for the offer's and the model's.
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

/// Brings a plan into the bounds and hands a note of each change to `notes`. Nothing is allocated where nothing is changed.
///
/// # Errors
/// What makes no sense about the plan, which is then left as it was.
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
/// Memory use and overflow come from the work that runs at once: parts of the same size, as many together, in the same
/// type and with as much kept in host memory. Plans that differ only in the release of memory, memory order, overlap of
/// parts or prefetch are the same plan here.
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

/// How much of a value a precision keeps, for comparing: range first, since what overflows is lost.
pub fn kept(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 5,
        Precision::Mixed(Dtype::Bf16) => 4,
        Precision::Mixed(Dtype::F16) => 3,
        Precision::Uniform(Dtype::Bf16) => 2,
        Precision::Uniform(Dtype::F16) => 1,
        Precision::Mixed(_) | Precision::Uniform(_) => 0,
    }
}

#[cfg(test)]
mod tests;
