//! The kinds of work that the gate asks about: their golden requests, and the differences in
//! judging.

mod denoise;
mod text;
mod vae;

use std::sync::Arc;

use tilewright_plan::{CostModel, Device, Dtype, Record, Stage, UnderWay, Work};
use tilewright_policy::{Governed, oracle};

use crate::{
    golden::{CallResult, Events, GoldenRequest, MemoryLimit, Network},
    machines::Machine,
};

/// Work whose plans are judged.
pub trait Judged: Governed {
    /// The fixed part of the set, the same for every policy.
    fn golden() -> Vec<GoldenRequest<Self>>;

    /// The part that is drawn from a seed, the same everywhere.
    fn draw(seed: u32) -> Vec<GoldenRequest<Self>>;

    /// Prices by formula for any request: for records that carry none. They differ between plans
    /// and say little about a device.
    fn formula(
        stage: Stage,
        request: &Self::Request,
        device: &Device,
        capabilities: &Self::Capabilities,
    ) -> Arc<dyn CostModel<Self>>;

    /// The capabilities of a record; the least if it has none.
    fn capabilities_of(record: &Record<Self>) -> Self::Capabilities {
        record.capabilities.clone().unwrap_or_default()
    }

    /// The same plan in another type.
    fn in_type(plan: Self::Plan, dtype: Dtype) -> Self::Plan;

    /// A plan in a few words.
    fn show(plan: &Self::Plan) -> String {
        plan.to_string()
    }

    /// A plan that a policy is unlikely to answer.
    fn odd(golden: &GoldenRequest<Self>) -> Self::Plan;

    /// The leanest plans of every kind; the request decides which of them is the leanest.
    fn leanest(golden: &GoldenRequest<Self>) -> Vec<Self::Plan>;

    /// A plan after checking; none if it makes no sense.
    fn legal(
        mut plan: Self::Plan,
        golden: &GoldenRequest<Self>,
        under_way: Option<&UnderWay<Self>>,
    ) -> Option<Self::Plan> {
        oracle::check_answer(&mut plan, &golden.question().going_on(under_way)).ok().map(|_| plan)
    }

    /// True if the host carries out an exact plan in this answer's place, since the user does not
    /// allow blended ones.
    fn is_replaced(_answer: &Self::Plan, _golden: &GoldenRequest<Self>, _result: &CallResult<Self>) -> bool {
        false
    }

    /// The outcome of a plan of this price: a third more time and 5 % more memory.
    fn outcome(cost: Option<Self::Cost>) -> Self::Outcome;
}

/// Prices by formula for one request of a denoiser or text encoder on one device.
struct NetworkPrices<W: Work> {
    request: W::Request,
    network: &'static Network,
    machine: &'static Machine,
    capabilities: W::Capabilities,
}

impl<W: Work> NetworkPrices<W>
where
    Self: CostModel<W> + 'static,
{
    /// Prices for any request, by the known machine that is nearest to a device.
    fn near(
        network: &'static Network,
        request: &W::Request,
        device: &Device,
        capabilities: &W::Capabilities,
    ) -> Arc<dyn CostModel<W>> {
        let (request, capabilities) = (request.clone(), capabilities.clone());
        Arc::new(Self { request, network, machine: Machine::near(device), capabilities })
    }

    /// The golden request of these prices. Where there is plenty of room, its limit is that of the
    /// prices' request; `plain` is the plan that a smaller one is a share of.
    fn golden(mut self, name: String, room: MemoryLimit, plain: &W::Plan, then: Events) -> GoldenRequest<W> {
        let limit = room.bytes(W::memory_limit(&self.request), &self, plain);
        self.request = W::limited(&self.request, limit, W::objective(&self.request));
        GoldenRequest {
            name,
            stage: W::STAGES[0],
            request: self.request.clone(),
            device: self.machine.device(),
            capabilities: self.capabilities.clone(),
            costs: Arc::new(self),
            then,
            under_way: None,
        }
    }
}

/// Measured over priced time, and memory, of outcomes that policies learn from.
const SLOWER: f64 = 4.0 / 3.0;

fn more(bytes: u64) -> u64 {
    bytes / 20 * 21
}
