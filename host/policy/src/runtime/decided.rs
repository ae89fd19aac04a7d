//! The last decision of each kind of work, until its outcome is known.

use std::sync::Arc;

use tilewright_plan::{CostModel, Denoise, Each, FieldOf, Text, Vae, VariantOf};

use crate::{
    contract::Answered,
    fallback::HostPlans,
    guest::{Asked, Prices},
    outcome_memory::{AnyOutcome, DecidedCosts, PastOutcome},
};

/// The last decisions, until their outcomes are known.
pub(crate) type Pending =
    Each<Option<PendingDecision<Vae>>, Option<PendingDecision<Denoise>>, Option<PendingDecision<Text>>>;

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
    + HostPlans
    + FieldOf<Pending, Field = Option<PendingDecision<Self>>>
    + VariantOf<AnyOutcome, Variant = PastOutcome<Self>>
{
    /// True if an outcome of one request shows the price of the other.
    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool;
}

/// Work that policies decide: a policy is a planner of it.
#[allow(private_bounds, reason = "the differences between kinds of work are the crate's own")]
pub trait Governed: Decided {}

impl<W: Decided> Governed for W {}

impl Decided for Vae {
    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        let size = |request: &Self::Request| (request.batch, request.frames, request.height, request.width);
        one.model == other.model && size(one) == size(other)
    }
}

impl Decided for Denoise {
    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        let size = |request: &Self::Request| {
            let tokens = (request.text_tokens, request.image_tokens);
            (request.batch, request.frames, request.height, request.width, tokens, request.passes)
        };
        one.model == other.model && size(one) == size(other)
    }
}

impl Decided for Text {
    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        one.model == other.model && one.tokens == other.tokens
    }
}
