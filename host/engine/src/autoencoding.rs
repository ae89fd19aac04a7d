//! Decodes and encodes: what pictures and clips have in common in both directions.

pub(crate) mod costs;

use std::time::Duration;
use tilewright_wording::Setting;

use tilewright_plan::{
    Capabilities, Cost, Dtype, Failure, LEAST_TILE, Layout, MOST_BATCH, Model, Objective, Outcome, Plan, Precision,
    Release, Request, Space, Stage, Tile, Time, Vae,
};

use self::costs::{PlanCost, VaePrices};
use crate::{
    Error, Job, Machine, MemoryLimit, Result,
    run::is_hopeless,
    work::{Attempts, Runnable},
};

/// The factor by which a peak may exceed its estimate: a limit reported as enough must be enough.
const ESTIMATE_MARGIN: f64 = 1.05;

impl Runnable for Vae {
    type Prices = VaePrices;

    fn layout(plan: &Plan) -> Option<Layout> {
        Some(plan.layout)
    }

    fn with_attempts(outcome: Outcome, Attempts { count, load, cold }: Attempts) -> Outcome {
        Outcome { attempts: count, load, cold, ..outcome }
    }
}

impl<'a, I> Job<'a, Vae, I> {
    /// A job whose request fits. Its tiles are multiples of `scale` pixels.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if not even the leanest plan fits.
    pub(crate) fn checked(
        machine: &'a Machine,
        stage: Stage,
        request: Request,
        (scale, is_clip): (u32, bool),
        formula: impl PlanCost + 'static,
        input: I,
    ) -> Result<Self> {
        let capabilities = Capabilities {
            dtypes: formula.dtypes(),
            tile_unit: scale,
            tile_least: scale * LEAST_TILE,
            batch_most: if is_clip { 1 } else { MOST_BATCH },
            // Only decodes can be run in exact bands.
            exact: stage == Stage::Decode,
            carried: is_clip,
            offload: is_clip && machine.has_own_memory(),
            // Latents are copied in no time beside what it takes to decode them.
            prefetch_most: 0,
            options: machine.vae_options(stage),
        };
        let prices = VaePrices::new(formula, request.limit_counts_weights);
        let job = Self::new_unchecked(machine, stage, request, capabilities, prices, input);
        job.check()?;
        Ok(job)
    }

    /// The same job, with blended tiles and chunks allowed where an exact plan fits, or not.
    #[must_use]
    pub fn allowing_blended(mut self, allows: bool) -> Self {
        self.request.allows_blended = allows;
        self
    }

    /// The bytes of weights in use that the memory limit counts.
    pub(crate) const fn counted_weights(&self, weights_bytes: u64) -> u64 {
        if self.request.limit_counts_weights { weights_bytes } else { 0 }
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

    /// The shortest time that a plan is expected to take, in whatever memory; none if no plan has a
    /// price.
    pub fn fastest(&self) -> Option<Duration> {
        let times = self.corners().filter_map(|plan| self.estimate(&plan).ok()).map(|cost| cost.elapsed);
        times.min().map(|time| self.machine.at_best(time))
    }

    /// The plans among which are the leanest and about the fastest one, in each type and order.
    fn corners(&self) -> impl Iterator<Item = Plan> {
        let Request { height, width, frames, .. } = self.request;
        let side = self.capabilities.tile_least.min(height.max(width));
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
        let formats = self.capabilities.dtypes.iter().flat_map(|dtype| {
            [Layout::ChannelsFirst, Layout::ChannelsLast].map(|layout| (Precision::Uniform(*dtype), layout))
        });
        formats.flat_map(move |(precision, layout)| {
            let plan = move |(space, time)| plain(space, time, precision, layout);
            ways.clone().into_iter().map(plan)
        })
    }

    /// The plan that holds least, and its price.
    fn leanest(&self) -> (Plan, Cost) {
        let mut least = (
            plain(Space::Whole, Time::Whole, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst),
            Cost { peak_bytes: u64::MAX, weights_bytes: 0, elapsed: Duration::ZERO, tiles: 0, shapes: 0, rework: 1.0 },
        );
        for plan in self.corners() {
            match self.estimate(&plan) {
                Ok(cost) if cost.peak_bytes < least.1.peak_bytes => least = (plan, cost),
                _ => {}
            }
        }
        least.1.peak_bytes = (least.1.peak_bytes as f64 * ESTIMATE_MARGIN) as u64;
        least
    }

    /// The way out after the last attempt has failed.
    pub(crate) fn advice(&self, plan: &Plan, last: Failure) -> String {
        match last {
            Failure::NonFinite { .. } if is_hopeless::<Vae>(plan, last) => {
                "in f32 too: the weights or the input are damaged".into()
            }
            Failure::NonFinite { .. } => format!("try {} fixed {} precision=f32", Setting::Policy, Setting::Set),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let (plan, least) = self.leanest();
                let set = Setting::Set;
                let kind = if let Space::Exact(_) = plan.space { "exact" } else { "blended" };
                let mut space = match plan.space.tile() {
                    Some(tile) => format!("space={kind} {set} tile={} {set} overlap={}", tile.height, tile.overlap),
                    None => "space=whole".into(),
                };
                if let Time::Carried { frames } = plan.time {
                    space.push_str(&format!(" {set} time=carried {set} chunk={frames}"));
                }
                format!(
                    "raise {}, or try {} fixed {set} {space} {set} precision={} {set} layout={} (about {}{})",
                    Setting::MemoryLimit,
                    Setting::Policy,
                    plan.precision,
                    plan.layout,
                    tilewright_plan::bytes::display(least.peak_bytes),
                    if self.request.limit_counts_weights { ", weights included" } else { "" }
                )
            }
        }
    }
}

/// A request for these samples, frames, rows and columns of pixels.
pub(crate) fn request(
    machine: &Machine,
    model: Model,
    [batch, frames, height, width]: [u32; 4],
    MemoryLimit { bytes, counts_weights }: MemoryLimit,
    objective: Objective,
) -> Request {
    Request {
        model,
        batch,
        frames,
        height,
        width,
        memory_limit: bytes,
        limit_counts_weights: counts_weights,
        objective,
        allows_blended: false,
        host: machine.host_memory(),
        hints: Vec::new(),
    }
}

/// A plan that gives memory back as soon as it can.
fn plain(space: Space, time: Time, precision: Precision, layout: Layout) -> Plan {
    Plan { space, time, precision, layout, release: Release::EachStep, ..Plan::plain() }
}
