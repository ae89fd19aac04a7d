//! Prices for a comparison: recorded ones if there are any, else by formula.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tilewright_plan::{Cost, CostModel, Plan, Trial};

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

/// Facts for one request.
pub(super) struct RequestPrices {
    /// Plans without reasons.
    recorded: Vec<(Plan, Result<Cost, String>)>,
    trials: Vec<Trial>,
    formula: Arc<dyn CostModel>,
    /// Recorded over formula: time and memory.
    scale: Option<(f64, f64)>,
}

impl RequestPrices {
    pub fn by_formula(formula: Arc<dyn CostModel>) -> Self {
        Self { recorded: Vec::new(), trials: Vec::new(), formula, scale: None }
    }

    /// Recorded prices and measurements before the formula's. The formula's error is the geometric
    /// mean over those plans that both have a price for.
    pub fn from_records(
        recorded: &[(Plan, Result<Cost, String>)],
        trials: Vec<Trial>,
        formula: Arc<dyn CostModel>,
    ) -> Self {
        let recorded: Vec<_> = recorded.iter().map(|(plan, price)| (plan.without_reason(), price.clone())).collect();
        let mut logs = (0.0, 0.0, 0u32);
        for (plan, price) in &recorded {
            let (Ok(price), Ok(by_formula)) = (price, formula.estimate_one(plan)) else { continue };
            let time = price.elapsed.as_secs_f64() / by_formula.elapsed.as_secs_f64();
            let memory = price.peak_bytes as f64 / by_formula.peak_bytes as f64;
            if time.is_normal() && memory.is_normal() {
                logs = (logs.0 + time.ln(), logs.1 + memory.ln(), logs.2 + 1);
            }
        }
        let count = f64::from(logs.2);
        let scale = (logs.2 > 0).then(|| ((logs.0 / count).exp(), (logs.1 / count).exp()));
        Self { recorded, trials, formula, scale }
    }

    /// The price of a plan and its source.
    pub fn price(&self, plan: &Plan) -> (Option<Cost>, Pricing) {
        let (price, pricing) = self.find_price(plan);
        (price.ok(), pricing)
    }

    fn find_price(&self, plan: &Plan) -> (Result<Cost, String>, Pricing) {
        if let Some((_, price)) = self.recorded.iter().find(|(known, _)| known.is_same_work(plan)) {
            return (price.clone(), Pricing::Recorded);
        }
        let price = self.formula.estimate_one(plan);
        let Some((time, memory)) = self.scale else { return (price, Pricing::Formula) };
        let scaled = price.map(|cost| Cost {
            elapsed: Duration::try_from_secs_f64(cost.elapsed.as_secs_f64() * time).unwrap_or(Duration::MAX),
            peak_bytes: (cost.peak_bytes as f64 * memory) as u64,
            ..cost
        });
        (scaled, Pricing::Scaled)
    }
}

impl CostModel for RequestPrices {
    fn estimate(&self, plans: &[Plan]) -> Vec<Result<Cost, String>> {
        plans.iter().map(|plan| self.estimate_one(plan)).collect()
    }

    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        self.find_price(plan).0
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}
