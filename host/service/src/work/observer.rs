//! The observers of a job at work: one reports to followers and metrics, one only stops.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use tilewright_engine::{Cancelled, Next, Observer};
use tilewright_plan::{Candidate, Decision, FailedAttempt, LogLine, Request};
use tilewright_rollout::Assignment;

use super::JobEnd;
use crate::{clock, device::DeviceState, jobs::live::JobHandle, state::ServerState};

/// The signal that stops a job at work: a caller has cancelled it, or its deadline has passed.
#[derive(Clone, Debug)]
pub struct StopSignal {
    handle: Arc<JobHandle>,
    deadline_ms: u64,
    found: Arc<AtomicU8>,
}

const CANCELLED: u8 = 1;
const EXPIRED: u8 = 2;

impl StopSignal {
    /// A signal that has not been given.
    pub fn new(handle: Arc<JobHandle>, deadline_ms: u64) -> Self {
        Self { handle, deadline_ms, found: Arc::default() }
    }

    /// Checks for a reason to stop; true if the job may go on.
    pub fn goes_on(&self) -> bool {
        let found = match () {
            () if self.handle.is_cancelled() => CANCELLED,
            () if clock::now_ms() >= self.deadline_ms => EXPIRED,
            () => return true,
        };
        // The first reason stays.
        let _ = self.found.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire);
        false
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
pub struct JobObserver<'a> {
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
    pub request: Option<Request>,
    /// The plans that the last decision considered.
    pub candidates: Vec<Candidate>,
    /// The lines that the policy logged.
    pub log: Vec<LogLine>,
}

impl<'a> JobObserver<'a> {
    /// An observer that has seen nothing.
    pub fn new(
        server: &'a ServerState,
        device: &'a DeviceState,
        assignment: &'a Assignment,
        handle: Arc<JobHandle>,
        stop: StopSignal,
        successor: impl Fn() -> bool + 'static,
        current: Arc<AtomicU64>,
    ) -> Self {
        let (candidates, log) = (Vec::new(), Vec::new());
        Self {
            server,
            device,
            assignment,
            handle,
            stop,
            successor: Box::new(successor),
            current,
            goes_on: false,
            request: None,
            candidates,
            log,
        }
    }

    /// The signal that stops the job.
    pub fn stop(&self) -> &StopSignal {
        &self.stop
    }
}

impl Observer for JobObserver<'_> {
    fn decided(&mut self, decision: &Decision) {
        let Assignment { route, revision, canary, .. } = self.assignment;
        let (policy, number) = (revision.policy.as_str(), self.current.load(Ordering::Acquire));
        let reason = decision.fallback.as_ref().map(|fallback| fallback.reason);
        let elapsed = decision.elapsed;
        self.server.metrics.record_decision(route, policy, number, *canary, elapsed, reason);
        self.server.traces.record_decision_time(policy, number, elapsed.as_secs_f64());
        self.candidates.clone_from(&decision.candidates);
        self.log.extend(decision.log.iter().cloned());
        let goes_on = std::mem::take(&mut self.goes_on);
        if let Some(request) = &self.request {
            self.handle.begin_plan(request, decision, policy, number, goes_on);
        }
        let fallback = reason.map(|reason| reason.to_string());
        let decision_us = elapsed.as_nanos() as f64 / 1e3;
        tracing::info!(space = %decision.plan.space, precision = %decision.plan.precision, decision_us, fuel = decision.fuel, fallback, "decided");
        self.server.jobs.live.notify_change();
    }

    fn failed(&mut self, attempt: &FailedAttempt) {
        tracing::warn!(failure = %attempt.failure, space = %attempt.plan.space, "an attempt failed");
        self.handle.report_failure(&attempt.plan, attempt.failure);
        self.server.jobs.live.notify_change();
    }

    fn loading_progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        if self.handle.update_loading(share) {
            self.device.refresh_memory();
            self.server.jobs.live.notify_change();
        }
        Cancelled::unless(self.stop.goes_on())
    }

    fn loaded(&mut self) {
        self.handle.end_loading();
        self.server.jobs.live.notify_change();
    }

    fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        if self.handle.update_progress(share) {
            self.device.refresh_memory();
            self.server.jobs.live.notify_change();
        }
        Cancelled::unless(self.stop.goes_on())
    }

    fn between_chunks(&mut self) -> Next {
        // Frames that were delivered stay, so the next decision begins no other attempt.
        self.goes_on = (self.successor)();
        if self.goes_on { Next::AskAgain } else { Next::GoOn }
    }
}

/// An observer that only stops the work when the job is to end, for decodes that are compared.
pub struct CancelOnly<'a>(pub &'a StopSignal);

impl Observer for CancelOnly<'_> {
    fn loading_progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }

    fn progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }
}
