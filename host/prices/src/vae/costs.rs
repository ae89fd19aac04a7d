//! Prices of decodes and encodes: a formula for a network and a way through it, and its weights.

use std::{fmt::Debug, time::Duration};

use tilewright_nn::LayerSeconds;
use tilewright_plan::{Cost, Dtype, Outcome, Plan, Record, Trial, Vae};

use crate::costs::{Prices, ratio};

/// The price of a plan for one job.
pub(crate) trait PlanCost: Debug + Send + Sync {
    /// The price of one plan.
    ///
    /// # Errors
    /// One line, for the policy, if the plan can't be carried out.
    fn cost(&self, plan: &Plan) -> Result<Cost, String>;

    /// The time of each layer of a plan; none if it has no price.
    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds>;

    /// The bytes of the network's weights in a plan's format; 0 of one that can't be run, which has
    /// no price either.
    fn weight_bytes(&self, plan: &Plan) -> u64;

    /// The types that convolutions can run in.
    fn dtypes(&self) -> Vec<Dtype>;
}

/// The time of layers that run some number of times.
pub(crate) fn times(mut layers: Vec<LayerSeconds>, count: f64) -> Vec<LayerSeconds> {
    for layer in &mut layers {
        (layer.runs, layer.seconds) = (layer.runs * count, layer.seconds * count);
    }
    layers
}

/// The prices of a job's plans.
#[derive(Debug)]
pub struct VaePrices {
    formula: Box<dyn PlanCost>,
    /// Peaks include the weights.
    counts_weights: bool,
}

impl VaePrices {
    /// The prices by a formula, which leaves the weights aside.
    pub(crate) fn new(formula: impl PlanCost + 'static, counts_weights: bool) -> Self {
        Self { formula: Box::new(formula), counts_weights }
    }

    /// The bytes of a plan's weights, if they are counted; else 0.
    fn counted_weights(&self, plan: &Plan, counts_weights: bool) -> u64 {
        if counts_weights { self.formula.weight_bytes(plan) } else { 0 }
    }
}

impl Prices<Vae> for VaePrices {
    fn price(&self, plan: &Plan) -> Result<Cost, String> {
        let cost = self.formula.cost(plan)?;
        let weights_bytes = self.counted_weights(plan, self.counts_weights);
        Ok(Cost { peak_bytes: cost.peak_bytes.saturating_add(weights_bytes), weights_bytes, ..cost })
    }

    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds> {
        self.formula.layers(plan)
    }

    fn trial(&self, record: &Record) -> Option<Trial> {
        let (then, outcome) = (record.estimate.as_ref()?, record.outcome.filter(|outcome| !outcome.cold)?);
        let plan = &record.plan;
        let now = self.formula.cost(plan).ok()?;
        // The weights are known: what was measured says something of the rest alone.
        let weights = self.counted_weights(plan, record.request.limit_counts_weights);
        let rest = |peak_bytes: u64| peak_bytes.saturating_sub(weights) as f64;
        let time = ratio(outcome.elapsed.as_secs_f64(), then.elapsed.as_secs_f64())?;
        let memory = ratio(rest(outcome.peak_bytes), rest(then.peak_bytes))?;
        let weights_bytes = self.counted_weights(plan, self.counts_weights);
        let outcome = Outcome {
            elapsed: Duration::try_from_secs_f64(now.elapsed.as_secs_f64() * time).ok()?,
            peak_bytes: ((now.peak_bytes as f64 * memory) as u64).saturating_add(weights_bytes),
            weights_bytes,
            ..outcome
        };
        Some(Trial { plan: plan.clone(), outcome })
    }
}
