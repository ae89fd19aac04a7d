//! The kinds of work that jobs are: what differs between them when policies are in service.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tilewright_plan::{
    Denoise, DenoiseRequest, Device, Expected, Planner, PolicyIdentity, Record, Recorder, Request, Text, TextRequest,
    Vae, records::AnyRecord,
};
use tilewright_policy::{FallbackPlanner, Policy};

use crate::tally::Kind;

/// A kind of work that jobs are.
pub trait Served: Expected {
    /// The kind of a request: work that can be compared is the same, on the same device, with the
    /// same objective.
    fn kind(request: &Self::Request, device: &Device) -> Kind;

    /// The most that a measured plan held, in bytes: with the weights where the limit counts them.
    fn held_bytes(outcome: &Self::Outcome) -> u64;

    /// The time that a measured plan took.
    fn elapsed(outcome: &Self::Outcome) -> Duration;

    /// Attempts until then.
    fn attempts(outcome: &Self::Outcome) -> u32;

    /// A policy as the planner of such work.
    fn planner(policy: Policy) -> Box<dyn Planner<Self> + Send>;

    /// A planner that asks no policy, and gives the reason for it.
    fn standby(identity: PolicyIdentity, why: String) -> Box<dyn Planner<Self> + Send>;

    /// The warm instances for such work.
    fn idle(warm: &Warm) -> MutexGuard<'_, Vec<Recorder<Self>>>;

    /// A record among those of all kinds.
    fn any(record: Record<Self>) -> AnyRecord;
}

/// Warm instances of a revision that no worker holds. An instance learns of one kind of work.
#[derive(Default)]
pub struct Warm {
    vae: Mutex<Vec<Recorder>>,
    denoise: Mutex<Vec<Recorder<Denoise>>>,
    text: Mutex<Vec<Recorder<Text>>>,
}

impl Warm {
    /// Drops all of them.
    pub fn clear(&self) {
        Vae::idle(self).clear();
        Denoise::idle(self).clear();
        Text::idle(self).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn suffix(counts_weights: bool) -> &'static str {
    if counts_weights { " with weights" } else { "" }
}

/// The planners of a kind of work, its warm instances, and its records among all: alike but for
/// their types.
macro_rules! asks_policies {
    ($warm:ident, $any:ident) => {
        fn planner(policy: Policy) -> Box<dyn Planner<Self> + Send> {
            Box::new(policy)
        }

        fn standby(identity: PolicyIdentity, why: String) -> Box<dyn Planner<Self> + Send> {
            Box::new(FallbackPlanner::new(identity, why))
        }

        fn idle(warm: &Warm) -> MutexGuard<'_, Vec<Recorder<Self>>> {
            lock(&warm.$warm)
        }

        fn any(record: Record<Self>) -> AnyRecord {
            AnyRecord::$any(Box::new(record))
        }
    };
}

impl Served for Vae {
    fn kind(request: &Request, device: &Device) -> Kind {
        let Request { model, batch, frames, height, width, memory_limit, objective, .. } = request;
        let weights = suffix(request.limit_counts_weights);
        let blended = if request.allows_blended { " blended" } else { "" };
        format!(
            "{model:?} {batch} {frames} {height} {width} {memory_limit}{weights} {objective:?}{blended} {} {}",
            device.name, device.arch
        )
    }

    fn held_bytes(outcome: &Self::Outcome) -> u64 {
        outcome.peak_bytes
    }

    fn elapsed(outcome: &Self::Outcome) -> Duration {
        outcome.elapsed
    }

    fn attempts(outcome: &Self::Outcome) -> u32 {
        outcome.attempts
    }

    asks_policies!(vae, Vae);
}

impl Served for Denoise {
    fn kind(request: &DenoiseRequest, device: &Device) -> Kind {
        let DenoiseRequest { model, batch, frames, height, width, text_tokens, steps, passes, sampler, .. } = request;
        let DenoiseRequest { reuse, memory_limit, objective, .. } = request;
        format!(
            "{model:?} {batch} {frames} {height} {width} {text_tokens} {steps} {passes} {sampler} {reuse:?} {memory_limit} {objective:?} {} {}",
            device.name, device.arch
        )
    }

    fn held_bytes(outcome: &Self::Outcome) -> u64 {
        outcome.held_bytes()
    }

    fn elapsed(outcome: &Self::Outcome) -> Duration {
        outcome.elapsed
    }

    fn attempts(outcome: &Self::Outcome) -> u32 {
        outcome.attempts
    }

    asks_policies!(denoise, Denoise);
}

impl Served for Text {
    fn kind(request: &TextRequest, device: &Device) -> Kind {
        let TextRequest { model, tokens, memory_limit, objective, .. } = request;
        format!("{model:?} {tokens:?} {memory_limit} {objective:?} {} {}", device.name, device.arch)
    }

    fn held_bytes(outcome: &Self::Outcome) -> u64 {
        outcome.held_bytes()
    }

    fn elapsed(outcome: &Self::Outcome) -> Duration {
        outcome.elapsed
    }

    fn attempts(outcome: &Self::Outcome) -> u32 {
        outcome.attempts
    }

    asks_policies!(text, Text);
}
