//! The way from a request to a result that all work takes: ask a planner, carry its plan out, measure, ask again after a failure, write the
//! record. What is carried out is the caller's.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tch::Tensor;
use tilewright_plan::{
    Attempt, Candidate, Capabilities, Cost, CostModel, Decision, Dtype, FailedAttempt, Failure, Layout, Outcome, Plan,
    Planner, PoolStatistics, Precision, Question, Record, Release, Request, Space, Stage, Tile, Time, UnderWay,
};
use tilewright_torch::memory;

use crate::{Error, Machine, Result, job::Observer, job::Unfinished, run::Stopped};

/// The most plans of the planner that are tried. A policy gives advice, so the attempts after them are the host's own.
const ASKED: usize = 3;

/// The most plans that are tried without and with the host standing in for the planner: its next plans mend what its
/// first one shows.
const MOST_ATTEMPTS: usize = 4;
const MOST_WITH_OWN: usize = 6;

/// How far a peak may lie above its estimate: what is called enough has to be enough.
const ESTIMATE_MARGIN: f64 = 1.05;

/// What attempts are made for, and on what.
pub(crate) struct Attempts<'a> {
    pub machine: &'a Machine,
    pub stage: Stage,
    pub request: &'a Request,
    pub capabilities: &'a Capabilities,
    pub costs: Arc<dyn CostModel>,
}

/// What is carried out, one attempt after the other.
pub(crate) trait Work {
    type Output;

    /// Carries a plan out; gives the output and what was measured.
    fn carry_out(&mut self, plan: &Plan, turn: &mut Turn<'_>) -> std::result::Result<(Self::Output, Outcome), Stopped>;

    /// Output frames that are delivered and the plan that they were made by, where the next attempt has to go on from there.
    fn under_way(&self) -> Option<UnderWay> {
        None
    }
}

/// What an attempt tells others while it is made.
pub(crate) struct Turn<'a> {
    pub observer: &'a mut dyn Observer,
    /// Grows by the time that loading weights takes.
    pub load: &'a mut Duration,
    /// Hears what a part of the work makes likely for all of it.
    pub learn: &'a mut dyn FnMut(&Outcome),
}

/// Work that leaves nothing behind when it fails.
pub(crate) struct Single<F>(pub F);

