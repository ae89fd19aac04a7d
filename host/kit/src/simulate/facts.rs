//! The cost model of a simulated device.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tilewright_plan::{CostModel, Stage, Trial};

use super::{Case, simulated::Simulated};

/// The error for a policy that asks for an unknown price.
const UNKNOWN: &str = "not in the device's table";

/// The range of "about this size", as in the history: at most this many times the output, and at
/// least one in this many.
const ABOUT: u128 = 4;

/// A plan that was carried out earlier in the workload.
#[derive(Clone, Debug)]
pub(crate) struct PastRun<W: Simulated> {
    pub stage: Stage,
    pub request: W::Request,
    pub plan: W::Plan,
    pub estimate: W::Cost,
    pub outcome: W::Outcome,
}

impl<W: Simulated> PastRun<W> {
    /// The trial for the request at hand, as the host would give it: the price for now, times
    /// measured over priced then.
    fn to_trial(&self, case: &Case<W>) -> Option<Trial<W>> {
        if !W::is_same_model(&self.request, &case.request) || self.stage != case.stage() {
            return None;
        }
        let size = |request: &W::Request| W::size(request).0.into_iter().map(u128::from).product::<u128>();
        let (then, now) = (size(&self.request), size(&case.request));
        if then > now * ABOUT || now > then * ABOUT {
            return None;
        }
        let [time, memory] = W::priced(&case.estimate(&self.plan)?);
        let ([measured, held], [priced, priced_held]) = (W::measured(&self.outcome), W::priced(&self.estimate));
        let ratio = |measured: f64, priced: f64| (priced > 0.0).then(|| measured / priced);
        let figures = [time * ratio(measured, priced)?, memory * ratio(held, priced_held)?];
        Some(Trial { plan: self.plan.clone(), outcome: W::remeasured(self.outcome, figures)? })
    }
}

/// The table's prices for one case, and the earlier runs.
pub(crate) struct TableCostModel<W: Simulated> {
    case: Arc<Case<W>>,
    trials: Vec<Trial<W>>,
    asked: AtomicUsize,
    unknown: AtomicUsize,
}

impl<W: Simulated> TableCostModel<W> {
    /// `past` is oldest first.
    pub fn new(case: Arc<Case<W>>, past: &[PastRun<W>]) -> Arc<Self> {
        let trials = past.iter().rev().filter_map(|past| past.to_trial(&case)).collect();
        Arc::new(Self { case, trials, asked: AtomicUsize::new(0), unknown: AtomicUsize::new(0) })
    }

    /// The number of prices that were asked for, and of those that the table lacks.
    pub fn count_questions(&self) -> (usize, usize) {
        (self.asked.load(Ordering::Relaxed), self.unknown.load(Ordering::Relaxed))
    }
}

impl<W: Simulated> CostModel<W> for TableCostModel<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.case.estimate(plan).ok_or_else(|| {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            UNKNOWN.to_owned()
        })
    }

    fn trials(&self, most: u32) -> Vec<Trial<W>> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}
