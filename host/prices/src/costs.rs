//! Prices of plans for one job: a formula for its network, and what was measured before.

use std::{fmt::Debug, sync::Arc};

use tilewright_models::{AnyConfig, NetworkFile};
use tilewright_nn::LayerSeconds;
use tilewright_plan::{CostModel, Dtype, Record, Trial, WeightForm, Work};

use crate::Priced;

/// The types that products of samples and of text encoders can run in.
pub(crate) const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// The factor between what was measured and what was expected, if anything was.
pub fn ratio(measured: f64, estimated: f64) -> Option<f64> {
    (estimated > 0.0).then(|| measured / estimated)
}

/// The most bytes that a device holds beside expanded weights while they are loaded: a GPU gets
/// them as they are stored, and expands them itself.
pub(crate) fn loading_bytes<C: AnyConfig>(
    file: &NetworkFile<C>,
    weights: WeightForm,
    on_cpu: bool,
    dtype: Dtype,
) -> u64 {
    match (weights, on_cpu) {
        (WeightForm::Expanded, false) => file.expanding_bytes(dtype),
        _ => 0,
    }
}

/// The prices of plans for one job. Without tensors, so that a policy may ask from any thread.
pub trait Prices<W: Work>: Debug + Send + Sync + 'static {
    /// The price of one plan.
    ///
    /// # Errors
    /// One line, for the policy, if the plan can't be carried out.
    fn price(&self, plan: &W::Plan) -> Result<W::Cost, String>;

    /// The time of each layer by a plan, of a sample that of a step; none if it has no price.
    fn layers(&self, plan: &W::Plan) -> Vec<LayerSeconds>;

    /// The likely outcome of a recorded plan in this job: the price for now, times measured over
    /// estimated then. `None` if the record says nothing of the plan alone.
    fn trial(&self, record: &Record<W>) -> Option<Trial<W>>;
}

/// The cost model of a request: its prices, and what was measured before, newest first.
#[derive(Clone, Debug)]
pub struct Costs<W: Priced> {
    /// The prices of its plans.
    pub prices: Arc<W::Prices>,
    trials: Vec<Trial<W>>,
}

impl<W: Priced> Costs<W> {
    /// These prices, with nothing measured before.
    pub fn new(prices: W::Prices) -> Self {
        Self { prices: Arc::new(prices), trials: Vec::new() }
    }

    /// The same prices with what these records, newest first, make likely for this job.
    pub fn with_history(&self, records: &[Record<W>]) -> Self {
        let trials = records.iter().filter_map(|record| self.prices.trial(record)).collect();
        Self { prices: self.prices.clone(), trials }
    }
}

impl<W: Priced> CostModel<W> for Costs<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        self.prices.price(plan)
    }

    fn trials(&self, most: u32) -> Vec<Trial<W>> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}
