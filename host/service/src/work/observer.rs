//! The observers of a job at work: one reports to followers and metrics, one only stops.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tch::Tensor;
use tilewright_engine::{
    AnyDecided, AnyFailed, Cancelled, Decided, Error, Failed, FinishedStep, Next, Observer, Profiled, StopCheck,
};
use tilewright_media::Preview;
use tilewright_pipeline::{KeptSample, LatentMap};
use tilewright_plan::{
    Decision, Denoise, DenoiseCost, DenoiseOutcome, DenoisePlan, DenoiseRequest, Plan, Request, Text, Vae, VariantOf,
    Work,
};
use tilewright_rollout::{Assignment, Decider, Served};
use tilewright_service_api::{PlanGrid, SamplingProgress};

use super::{JobEnd, executed::Execution, held::Held, profiling::StageProfiles};
use crate::{
    clock,
    device::DeviceState,
    error::one_line,
    job_traces::{AnyJobTrace, JobTrace},
    jobs::{
        StoredJob,
        live::{JobHandle, plan_grid, step_grid},
    },
    metrics::Labels,
    state::ServerState,
};

/// The signal that stops a job at work: a caller has cancelled it, or its deadline has passed.
#[derive(Clone, Debug)]
pub struct StopSignal {
    handle: Arc<JobHandle>,
    deadline_ms: u64,
    found: Arc<AtomicU8>,
    held: Arc<Held>,
}

const CANCELLED: u8 = 1;
const EXPIRED: u8 = 2;

impl StopSignal {
    /// A signal that has not been given.
    pub fn new(handle: Arc<JobHandle>, stored: &StoredJob) -> Self {
        let held = Arc::new(Held::of(stored));
        Self { handle, deadline_ms: stored.deadline_ms, found: Arc::default(), held }
    }

    /// Checks for a reason to stop; true if the job may go on.
    pub fn goes_on(&self) -> bool {
        let found = match () {
            () if self.handle.is_cancelled() => CANCELLED,
            () if clock::steady_ms() >= self.deadline_ms => EXPIRED,
            () => return true,
        };
        // The first reason stays.
        let _ = self.found.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire);
        false
    }

    /// The check within the job's operations.
    fn check(&self) -> StopCheck {
        let stop = self.clone();
        Arc::new(move || {
            stop.held.wait_while(|| stop.goes_on());
            !stop.goes_on()
        })
    }

    /// The end of a job that was stopped.
    pub fn end(&self) -> JobEnd {
        match self.found.load(Ordering::Acquire) {
            EXPIRED => JobEnd::Expired,
            _ => JobEnd::Cancelled,
        }
    }
}

/// The observer of one job.
pub struct JobObserver<'a, W: Work> {
    server: &'a ServerState,
    device: &'a DeviceState,
    assignment: &'a Assignment,
    handle: Arc<JobHandle>,
    stop: StopSignal,
    successor: Box<dyn Fn() -> bool>,
    /// The number of the revision that decides now.
    current: Arc<AtomicU64>,
    /// True if the next decision continues the attempt under way.
    goes_on: bool,
    /// The request, when it is known.
    pub request: Option<W::Request>,
    /// The plans that the last decision considered, and the lines that the policy logged.
    pub trace: JobTrace<W>,
    /// The place where the steps of a sample are kept.
    pub kept: Option<KeptSample>,
    /// The preview of a sample.
    pub previewing: Option<Previewing<'a>>,
    /// The profiles of the work, if it is to be profiled.
    pub profiles: Option<StageProfiles<'a>>,
    pace: StepPace,
}

/// A preview, and the colours that it is drawn with.
pub struct Previewing<'a> {
    pub colours: &'a LatentMap,
    pub preview: Preview,
}

impl Previewing<'_> {
    fn show(&self, denoised: &Tensor) -> tilewright_pipeline::Result<()> {
        Ok(self.preview.show(&self.colours.picture(denoised)?, &Vec::new())?)
    }
}

/// The pace of a sample's steps, loading weights aside.
#[derive(Debug, Default)]
struct StepPace {
    /// The time when the step under way began; none while weights load before the first one.
    began: Option<Instant>,
    /// The time when a load began.
    loading: Option<Instant>,
    /// The time of loads within the step under way.
    loaded: Duration,
    steps: u32,
    spent: Duration,
    expected: Option<Duration>,
}

impl StepPace {
    fn begin_loading(&mut self) {
        self.loading = Some(Instant::now());
    }

    fn end_loading(&mut self) {
        let took = self.loading.take().map_or(Duration::ZERO, |began| began.elapsed());
        match self.began {
            Some(_) => self.loaded += took,
            None => self.began = Some(Instant::now()),
        }
    }

    /// Begins a step once what was done with the one before is done.
    fn begin_step(&mut self) {
        self.began = Some(Instant::now());
    }

