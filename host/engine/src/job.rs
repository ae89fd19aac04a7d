//! A request for one piece of work on one device: all that there is before a plan is carried out.

use std::{sync::Arc, time::SystemTime};

use tilewright_plan::{
    Candidate, Decision, Device as Facts, FailedAttempt, LogLine, Planner, Question, Record, Stage, Vae, Work,
    predict_cost,
};

use crate::{
    Error, Machine,
    costs::{Costs, Prices},
    work::Runnable,
};

/// A request for one piece of work on one device. `I` is its input: a network and what goes into
/// it.
#[derive(Debug)]
pub struct Job<'a, W: Runnable, I> {
    pub(crate) machine: &'a Machine,
    /// The machine's, as of now.
    pub(crate) facts: Facts,
    pub(crate) stage: Stage,
    pub(crate) request: W::Request,
    pub(crate) capabilities: W::Capabilities,
    pub(crate) costs: Arc<Costs<W>>,
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

impl<'a, W: Runnable, I> Job<'a, W, I> {
    /// A job that may ask for more than there is.
    pub(crate) fn new_unchecked(
        machine: &'a Machine,
        stage: Stage,
        request: W::Request,
        capabilities: W::Capabilities,
        prices: W::Prices,
        input: I,
    ) -> Self {
        let costs = Arc::new(Costs::new(prices));
        Self { machine, facts: machine.facts_now(), stage, request, capabilities, costs, input }
    }

    /// The same request with another input.
    pub(crate) fn with_input<J>(self, input: J) -> Job<'a, W, J> {
        let Self { machine, facts, stage, request, capabilities, costs, .. } = self;
        Job { machine, facts, stage, request, capabilities, costs, input }
    }

    /// Gives policies earlier measurements on this device for this model, newest first. A
    /// measurement at another size becomes the likely one at this size: the estimate for now, times
    /// measured over estimated then.
    #[must_use]
    pub fn with_history(mut self, records: &[Record<W>]) -> Self {
        self.costs = Arc::new(self.costs.with_history(records));
        self
    }

    /// The kind of work.
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// The work itself, as policies see it.
    pub const fn request(&self) -> &W::Request {
        &self.request
    }

    /// The plans that can be carried out.
    pub const fn capabilities(&self) -> &W::Capabilities {
        &self.capabilities
    }

    /// The price of a plan for this job.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &W::Plan) -> std::result::Result<W::Cost, String> {
        self.prices().price(plan)
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner<W>) -> (Record<W>, Vec<Candidate<W>>) {
        let decision = planner.decide(&self.question(), self.costs.clone());
        (self.record(planner, &decision, Vec::new(), None), decision.candidates)
    }

    pub(crate) fn prices(&self) -> &W::Prices {
        &self.costs.prices
    }

    /// The question before anything was carried out.
    pub(crate) fn question(&self) -> Question<'_, W> {
        Question::first(self.stage, &self.request, &self.facts, &self.capabilities)
    }

    /// Notes that a plan was carried out; true if it was the first of its format on a GPU in this
    /// process.
    pub(crate) fn note_run(&self, plan: &W::Plan) -> bool {
        self.machine.note_run((self.stage, W::precision(plan), W::layout(plan)))
    }

    /// The record of a decision and what it led to.
    pub(crate) fn record(
        &self,
        planner: &dyn Planner<W>,
        decision: &Decision<W>,
        attempts: Vec<FailedAttempt<W>>,
        outcome: Option<W::Outcome>,
    ) -> Record<W> {
        Record {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            stage: Some(self.stage),
            request: self.request.clone(),
            capabilities: Some(self.capabilities.clone()),
            device: self.facts.clone(),
            policy: planner.identity().clone(),
            answer: decision.answer.clone(),
            plan: decision.plan.clone(),
            adjusted: decision.adjusted.clone(),
            fallback: decision.fallback.clone(),
            decision: decision.elapsed,
            fuel: decision.fuel,
            estimate: self.estimate(&decision.plan).ok(),
            expected: predict_cost(&*self.costs, &decision.plan),
            attempts,
            outcome,
            resumed_frames: 0,
            exchange: None,
        }
    }
}
