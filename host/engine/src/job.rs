//! A request for one piece of work on one device: all that there is before a plan is carried out.

use std::{sync::Arc, time::Duration};

use tilewright_plan::{
    Candidate, Capabilities, Cost, CostModel, Decision, Device as Facts, Dtype, FailedAttempt, Failure, Layout,
    Outcome, Plan, Planner, Precision, Question, Record, Release, Request, Space, Stage, Tile, Time, Vae, Work,
};

use crate::{
    Error, Machine, Result,
    costs::{Costs, PlanCost},
    record::record,
};

/// The share by which a peak may lie above its estimate: what is called enough has to be enough.
const ESTIMATE_MARGIN: f64 = 1.05;

/// A request for one piece of work on one device. `I` is its input: a network and what goes into
/// it.
#[derive(Debug)]
pub struct Job<'a, I> {
    pub(crate) machine: &'a Machine,
    /// The machine's, as of now.
    pub(crate) facts: Facts,
    pub(crate) stage: Stage,
    pub(crate) request: Request,
    pub(crate) capabilities: Capabilities,
    pub(crate) costs: Arc<Costs>,
    pub(crate) input: I,
}

/// A job that ended with its result.
#[derive(Debug)]
pub struct Finished<T> {
    /// The result.
    pub output: T,
    /// The decision and what was measured.
    pub record: Record,
    /// The plans that the policy asked the price of for the last decision.
    pub candidates: Vec<Candidate>,
}

/// A job that ended without one.
#[derive(Debug)]
pub struct Unfinished<W: Work = Vae> {
    /// The reason.
    pub error: Error,
    /// The record as far as the job came; none if nothing was decided.
    pub record: Option<Box<Record<W>>>,
}

impl<E: Into<Error>, W: Work> From<E> for Unfinished<W> {
    fn from(error: E) -> Self {
        Self { error: error.into(), record: None }
    }
}

impl<'a, I> Job<'a, I> {
    /// A job whose request fits.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
    pub(crate) fn checked(
        machine: &'a Machine,
        stage: Stage,
        request: Request,
        capabilities: Capabilities,
        prices: impl PlanCost + 'static,
        input: I,
    ) -> Result<Self> {
        let costs = Arc::new(Costs::new(prices, &request));
        let facts = machine.facts_now();
        let job = Self { machine, facts, stage, request, capabilities, costs, input };
        job.check()?;
        Ok(job)
    }

    /// Gives policies earlier measurements on this device for this model, newest first. A
    /// measurement at another size becomes the likely one at this size: the estimate for now, times
    /// measured over estimated then.
    #[must_use]
    pub fn with_history(mut self, records: &[Record]) -> Self {
        self.costs = Arc::new(self.costs.with_history(records));
        self
    }

    /// The same job, with blended tiles and chunks allowed where an exact plan fits, or not.
    #[must_use]
    pub fn allowing_blended(mut self, allows: bool) -> Self {
        self.request.allows_blended = allows;
        self
    }

    /// The kind of work.
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// The work itself, as policies see it.
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// The plans that can be carried out.
    pub const fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The price of a plan for this job.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &Plan) -> std::result::Result<Cost, String> {
        self.costs.estimate_one(plan)
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        let decision = planner.decide(&self.question(), self.costs.clone());
        let candidates = decision.candidates.clone();
        (self.record(planner, &decision, Vec::new(), None), candidates)
    }

    /// The bytes of weights in use that the memory limit counts.
    pub(crate) const fn counted_weights(&self, weights_bytes: u64) -> u64 {
        if self.request.limit_counts_weights { weights_bytes } else { 0 }
    }

    /// The question before anything was carried out.
    pub(crate) fn question(&self) -> Question<'_> {
        Question::new(self.stage, &self.request, &self.facts, &self.capabilities)
    }

    /// Refuses a request that not even the leanest plan fits in.
    fn check(&self) -> Result<()> {
        let (plan, least) = self.leanest();
        if least.peak_bytes > self.request.memory_limit {
            let tile = plan.space.tile().map_or(self.request.height.max(self.request.width), |tile| tile.height);
            let what = if self.request.frames > 1 { "clip" } else { "picture" };
            let Request { memory_limit: limit, limit_counts_weights: counts_weights, .. } = self.request;
            return Err(Error::DoesNotFit { what, limit, least: least.peak_bytes, counts_weights, tile });
        }
        Ok(())
    }

    /// The plan that holds least, and its price.
    fn leanest(&self) -> (Plan, Cost) {
        let Request { height, width, frames, .. } = self.request;
        let side = self.capabilities.tile_least.min(height.max(width));
        let plan = |precision, layout, (space, time)| Plan {
            space,
            time,
            batch: 1,
            precision,
            layout,
            release: Release::EachStep,
            offload: false,
            prefetch: 0,
            reason: String::new(),
        };
        // A picture no larger than a tile is leaner whole: nothing is gathered. So is a long clip
        // that leaves as it is decoded.
        let mut ways = vec![
            (Space::Blended(Tile { height: side, width: side, overlap: 0 }), Time::Whole),
            (Space::Whole, Time::Whole),
        ];
        if frames > 1 && self.capabilities.carried {
            let bands = Space::Exact(Tile { height: side, width, overlap: 0 });
            ways.extend([Space::Whole, bands].map(|space| (space, Time::Carried { frames: 1 })));
        }
        let mut least = (
            plan(Precision::Uniform(Dtype::F32), Layout::ChannelsFirst, ways[0]),
            Cost { peak_bytes: u64::MAX, elapsed: Duration::ZERO, tiles: 0, shapes: 0, rework: 1.0 },
        );
        for dtype in &self.capabilities.dtypes {
            for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                for way in &ways {
                    let plan = plan(Precision::Uniform(*dtype), layout, *way);
                    match self.costs.estimate_one(&plan) {
                        Ok(cost) if cost.peak_bytes < least.1.peak_bytes => least = (plan, cost),
                        _ => {}
                    }
                }
            }
        }
        least.1.peak_bytes = (least.1.peak_bytes as f64 * ESTIMATE_MARGIN) as u64;
        least
    }

    /// The way out after the last attempt has failed.
    pub(crate) fn advice(&self, last: Failure, hopeless: bool) -> String {
        match last {
            Failure::NonFinite { .. } if hopeless => "in f32 too: the weights or the input are damaged".into(),
            Failure::NonFinite { .. } => "try --policy fixed --set precision=f32".into(),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let (plan, least) = self.leanest();
                let kind = if let Space::Exact(_) = plan.space { "exact" } else { "blended" };
                let mut space = match plan.space.tile() {
                    Some(tile) => format!("space={kind} --set tile={} --set overlap={}", tile.height, tile.overlap),
                    None => "space=whole".into(),
                };
                if let Time::Carried { frames } = plan.time {
                    space.push_str(&format!(" --set time=carried --set chunk={frames}"));
                }
                format!(
                    "raise --memory-limit, or try --policy fixed --set {space} --set precision={} --set layout={} (about {}{})",
                    plan.precision,
                    plan.layout,
                    tilewright_plan::bytes::display(least.peak_bytes),
                    if self.request.limit_counts_weights { ", weights included" } else { "" }
                )
            }
        }
    }

    /// The record of a decision and what it led to.
    pub(crate) fn record(
        &self,
        planner: &dyn Planner,
        decision: &Decision,
        attempts: Vec<FailedAttempt>,
        outcome: Option<Outcome>,
    ) -> Record {
        record(&self.question(), &*self.costs, planner, decision, attempts, outcome)
    }
}