    /// Ends a step; gives its time.
    fn end_step(&mut self) -> Duration {
        let now = Instant::now();
        let took = self.began.replace(now).map_or(Duration::ZERO, |began| now - began);
        let step = took.saturating_sub(std::mem::take(&mut self.loaded));
        self.steps += 1;
        self.spent += step;
        step
    }

    /// The progress after `step` of `steps` steps.
    fn progress(&self, step: u32, steps: u32) -> SamplingProgress {
        let mean = self.spent.checked_div(self.steps).or(self.expected);
        let step_ms = mean.map(|mean| mean.as_secs_f64() * 1e3);
        let left_ms = step_ms.map(|ms| ms * f64::from(steps.saturating_sub(step)));
        SamplingProgress { step, steps, step_ms, left_ms, preview: false }
    }
}

impl<'a, W: Work> JobObserver<'a, W> {
    /// An observer that has seen nothing.
    pub fn new(execution: Execution<'a>, decider: &Decider<W>) -> Self
    where
        W: Served,
    {
        let Execution { turn, assignment, stop, stored } = execution;
        Self {
            server: turn.server,
            device: turn.device,
            assignment,
            handle: turn.handle.clone(),
            stop: stop.clone(),
            successor: Box::new(decider.successor()),
            current: decider.current(),
            goes_on: false,
            request: None,
            trace: JobTrace::default(),
            kept: None,
            previewing: None,
            profiles: stored.request.profile.then(|| StageProfiles::new(&turn.server.jobs.files, &stored.job.id)),
            pace: StepPace::default(),
        }
    }

    fn labels(&self) -> Labels<'a> {
        let Assignment { route, revision, canary, .. } = self.assignment;
        let revision_number = self.current.load(Ordering::Acquire);
        Labels { route, policy: &revision.policy, revision: revision_number, canary: *canary }
    }

    /// Notes a decision; the plan divides the work into a grid.
    fn note_decision(&mut self, decision: &Decision<W>, grid: Option<PlanGrid>) {
        let labels = self.labels();
        let reason = decision.fallback.as_ref().map(|fallback| fallback.reason);
        self.server.metrics.record_decision(&labels, decision.elapsed, reason);
        self.server.traces.record_decision_time(labels.policy, labels.revision, decision.elapsed.as_secs_f64());
        self.trace.candidates.clone_from(&decision.candidates);
        self.trace.log.extend(decision.log.iter().cloned());
        let goes_on = std::mem::take(&mut self.goes_on);
        if let Some(grid) = grid {
            let decided = (labels.policy, labels.revision);
            self.handle.begin_plan(decision.plan.clone().into(), grid, decided, goes_on);
        }
    }

    /// Shows work that has got further, and goes on with it unless it is to end.
    fn show_progress(&self, is_further: bool) -> ControlFlow<Cancelled> {
        if is_further {
            self.device.refresh_memory();
            self.server.jobs.live.notify_change();
        }
        Cancelled::unless(self.stop.goes_on())
    }

    /// True if another revision waits to take over. What is done stays, so that its decision begins
    /// no other attempt.
    fn next(&mut self) -> Next {
        self.goes_on = (self.successor)();
        if self.goes_on { Next::AskAgain } else { Next::GoOn }
    }
}

/// A kind of work whose jobs are followed.
pub trait Followed:
    Work
    + for<'a> VariantOf<AnyDecided<'a>, Variant = Decided<'a, Self>>
    + for<'a> VariantOf<AnyFailed<'a>, Variant = Failed<'a, Self>>
    + VariantOf<AnyJobTrace, Variant = Box<JobTrace<Self>>>
{
    /// The name and the help of the metric of times.
    const TIMES: (&'static str, &'static str);

    /// The name and the help of the metric of memory.
    const PEAKS: (&'static str, &'static str);

    /// True if the parts of the work are the steps of a sample.
    const HAS_STEPS: bool = false;

    /// The grid that a plan divides the work into; `None` before the request is known.
    fn grid(request: Option<&Self::Request>, _plan: &Self::Plan) -> Option<PlanGrid> {
        Some(step_grid(request.map_or(1, |request| Self::extents(request)[0])))
    }

    /// The expected time of a step of a sample.
    fn step(_cost: &Self::Cost) -> Option<Duration> {
        None
    }

    /// Bytes of weights that a sample read again, and its calls that earlier outputs served.
    fn savings(_outcome: &Self::Outcome) -> Option<(u64, u32)> {
        None
    }
}

impl Followed for Vae {
    const TIMES: (&'static str, &'static str) =
        ("tilewright_decode_seconds", "Time of decodes that ended well, loading weights aside.");
    const PEAKS: (&'static str, &'static str) =
        ("tilewright_decode_peak_bytes", "Peak memory of the last decode; with the weights if its limit counts them.");

