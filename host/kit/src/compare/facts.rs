//! Prices for a comparison: recorded ones if there are any, else by formula.

use std::sync::Arc;

use serde::Serialize;
use tilewright_plan::{CostModel, Trial, Work};

/// The source of a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pricing {
    /// From the record.
    Recorded,
    /// By formula, times the ratio of the record's prices to the formula's.
    Scaled,
    /// By formula.
    Formula,
}

/// A plan, and its price or why it has none.
pub(super) type Priced<W> = (<W as Work>::Plan, Result<<W as Work>::Cost, String>);

/// Facts for one request.
pub(super) struct RequestPrices<W: Work> {
    /// Plans without reasons.
    recorded: Vec<Priced<W>>,
    trials: Vec<Trial<W>>,
    formula: Arc<dyn CostModel<W>>,
    /// Recorded over formula: time and memory.
    scale: Option<[f64; 2]>,
}

impl<W: Work> RequestPrices<W> {
    pub fn by_formula(formula: Arc<dyn CostModel<W>>) -> Self {
        Self { recorded: Vec::new(), trials: Vec::new(), formula, scale: None }
    }

    /// Recorded prices and measurements before the formula's. The formula's error is the geometric
    /// mean over those plans that both have a price for.
    pub fn from_records(recorded: &[Priced<W>], trials: Vec<Trial<W>>, formula: Arc<dyn CostModel<W>>) -> Self {
        let recorded: Vec<_> = recorded.iter().map(|(plan, price)| (W::without_reason(plan), price.clone())).collect();
        let mut logs = (0.0, 0.0, 0u32);
        for (plan, price) in &recorded {
            let (Ok(price), Ok(by_formula)) = (price, formula.estimate_one(plan)) else { continue };
            let ([time, memory], [formulas, formulas_memory]) = (W::priced(price), W::priced(&by_formula));
            let (time, memory) = (time / formulas, memory / formulas_memory);
            if time.is_normal() && memory.is_normal() {
                logs = (logs.0 + time.ln(), logs.1 + memory.ln(), logs.2 + 1);
            }
        }
        let count = f64::from(logs.2);
        let scale = (logs.2 > 0).then(|| [(logs.0 / count).exp(), (logs.1 / count).exp()]);
        Self { recorded, trials, formula, scale }
    }

    /// The price of a plan and its source.
    pub fn price(&self, plan: &W::Plan) -> (Option<W::Cost>, Pricing) {
        let (price, pricing) = self.find_price(plan);
        (price.ok(), pricing)
    }

    fn find_price(&self, plan: &W::Plan) -> (Result<W::Cost, String>, Pricing) {
        if let Some((_, price)) = self.recorded.iter().find(|(known, _)| W::is_same_work(known, plan)) {
            return (price.clone(), Pricing::Recorded);
        }
        let price = self.formula.estimate_one(plan);
        let Some(scale) = self.scale else { return (price, Pricing::Formula) };
        (price.map(|cost| W::corrected(cost, scale).unwrap_or(cost)), Pricing::Scaled)
    }
}

impl<W: Work> CostModel<W> for RequestPrices<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        self.find_price(plan).0
    }

    fn trials(&self, most: u32) -> Vec<Trial<W>> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}
