//! The last decision of each kind of work, until its outcome is known.

use std::sync::Arc;

use tilewright_plan::{CostModel, FieldOf, VariantOf, each};

use crate::{
    contract::Answered,
    guest::{Asked, Prices},
    outcome_memory::{AnyOutcome, DecidedCosts, PastOutcome},
};

/// The last decisions, until their outcomes are known.
pub(crate) type Pending = each!(Option<PendingDecision>);

/// The last decision, until its outcome is known.
pub(crate) struct PendingDecision<W: Decided> {
    request: W::Request,
    decided: Arc<DecidedCosts<W>>,
    /// The decision's prices: their bounds hold for the outcome too.
    prices: Arc<Prices<W>>,
}

impl<W: Decided> PendingDecision<W> {
    pub fn new(request: &W::Request, plan: &W::Plan, cost: W::Cost, prices: Arc<Prices<W>>) -> Self {
        let plan = W::without_reason(plan);
        Self { request: request.clone(), decided: Arc::new(DecidedCosts { plan, cost }), prices }
    }

    /// The prices to ask for while the policy learns from this outcome; `None` if it belongs to
    /// another decision.
    pub fn prices(&self, request: &W::Request, plan: &W::Plan) -> Option<Arc<Prices<W>>> {
        let costs: Arc<dyn CostModel<W>> = self.decided.clone();
        (W::is_same_model_and_size(&self.request, request) && W::is_same_work(&self.decided.plan, plan))
            .then(|| Arc::new(Prices { costs, bounds: self.prices.bounds.clone() }))
    }
}

/// Work that a policy decides.
pub(crate) trait Decided:
    Answered
    + Asked
    + FieldOf<Pending, Field = Option<PendingDecision<Self>>>
    + VariantOf<AnyOutcome, Variant = PastOutcome<Self>>
{
}

impl<W> Decided for W where
    W: Answered
        + Asked
        + FieldOf<Pending, Field = Option<PendingDecision<W>>>
        + VariantOf<AnyOutcome, Variant = PastOutcome<W>>
{
}

/// Work that policies decide: a policy is a planner of it.
#[allow(private_bounds, reason = "the differences between kinds of work are the crate's own")]
pub trait Governed: Decided {}

impl<W: Decided> Governed for W {}
