//! The cost model of a simulated device.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tilewright_plan::{Cost, CostModel, Outcome, Plan, Request, Stage, Trial};

use super::Case;

/// The error for a policy that asks for an unknown price.
const UNKNOWN: &str = "not in the device's table";

/// The range of "about this size", as in the history: at most this many times the output, and at
/// least one in this many.
const ABOUT: u128 = 4;

/// A plan that was carried out earlier in the workload.
#[derive(Clone, Debug)]
pub(crate) struct PastRun {
    pub stage: Stage,
    pub request: Request,
    pub plan: Plan,
    pub estimate: Cost,
    pub outcome: Outcome,
}

impl PastRun {
    /// The trial for the request at hand, as the host would give it: the price for now, times
    /// measured over priced then.
    fn to_trial(&self, case: &Case) -> Option<Trial> {
        if self.request.model != case.request.model || self.stage != case.stage() {
            return None;
        }
        let size = |request: &Request| {
            [request.batch, request.frames, request.height, request.width].into_iter().map(u128::from).product::<u128>()
        };
        let (then, now) = (size(&self.request), size(&case.request));
        if then > now * ABOUT || now > then * ABOUT {
            return None;
        }
        let cost = case.estimate(&self.plan)?;
        let ratio = |measured: f64, priced: f64| (priced > 0.0).then(|| measured / priced);
        let time = ratio(self.outcome.elapsed.as_secs_f64(), self.estimate.elapsed.as_secs_f64())?;
        let memory = ratio(self.outcome.peak_bytes as f64, self.estimate.peak_bytes as f64)?;
        let outcome = Outcome {
            elapsed: Duration::try_from_secs_f64(cost.elapsed.as_secs_f64() * time).ok()?,
            peak_bytes: (cost.peak_bytes as f64 * memory) as u64,
            ..self.outcome
        };
        Some(Trial { plan: self.plan.clone(), outcome })
    }
}

/// The table's prices for one case, and the earlier runs.
pub(crate) struct TableCostModel {
    case: Arc<Case>,
    trials: Vec<Trial>,
    asked: AtomicUsize,
    unknown: AtomicUsize,
}

impl TableCostModel {
    /// `past` is oldest first.
    pub fn new(case: Arc<Case>, past: &[PastRun]) -> Arc<Self> {
        let trials = past.iter().rev().filter_map(|past| past.to_trial(&case)).collect();
        Arc::new(Self { case, trials, asked: AtomicUsize::new(0), unknown: AtomicUsize::new(0) })
    }

    /// The number of prices that were asked for, and of those that the table lacks.
    pub fn count_questions(&self) -> (usize, usize) {
        (self.asked.load(Ordering::Relaxed), self.unknown.load(Ordering::Relaxed))
    }
}

impl CostModel for TableCostModel {
    fn estimate(&self, plans: &[Plan]) -> Vec<Result<Cost, String>> {
        plans.iter().map(|plan| self.estimate_one(plan)).collect()
    }

    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.case.estimate(plan).ok_or_else(|| {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            UNKNOWN.to_owned()
        })
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}
