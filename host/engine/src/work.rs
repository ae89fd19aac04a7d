//! The kinds of work, as the engine carries them out.

use std::time::Duration;

use tilewright_plan::{Decision, FailedAttempt, Layout, VariantOf, Work, any};
use tilewright_prices::Priced;

/// A kind of work that the engine carries out.
pub trait Runnable:
    Priced
    + for<'a> VariantOf<AnyDecided<'a>, Variant = Decided<'a, Self>>
    + for<'a> VariantOf<AnyFailed<'a>, Variant = Failed<'a, Self>>
{
    /// The memory order of a plan that sets it.
    fn layout(_plan: &Self::Plan) -> Option<Layout> {
        None
    }

    /// An outcome with the totals of all attempts.
    fn with_attempts(outcome: Self::Outcome, attempts: Attempts) -> Self::Outcome;
}

/// All attempts of a job, the last one included.
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    /// Their number.
    pub count: u32,
    /// The time that they took to load weights.
    pub load: Duration,
    /// The last one was the first of its format on a GPU in this process.
    pub cold: bool,
}

/// A plan that is about to be carried out.
#[derive(Debug)]
pub struct Decided<'a, W: Work> {
    /// The decision.
    pub decision: &'a Decision<W>,
    /// The expected cost; `None` if the plan has no price.
    pub expected: Option<&'a W::Cost>,
    /// Steps of a sample that are done.
    pub steps_done: u32,
}

/// A plan that failed.
#[derive(Debug)]
pub struct Failed<'a, W: Work> {
    /// The attempt.
    pub attempt: &'a FailedAttempt<W>,
    /// The plan that follows; `None` if the job gives up.
    pub next: Option<&'a W::Plan>,
}

/// [`Decided`] of any kind of work.
pub type AnyDecided<'a> = any!(Decided<'a>);

/// [`Failed`] of any kind of work.
pub type AnyFailed<'a> = any!(Failed<'a>);
