//! The host's answers, from the record.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tilewright_plan::{
    Cost, CostModel, Plan, Trial,
    exchange::{ExactTrial, HostAnswers, Price},
};

/// The error for a policy if the record has no answer.
const UNKNOWN: &str = "not in the record";

/// Prices for the same work in other calls.
pub(crate) type Prices = HashMap<Plan, Price>;

/// The recorded answers, and the questions that they do not cover.
pub(crate) struct RecordedAnswers {
    prices: HashMap<Plan, Result<Cost, String>>,
    trials: Vec<(u32, Vec<Trial>)>,
    elsewhere: Arc<Prices>,
    missing: Mutex<Missing>,
}

/// Questions without an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Plans whose price is not known, each once.
    pub prices: Vec<Plan>,
    /// Trials were asked for, and none are known.
    pub trials: bool,
}

impl RecordedAnswers {
    pub fn new(heard: &HostAnswers, elsewhere: Arc<Prices>) -> Arc<Self> {
        let mut prices = HashMap::with_capacity(heard.estimates.len());
        for estimate in &heard.estimates {
            // A plan's reason does not affect its price.
            prices.entry(estimate.plan.without_reason()).or_insert_with(|| estimate.price.cost());
        }
        let trials =
            heard.trials.iter().map(|asked| (asked.most, asked.trials.iter().map(ExactTrial::trial).collect()));
        Arc::new(Self { prices, trials: trials.collect(), elsewhere, missing: Mutex::default() })
    }

    pub fn missing(&self) -> Missing {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl CostModel for RecordedAnswers {
    fn estimate(&self, plans: &[Plan]) -> Vec<Result<Cost, String>> {
        plans.iter().map(|plan| self.estimate_one(plan)).collect()
    }

    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let plan = plan.without_reason();
        if let Some(price) = self.prices.get(&plan) {
            return price.clone();
        }
        if let Some(price) = self.elsewhere.get(&plan) {
            return price.cost();
        }
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if !missing.prices.contains(&plan) {
            missing.prices.push(plan);
        }
        Err(UNKNOWN.into())
    }

    /// The answer to a larger question holds the one to a smaller question. An answer shorter than
    /// its question holds all trials.
    fn trials(&self, most: u32) -> Vec<Trial> {
        let exact = self.trials.iter().find(|(asked, _)| *asked == most);
        let holds = |(asked, trials): &&(u32, Vec<Trial>)| *asked >= most || trials.len() < *asked as usize;
        match exact.or_else(|| self.trials.iter().find(holds)) {
            Some((_, trials)) => trials.iter().take(most as usize).cloned().collect(),
            None => {
                self.missing.lock().unwrap_or_else(PoisonError::into_inner).trials = true;
                Vec::new()
            }
        }
    }
}
