//! A request for one piece of work on one device: all that there is before a plan is carried out.

use std::ops::Deref;

use tilewright_plan::{Candidate, LogLine, Record, Vae, Work};
use tilewright_prices::Quote;

use crate::{Error, Machine, work::Runnable};

/// A request for one piece of work on one device. `I` is its input: a network and what goes into
/// it.
#[derive(Debug)]
pub struct Job<'a, W: Runnable, I> {
    pub(crate) machine: &'a Machine,
    pub(crate) quote: Quote<W>,
    pub(crate) input: I,
}

/// A job that ended with its result.
#[derive(Debug)]
pub struct Finished<T, W: Work = Vae> {
    /// The result.
    pub output: T,
    /// The decision and what was measured.
    pub record: Record<W>,
    /// The plans that the policy asked the price of for the last decision.
    pub candidates: Vec<Candidate<W>>,
    /// The lines that the policy logged for it.
    pub log: Vec<LogLine>,
}

impl<T, W: Work> Finished<T, W> {
    /// The same end with another result.
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> Finished<U, W> {
        let Self { output, record, candidates, log } = self;
        Finished { output: of(output), record, candidates, log }
    }
}

/// A job that ended without one.
#[derive(Debug)]
pub struct Unfinished<W: Work = Vae> {
    /// The reason.
    pub error: Error,
    /// The record as far as the job came. `None` if nothing was decided, or if the error would have
    /// ended any plan: a history would count it against this one.
    pub record: Option<Box<Record<W>>>,
}

impl<E: Into<Error>, W: Work> From<E> for Unfinished<W> {
    fn from(error: E) -> Self {
        Self { error: error.into(), record: None }
    }
}

/// All that can be asked of a job before it is carried out.
impl<W: Runnable, I> Deref for Job<'_, W, I> {
    type Target = Quote<W>;

    fn deref(&self) -> &Quote<W> {
        &self.quote
    }
}

impl<'a, W: Runnable, I> Job<'a, W, I> {
    pub(crate) fn new_unchecked(machine: &'a Machine, quote: Quote<W>, input: I) -> Self {
        Self { machine, quote, input }
    }

    /// As [`Quote::with_history`].
    #[must_use]
    pub fn with_history(self, records: &[Record<W>]) -> Self {
        Self { quote: self.quote.with_history(records), ..self }
    }

    /// Notes that a plan was carried out; true if it was the first of its format on a GPU in this
    /// process.
    pub(crate) fn note_run(&self, plan: &W::Plan) -> bool {
        self.machine.note_run((self.stage(), W::precision(plan), W::layout(plan)))
    }
}
