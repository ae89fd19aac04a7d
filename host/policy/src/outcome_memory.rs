//! The outcomes that a policy learned from, so that a new instance can learn from them again.

use std::{collections::VecDeque, sync::Arc};

use tilewright_plan::{CostModel, Device, Question, Stage, VariantOf, Work, any, of_any};

use crate::{guest::Prices, work::Planned};

/// The most outcomes that are passed again, and the most of one plan for one request.
const MOST: usize = 64;
const PER_PLAN: usize = 16;

/// An outcome as the policy got it.
pub(crate) struct PastOutcome<W: Planned> {
    pub stage: Stage,
    pub request: W::Request,
    pub device: Device,
    pub capabilities: W::Capabilities,
    pub plan: W::Plan,
    pub outcome: W::Outcome,
    /// The price that may be asked for meanwhile: this plan's, if it was decided on.
    pub prices: Option<Arc<Prices<W>>>,
    /// Fuel that learning from it took.
    pub fuel: u64,
}

impl<W: Planned> PastOutcome<W> {
    /// The work of the outcome.
    pub fn question(&self) -> Question<'_, W> {
        Question::first(self.stage, &self.request, &self.device, &self.capabilities)
    }

    /// True if it is of the same plan for the same work: free memory, which changes from job to
    /// job, makes no difference.
    fn is_alike(&self, other: &AnyOutcome) -> bool
    where
        W: VariantOf<AnyOutcome, Variant = Self>,
    {
        W::of_any(other).is_some_and(|other| {
            W::extents(&self.request) == W::extents(&other.request)
                && self.plan == other.plan
                && W::is_same_model_and_size(&self.request, &other.request)
                && (&self.device.name, &self.device.arch) == (&other.device.name, &other.device.arch)
        })
    }
}

/// An outcome of any kind of work.
pub(crate) type AnyOutcome = any!(PastOutcome);

/// The newest outcomes.
#[derive(Default)]
pub(crate) struct OutcomeMemory {
    /// The oldest first.
    outcomes: VecDeque<AnyOutcome>,
    /// Fuel that learning from all of them takes.
    fuel: u64,
}

impl OutcomeMemory {
    /// Adds the newest outcome. The oldest ones go if there are too many, of the same plan or in
    /// all, or if learning from all of them would take more than `fuel`.
    pub fn add(&mut self, past_outcome: AnyOutcome, fuel: u64) {
        let is_alike = |one: &AnyOutcome| of_any!(one, one => one.is_alike(&past_outcome));
        let mut alike = (0..self.outcomes.len()).filter(|index| is_alike(&self.outcomes[*index]));
        let oldest = alike.next();
        if alike.count() + 1 >= PER_PLAN
            && let Some(oldest) = oldest
        {
            self.remove(oldest);
        }
        self.fuel += of_any!(&past_outcome, one => one.fuel);
        self.outcomes.push_back(past_outcome);
        while self.outcomes.len() > MOST || self.outcomes.len() > 1 && self.fuel > fuel {
            self.remove(0);
        }
    }

    fn remove(&mut self, index: usize) {
        let removed = self.outcomes.remove(index);
        self.fuel -= removed.map_or(0, |one| of_any!(one, one => one.fuel));
    }

    pub fn iter(&self) -> impl Iterator<Item = &AnyOutcome> {
        self.outcomes.iter()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The cost model while a policy learns from an outcome: it has the price of the plan that was
/// decided on, and no other.
pub(crate) struct DecidedCosts<W: Work> {
    pub plan: W::Plan,
    pub cost: W::Cost,
}

impl<W: Work> CostModel<W> for DecidedCosts<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        if W::is_same_work(&self.plan, plan) {
            return Ok(self.cost);
        }
        Err("while a policy learns, only the plan that was carried out has a price".into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tilewright_plan::{
        Backend, Capabilities, Dtype, HostMemory, Model, Objective, Outcome, Plan, PoolStatistics, Request,
    };

    use super::*;

    fn device() -> Device {
        Device {
            backend: Backend::Cpu,
            name: "test".into(),
            arch: "test".into(),
            compute_units: 1,
            total_bytes: 1 << 40,
            free_bytes: 1 << 40,
            unified: false,
            fast_dtypes: vec![],
            hints: Vec::new(),
        }
    }

    fn past_outcome(height: u32, ms: u64, fuel: u64) -> AnyOutcome {
        let plan = Plan { ..Plan::plain() };
        let outcome = Outcome {
            elapsed: Duration::from_millis(ms),
            load: Duration::ZERO,
            peak_bytes: 1,
            attempts: 1,
            pool: PoolStatistics::default(),
            cold: false,
            weights_bytes: 0,
        };
        let model = Model {
            family: "sdxl".into(),
            stored: Dtype::F32,
            quantized: false,
            parameter_bytes: 300 << 20,
            spatial_scale: 8,
            temporal_scale: 1,
        };
        let request = Request {
            model,
            batch: 1,
            frames: 1,
            height,
            width: 1024,
            memory_limit: 8 << 30,
            limit_counts_weights: false,
            allows_blended: true,
            objective: Objective::Balanced,
            hints: Vec::new(),
            // No two jobs find the same memory.
            host: HostMemory { free_bytes: ms, ..HostMemory::default() },
        };
        let (stage, capabilities) = (Stage::Decode, Capabilities::default());
        let device = Device { free_bytes: ms, ..device() };
        AnyOutcome::Vae(PastOutcome { stage, request, device, capabilities, plan, outcome, prices: None, fuel })
    }

    #[test]
    fn the_newest_are_told_again_and_few_of_each_plan() {
        let mut past_outcomes = OutcomeMemory::default();
        for ms in 0..20 {
            past_outcomes.add(past_outcome(64, ms, 1), 1000);
        }
        let told = |past_outcomes: &OutcomeMemory| {
            let elapsed = |past_outcome: &AnyOutcome| of_any!(past_outcome, past => past.outcome.elapsed.as_millis());
            past_outcomes.iter().map(elapsed).collect::<Vec<_>>()
        };
        assert_eq!(told(&past_outcomes), (4..20).collect::<Vec<u128>>());
        for height in 0..200 {
            past_outcomes.add(past_outcome(height, 1, 1), 1000);
        }
        assert_eq!(past_outcomes.iter().count(), MOST);
        // The fuel for learning again is bounded, but the newest outcome is always passed.
        past_outcomes.add(past_outcome(999, 1, 990), 1000);
        assert_eq!(past_outcomes.iter().count(), 11);
        past_outcomes.add(past_outcome(998, 1, 2000), 1000);
        assert_eq!(past_outcomes.iter().count(), 1);
    }
}
