//! A request that can be decided on and priced: all that there is before a plan is carried out.

use std::{sync::Arc, time::Duration};

use tilewright_nn::LayerSeconds;
use tilewright_plan::{Candidate, Decision, Device as Facts, FailedAttempt, Planner, Question, Record, Stage, Work};

use crate::{
    Basis,
    costs::{Costs, Prices},
};

/// A kind of work that is priced.
pub trait Priced: Work {
    /// The prices of its plans for one request.
    type Prices: Prices<Self>;
}

/// A request for one piece of work on one device, with the prices of its plans.
#[derive(Clone, Debug)]
pub struct Quote<W: Priced> {
    /// The kind of work.
    stage: Stage,
    /// The work itself.
    pub(crate) request: W::Request,
    /// The plans that can be carried out.
    pub(crate) capabilities: W::Capabilities,
    /// The device as it was when the request was made.
    facts: Facts,
    costs: Arc<Costs<W>>,
    /// The device was busy, or slow, while it was measured.
    is_rough: bool,
}

/// The times that a device may be faster than it was measured while other programs kept it busy.
const MOST_DISTURBED: u32 = 8;

impl<W: Priced> Quote<W> {
    /// A quote that may ask for more than there is.
    pub(crate) fn new_unchecked(
        basis: &Basis,
        stage: Stage,
        request: W::Request,
        capabilities: W::Capabilities,
        prices: W::Prices,
    ) -> Self {
        let is_rough = basis.measured.hurried || basis.measured.disturbed;
        let costs = Arc::new(Costs::new(prices));
        Self { stage, request, capabilities, facts: basis.facts.clone(), costs, is_rough }
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

    /// The device, as policies see it.
    pub const fn device(&self) -> &Facts {
        &self.facts
    }

    /// The price of a plan for this request.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        self.prices().price(plan)
    }

    /// The time of each layer by a plan, of a sample that of a step; none if it has no price.
    pub fn layers(&self, plan: &W::Plan) -> Vec<LayerSeconds> {
        self.prices().layers(plan)
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner<W>) -> (Record<W>, Vec<Candidate<W>>) {
        let decision = planner.decide(&self.question(), self.costs.clone());
        (self.record(planner, &decision, Vec::new(), None), decision.candidates)
    }

    /// The prices of the request's plans.
    pub fn prices(&self) -> &W::Prices {
        &self.costs.prices
    }

    /// The prices, and what was measured before, for a planner.
    pub fn costs(&self) -> Arc<Costs<W>> {
        self.costs.clone()
    }

    /// The question before anything was carried out.
    pub fn question(&self) -> Question<'_, W> {
        Question::first(self.stage, &self.request, &self.facts, &self.capabilities)
    }

    /// The time that work may take on the machine when it is quiet, if it was measured busy.
    pub(crate) fn at_best(&self, estimated: Duration) -> Duration {
        if self.is_rough { estimated / MOST_DISTURBED } else { estimated }
    }

    /// The record of a decision and what it led to.
    pub fn record(
        &self,
        planner: &dyn Planner<W>,
        decision: &Decision<W>,
        attempts: Vec<FailedAttempt<W>>,
        outcome: Option<W::Outcome>,
    ) -> Record<W> {
        let made = Record::of(&self.question(), planner.identity(), decision, &*self.costs);
        Record { attempts, outcome, ..made }
    }
}
