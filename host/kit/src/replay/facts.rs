//! The host's answers, from the record.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tilewright_plan::{
    CostModel, Trial, Vae, Work,
    exchange::{ExactTrial, HostAnswers, Price},
};

/// The error for a policy if the record has no answer.
const UNKNOWN: &str = "not in the record";

/// Prices for the same work in other calls.
pub(crate) type Prices<W = Vae> = HashMap<<W as Work>::Plan, Price<W>>;

/// The recorded answers, and the questions that they do not cover.
pub(crate) struct RecordedAnswers<W: Work> {
    prices: HashMap<W::Plan, Result<W::Cost, String>>,
    trials: Vec<(u32, Vec<Trial<W>>)>,
    elsewhere: Arc<Prices<W>>,
    missing: Mutex<Missing<W>>,
}

/// Questions without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing<W: Work = Vae> {
    /// Plans whose price is not known, each once.
    pub prices: Vec<W::Plan>,
    /// Trials were asked for, and none are known.
    pub trials: bool,
}

impl<W: Work> Default for Missing<W> {
    fn default() -> Self {
        Self { prices: Vec::new(), trials: false }
    }
}

impl<W: Work> RecordedAnswers<W> {
    pub fn new(heard: &HostAnswers<W>, elsewhere: Arc<Prices<W>>) -> Arc<Self> {
        let mut prices = HashMap::with_capacity(heard.estimates.len());
        for estimate in &heard.estimates {
            // A plan's reason does not affect its price.
            prices.entry(W::without_reason(&estimate.plan)).or_insert_with(|| estimate.price.cost());
        }
        let trials =
            heard.trials.iter().map(|asked| (asked.most, asked.trials.iter().map(ExactTrial::trial).collect()));
        Arc::new(Self { prices, trials: trials.collect(), elsewhere, missing: Mutex::default() })
    }

    pub fn missing(&self) -> Missing<W> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<W: Work> CostModel<W> for RecordedAnswers<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        let plan = W::without_reason(plan);
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
    fn trials(&self, most: u32) -> Vec<Trial<W>> {
        let exact = self.trials.iter().find(|(asked, _)| *asked == most);
        let holds = |(asked, trials): &&(u32, Vec<Trial<W>>)| *asked >= most || trials.len() < *asked as usize;
        match exact.or_else(|| self.trials.iter().find(holds)) {
            Some((_, trials)) => trials.iter().take(most as usize).cloned().collect(),
            None => {
                self.missing.lock().unwrap_or_else(PoisonError::into_inner).trials = true;
                Vec::new()
            }
        }
    }
}