impl<T, F> Work for Single<F>
where
    F: FnMut(&Plan, &mut Turn<'_>) -> std::result::Result<(T, Outcome), Stopped>,
{
    type Output = T;

    fn carry_out(&mut self, plan: &Plan, turn: &mut Turn<'_>) -> std::result::Result<(T, Outcome), Stopped> {
        (self.0)(plan, turn)
    }
}

/// Attempts of which the last one succeeded.
pub(crate) struct Succeeded<T> {
    pub output: T,
    pub record: Record,
    pub candidates: Vec<Candidate>,
}

/// True if the library that computes failed, rather than a file, a sink or the user.
fn is_torch(error: &Error) -> bool {
    use tilewright_torch::Error::Torch;
    matches!(error, Error::Torch(Torch(_)) | Error::Model(tilewright_models::Error::Torch(Torch(_))))
}

fn one_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

impl Attempts<'_> {
    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner) -> (Record, Vec<Candidate>) {
        let decision = planner.decide(&self.question(), self.costs.clone());
        let candidates = decision.candidates.clone();
        (self.record(planner, &decision, Vec::new(), None), candidates)
    }

    /// Decides and carries out; asks again after each failure. The fourth to sixth attempts are the host's own plans.
    pub fn run<W: Work>(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        work: &mut W,
    ) -> std::result::Result<Succeeded<W::Output>, Unfinished> {
        let mut decision = planner.decide(&self.question(), self.costs.clone());
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut failed: Vec<FailedAttempt> = Vec::new();
        let mut load = Duration::ZERO;
        let mut has_broken = false;
        loop {
            observer.decided(&decision);
            if let Ok(cost) = self.costs.estimate_one(&decision.plan) {
                observer.expected(&cost);
            }
            let mut learn = |outcome: &Outcome| {
                planner.learn(&self.question(), &decision.plan, outcome);
            };
            let mut turn = Turn { observer, load: &mut load, learn: &mut learn };
            let failure = match work.carry_out(&decision.plan, &mut turn) {
                Ok((output, outcome)) => {
                    let outcome = Outcome { attempts: attempts.len() as u32 + 1, load, ..outcome };
                    planner.learn(&self.question(), &decision.plan, &outcome);
                    let record = self.record(planner, &decision, failed, Some(outcome));
                    return Ok(Succeeded { output, record, candidates: decision.candidates });
                }
                // The plan alone may be at fault, and another one need not fail: a policy's is not the last word.
                Err(Stopped::Broken(error)) if is_torch(&error) && decision.answer.is_some() && !has_broken => {
                    has_broken = true;
                    tracing::warn!(%error, space = %decision.plan.space, precision = %decision.plan.precision, "the plan can't be carried out");
                    let under_way = work.under_way();
                    let question = self.question().going_on(under_way.as_ref()).after(&attempts);
                    let own = planner.fallback(&question, &*self.costs);
                    let Some(mut own) = own.filter(|own| own.plan != decision.plan) else {
                        let record = self.record(planner, &decision, failed, None);
                        return Err(Unfinished { error, record: Some(Box::new(record)) });
                    };
                    if let Some(fallback) = &mut own.fallback {
                        fallback.detail = format!("the policy's plan can't be carried out: {}", one_line(&error));
                    }
                    decision = own;
                    continue;
                }
                Err(Stopped::Broken(error)) => {
                    // A record without an outcome says that the plan failed.
                    let record = error.is_of_the_plan().then(|| self.record(planner, &decision, failed, None));
                    return Err(Unfinished { error, record: record.map(Box::new) });
                }
                // The host's own plan is the last resort: no policy changes it.
                Err(Stopped::Renewed) if attempts.len() >= ASKED => continue,
                Err(Stopped::Renewed) => {
                    // A policy that takes over knows nothing of the other's failures.
                    let under_way = work.under_way();
                    let question = self.question().going_on(under_way.as_ref());
                    decision = planner.decide(&question, self.costs.clone());
                    continue;
                }
                Err(Stopped::Failed(failure)) => failure,
            };
            tracing::info!(%failure, space = %decision.plan.space, precision = %decision.plan.precision, "the attempt failed");
            attempts.push(Attempt { plan: decision.plan.clone(), failure });
            let attempt = FailedAttempt::new(decision.clone(), failure);
            observer.failed(&attempt);
            failed.push(attempt);
            // No other tiles mend what is not finite even in f32.
            let hopeless =
                matches!(failure, Failure::NonFinite { .. }) && decision.plan.precision.dtype() == Dtype::F32;
            let next = if hopeless { None } else { self.next(planner, work, &attempts) };
            let Some(next) = next else {
                let error = Error::Exhausted {
                    attempts: attempts.len(),
                    last: failure,
                    advice: self.advice(failure, hopeless),
                };
                let record = self.record(planner, &decision, failed, None);
                return Err(Unfinished { error, record: Some(Box::new(record)) });
            };
            decision = next;
        }
    }

    /// The decision to try after these attempts; none if it is time to give up.
    fn next<W: Work>(&self, planner: &mut dyn Planner, work: &W, attempts: &[Attempt]) -> Option<Decision> {
        let under_way = work.under_way();
        let question = self.question().going_on(under_way.as_ref()).after(attempts);
        let mut own = None;
        if (ASKED..MOST_WITH_OWN).contains(&attempts.len()) {
            own = planner.fallback(&question, &*self.costs);
        }
        let asks = own.is_none() && attempts.len() < MOST_ATTEMPTS;
        own.or_else(|| asks.then(|| planner.decide(&question, self.costs.clone())))
    }

    /// The same of a tensor, which is brought to host memory.
    pub fn measured_tensor(
        &self,
        carry_out: impl FnOnce() -> std::result::Result<Tensor, Stopped>,
    ) -> std::result::Result<(Tensor, Outcome), Stopped> {
        let (output, outcome) = self.measured(0, carry_out)?;
        Ok((output.f_to_device(tch::Device::Cpu)?.f_contiguous()?, outcome))
    }

    /// Runs something under the request's memory limit and measures it; so many bytes of it are held already.
    pub fn measured<T>(
        &self,
        held: u64,
        carry_out: impl FnOnce() -> std::result::Result<T, Stopped>,
    ) -> std::result::Result<(T, Outcome), Stopped> {
        let device = self.machine.device;
        memory::reset_peak(device)?;
        let before = memory::of(device)?;
        let limit = memory::Limit::new(device, self.request.memory_limit.saturating_sub(held));
        let start = Instant::now();
        let output = carry_out();
        let elapsed = start.elapsed();
        drop(limit);
        let output = output?;
        let after = memory::of(device)?;
        let misses = after.system - before.system;
        let outcome = Outcome {
            elapsed,
            load: Duration::ZERO,
            peak_bytes: (after.peak + held).saturating_sub(before.in_use),
            attempts: 1,
            pool: PoolStatistics {
                hits: (after.allocations - before.allocations).saturating_sub(misses),
                misses,
                held_bytes: after.held,
                fragmentation: after.fragmentation,
            },
        };
        Ok((output, outcome))
    }

    /// Refuses a request that not even the leanest plan fits in.
    pub fn check(&self) -> Result<()> {
        let (plan, least) = self.leanest();
        if least.peak_bytes > self.request.memory_limit {
            let tile = plan.space.tile().map_or(self.request.height.max(self.request.width), |tile| tile.height);
            let what = if self.request.frames > 1 { "clip" } else { "picture" };
            return Err(Error::DoesNotFit { what, limit: self.request.memory_limit, least: least.peak_bytes, tile });
        }
        Ok(())
    }

    /// The plan that holds least, and its price.
    fn leanest(&self) -> (Plan, Cost) {
        let Request { height, width, frames, .. } = *self.request;
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
        // A picture no larger than a tile is leaner whole: nothing is gathered. So is a long clip that leaves as it is decoded.
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

    /// The question before anything was carried out.
    fn question(&self) -> Question<'_> {
        Question::new(self.stage, self.request, &self.machine.facts, self.capabilities)
    }

    fn advice(&self, last: Failure, hopeless: bool) -> String {
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
                    "raise --memory-limit, or try --policy fixed --set {space} --set precision={} --set layout={} (about {})",
                    plan.precision,
                    plan.layout,
                    tilewright_plan::bytes::display(least.peak_bytes)
                )
            }
        }
    }

    fn record(
        &self,
        planner: &dyn Planner,
        decision: &Decision,
        attempts: Vec<FailedAttempt>,
        outcome: Option<Outcome>,
    ) -> Record {
        Record {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            stage: Some(self.stage),
            request: self.request.clone(),
            capabilities: Some(self.capabilities.clone()),
            device: self.machine.facts.clone(),
            policy: planner.identity().clone(),
            answer: decision.answer.clone(),
            plan: decision.plan.clone(),
            adjusted: decision.adjusted.clone(),
            fallback: decision.fallback.clone(),
            decision: decision.elapsed,
            fuel: decision.fuel,
            estimate: self.costs.estimate_one(&decision.plan).ok(),
            expected: tilewright_plan::expected(&*self.costs, &decision.plan),
            attempts,
            outcome,
            resumed_frames: 0,
            exchange: None,
        }
    }
}
