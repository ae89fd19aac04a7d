//! Hears how a job goes on, tells followers, and ends it where somebody asked or its time is up.

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

use super::End;
use crate::{clock, device::Device, house::House, jobs::live::Seen};

/// Whether a job is to end, and why.
#[derive(Clone, Debug)]
pub struct Why {
    seen: Arc<Seen>,
    deadline_ms: u64,
    found: Arc<AtomicU8>,
}

const CANCELLED: u8 = 1;
const EXPIRED: u8 = 2;

impl Why {
    /// Nothing yet.
    pub fn new(seen: Arc<Seen>, deadline_ms: u64) -> Self {
        Self { seen, deadline_ms, found: Arc::default() }
    }

    /// Looks; true where the job may go on.
    pub fn goes_on(&self) -> bool {
        let found = match () {
            () if self.seen.is_cancelled() => CANCELLED,
            () if clock::now_ms() >= self.deadline_ms => EXPIRED,
            () => return true,
        };
        // The first reason stays.
        let _ = self.found.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire);
        false
    }

    /// How a job ends that was interrupted.
    pub fn end(&self) -> End {
        match self.found.load(Ordering::Acquire) {
            EXPIRED => End::Expired,
            _ => End::Cancelled,
        }
    }
}

/// The observer of one job.
pub struct Observing<'a> {
    house: &'a House,
    device: &'a Device,
    assignment: &'a Assignment,
    seen: Arc<Seen>,
    why: Why,
    successor: Box<dyn Fn() -> bool>,
    /// The number of the revision that decides now.
    current: Arc<AtomicU64>,
    /// The next decision goes on with the attempt under way.
    goes_on: bool,
    /// What is asked for, once that is known.
    pub request: Option<Request>,
    /// What the last decision considered.
    pub candidates: Vec<Candidate>,
    /// What the policy said.
    pub log: Vec<LogLine>,
}

impl<'a> Observing<'a> {
    /// Hears nothing yet.
    pub fn new(
        house: &'a House,
        device: &'a Device,
        assignment: &'a Assignment,
        seen: Arc<Seen>,
        why: Why,
        successor: impl Fn() -> bool + 'static,
        current: Arc<AtomicU64>,
    ) -> Self {
        let (candidates, log) = (Vec::new(), Vec::new());
        Self {
            house,
            device,
            assignment,
            seen,
            why,
            successor: Box::new(successor),
            current,
            goes_on: false,
            request: None,
            candidates,
            log,
        }
    }

    /// Whether and why the job is to end.
    pub fn why(&self) -> &Why {
        &self.why
    }
}

impl Observer for Observing<'_> {
    fn decided(&mut self, decision: &Decision) {
        let Assignment { route, revision, canary, .. } = self.assignment;
        let (policy, number) = (revision.policy.as_str(), self.current.load(Ordering::Acquire));
        let reason = decision.fallback.as_ref().map(|fallback| fallback.reason);
        let elapsed = decision.elapsed;
        self.house.metrics.decided(route, policy, number, *canary, elapsed, reason);
        self.house.stories.decided(policy, number, elapsed.as_secs_f64());
        self.candidates.clone_from(&decision.candidates);
        self.log.extend(decision.log.iter().cloned());
        let goes_on = std::mem::take(&mut self.goes_on);
        if let Some(request) = &self.request {
            self.seen.planned(request, decision, policy, number, goes_on);
        }
        let fallback = reason.map(|reason| reason.to_string());
        let decision_us = elapsed.as_nanos() as f64 / 1e3;
        tracing::info!(space = %decision.plan.space, precision = %decision.plan.precision, decision_us, fuel = decision.fuel, fallback, "decided");
        self.house.live.touch();
    }

    fn failed(&mut self, attempt: &FailedAttempt) {
        tracing::warn!(failure = %attempt.failure, space = %attempt.plan.space, "an attempt failed");
        self.seen.failed(&attempt.plan, attempt.failure);
        self.house.live.touch();
    }

    fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        if self.seen.progress(share) {
            self.device.look();
            self.house.live.touch();
        }
        Cancelled::unless(self.why.goes_on())
    }

    fn between_chunks(&mut self) -> Next {
        // Frames that were delivered stay: whoever decides from here on begins no other attempt.
        self.goes_on = (self.successor)();
        if self.goes_on { Next::AskAgain } else { Next::GoOn }
    }
}

/// Only ends where the job is to: for decodes that are compared.
pub struct CancelOnly<'a>(pub &'a Why);

impl Observer for CancelOnly<'_> {
    fn progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }
}