    fn grid(request: Option<&Request>, plan: &Plan) -> Option<PlanGrid> {
        Some(plan_grid(request?, plan))
    }
}

impl Followed for Denoise {
    const TIMES: (&'static str, &'static str) =
        ("tilewright_sample_seconds", "Time of samples that ended well, loading weights aside.");
    const PEAKS: (&'static str, &'static str) =
        ("tilewright_sample_peak_bytes", "Peak memory of the last sample, weights included.");

    const HAS_STEPS: bool = true;

    fn grid(request: Option<&DenoiseRequest>, _: &DenoisePlan) -> Option<PlanGrid> {
        Some(step_grid(request.map_or(0, |request| request.steps)))
    }

    fn step(cost: &DenoiseCost) -> Option<Duration> {
        Some(cost.step)
    }

    fn savings(outcome: &DenoiseOutcome) -> Option<(u64, u32)> {
        Some((outcome.moved_bytes, outcome.reused))
    }
}

impl Followed for Text {
    const TIMES: (&'static str, &'static str) =
        ("tilewright_text_seconds", "Time of text encoders' runs that ended well, loading weights aside.");
    const PEAKS: (&'static str, &'static str) =
        ("tilewright_text_peak_bytes", "Peak memory of the last text encoder's run, weights included.");
}

impl<W: Followed> Observer for JobObserver<'_, W> {
    fn stop_check(&self) -> Option<StopCheck> {
        Some(self.stop.check())
    }

    fn wants_profile(&self) -> bool {
        self.profiles.is_some()
    }

    fn profiled(&mut self, profiled: Profiled) {
        if let Some(profiles) = &mut self.profiles {
            profiles.keep(profiled);
        }
    }

    fn decided(&mut self, decided: AnyDecided<'_>) {
        let Some(&Decided { decision, expected, steps_done }) = W::of_any(&decided) else { return };
        let grid = W::grid(self.request.as_ref(), &decision.plan);
        self.note_decision(decision, grid);
        if let Some(grid) = grid.filter(|_| W::HAS_STEPS) {
            // Another plan has another pace.
            self.pace = StepPace { expected: expected.and_then(W::step), ..StepPace::default() };
            self.handle.update_sampling(self.pace.progress(steps_done, grid.total));
        }
        let fallback = decision.fallback.as_ref().map(|fallback| fallback.reason.to_string());
        let decision_us = decision.elapsed.as_nanos() as f64 / 1e3;
        tracing::info!(plan = %decision.plan, steps_done, decision_us, fuel = decision.fuel, fallback, "decided");
        self.server.jobs.live.notify_change();
    }

    fn failed(&mut self, failed: AnyFailed<'_>) {
        let Some(Failed { attempt, .. }) = W::of_any(&failed) else { return };
        tracing::warn!(failure = %attempt.failure, plan = %attempt.plan, step = attempt.step, "an attempt failed");
        self.handle.report_failure(attempt.plan.clone().into(), attempt.failure);
        self.server.jobs.live.notify_change();
    }

    fn loading(&mut self) {
        self.pace.begin_loading();
    }

    fn loading_progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        self.show_progress(self.handle.update_loading(share))
    }

    fn loaded(&mut self) {
        self.pace.end_loading();
        self.handle.end_loading();
        self.server.jobs.live.notify_change();
    }

    fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        self.show_progress(self.handle.update_progress(share))
    }

    fn stepped(&mut self, step: &FinishedStep<'_>) -> tilewright_engine::Result<()> {
        let took = self.pace.end_step();
        self.server.metrics.record_step(&self.labels(), took);
        let preview = match (&self.previewing, step.denoised) {
            (Some(previewing), Some(denoised)) => match previewing.show(denoised) {
                Ok(()) => true,
                // A sample is worth more than its preview.
                Err(error) => {
                    tracing::warn!(error = one_line(&error), "no further preview is kept");
                    self.previewing = None;
                    false
                }
            },
            _ => false,
        };
        // A step that followers see outlives the server.
        let kept = self.kept.as_ref().map(|kept| kept.keep(step.state, step.plan));
        let progress = self.pace.progress(step.state.steps, step.steps);
        self.handle.update_sampling(SamplingProgress { preview, ..progress });
        self.server.jobs.live.notify_change();
        self.pace.begin_step();
        kept.transpose().map(drop).map_err(|error| Error::Sink(Box::new(error)))
    }

    fn between_steps(&mut self) -> Next {
        self.next()
    }

    fn between_chunks(&mut self) -> Next {
        self.next()
    }
}

/// An observer that only stops the work when the job is to end, for work that is compared.
pub struct CancelOnly<'a>(pub &'a StopSignal);

impl Observer for CancelOnly<'_> {
    fn stop_check(&self) -> Option<StopCheck> {
        Some(self.0.check())
    }

    fn loading_progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }

    fn progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }
}
