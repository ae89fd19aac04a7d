//! Invariants of every checked answer, for property tests, fuzzing, and plans that no policy
//! answered.

use tilewright_plan::Question;

pub use crate::exact::in_place_of as exact_in_place_of;
use crate::{Governed, check};

/// Checks an answer as a decision does: returns the changes.
///
/// # Errors
/// The part of the plan that makes no sense.
pub fn check_answer<W: Governed>(plan: &mut W::Plan, question: &Question<'_, W>) -> Result<Vec<String>, &'static str> {
    let mut notes = Vec::new();
    check::fit::<W>(plan, &W::bounds(question), &mut |note| notes.push(note.to_string()))?;
    Ok(notes)
}

/// The illegal parts of a plan that was checked; empty if the checker is right.
pub fn find_breaches<W: Governed>(plan: &W::Plan, question: &Question<'_, W>) -> Vec<&'static str> {
    W::breaches(plan, &W::bounds(question))
}
