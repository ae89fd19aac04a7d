//! One version of a policy in service, and its instances, which workers share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tilewright_plan::{Planner, PolicyIdentity, Recorder, Stage};
use tilewright_policy::{FallbackPlanner, LoadedPolicy};

use crate::{
    dump::Ring,
    served::{Served, Warm},
    source::{Grants, PreparedPolicy},
    tally::{Tally, TallyFacts},
    watchdog::Watch,
};

/// A module with its settings, numbered within its policy.
pub struct Revision {
    /// The policy that it is a revision of: a name in the configuration.
    pub policy: String,
    /// Counted from 1 over the policy's life, across restarts.
    pub number: u64,
    /// The module's origin, in words.
    pub origin: String,
    /// The time when it first took over, RFC 3339 in UTC.
    pub since: String,
    /// The identity in records.
    pub identity: PolicyIdentity,
    pub(crate) digest: String,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) grants: Grants,
    loaded: LoadedPolicy,
    warm: Mutex<Warm>,
    pub(crate) performance: Mutex<Performance>,
}

/// The performance of a revision.
#[derive(Debug, Default)]
pub(crate) struct Performance {
    pub tally: Tally,
    pub watch: Watch,
    pub ring: Ring,
    /// Rolled back: jobs that still end under it no longer count.
    pub is_out: bool,
}

impl Revision {
    pub(crate) fn new(policy: &str, number: u64, since: String, prepared: PreparedPolicy) -> Self {
        let PreparedPolicy { loaded, policy: warm, settings, grants, origin, digest, .. } = prepared;
        let identity = warm.identity().clone();
        let first = Recorder::new(Box::new(warm), true);
        let warm = Mutex::new(Warm { vae: vec![first], ..Warm::default() });
        let policy = policy.to_owned();
        Self {
            policy,
            number,
            origin,
            since,
            identity,
            digest,
            settings,
            grants,
            loaded,
            warm,
            performance: Mutex::default(),
        }
    }

    /// The stages that it answers; the native default decides on all others.
    pub fn stages(&self) -> &[Stage] {
        &self.loaded.description().stages
    }

    /// The revision's counts.
    pub fn tally(&self) -> TallyFacts {
        self.performance().tally.facts
    }

    /// The comparison of its jobs with those of the revision before it, in words.
    pub fn standing(&self) -> String {
        self.performance().watch.against_previous.words()
    }

    pub(crate) fn performance(&self) -> MutexGuard<'_, Performance> {
        self.performance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warm(&self) -> MutexGuard<'_, Warm> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A warm instance; a new one if all are in use.
    pub(crate) fn instance<W: Served>(self: &Arc<Self>) -> Instance<W> {
        let warm = W::of_mut(&mut *self.warm()).pop();
        if let Some(recorder) = warm {
            return Instance { revision: self.clone(), recorder: Some(recorder), is_sound: true };
        }
        let (planner, is_sound): (Box<dyn Planner<W> + Send>, bool) = match self.loaded.configure(&self.settings) {
            Ok(policy) => (Box::new(policy), true),
            // It was configured before, so the machine is short of something.
            Err(error) => (Box::new(FallbackPlanner::new(self.identity.clone(), error.to_string())), false),
        };
        let recorder = Recorder::new(planner, true);
        Instance { revision: self.clone(), recorder: Some(recorder), is_sound }
    }

    /// Resets its counts, and its instances, which may have failed.
    pub(crate) fn reset(&self) {
        *self.warm() = Warm::default();
        let mut performance = self.performance();
        let facts = performance.tally.facts;
        *performance = Performance::default();
        performance.tally.facts = facts;
    }
}

impl std::fmt::Debug for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} revision {} ({})", self.policy, self.number, self.digest)
    }
}

/// An instance in use; returned to its revision when dropped.
pub(crate) struct Instance<W: Served> {
    pub revision: Arc<Revision>,
    recorder: Option<Recorder<W>>,
    is_sound: bool,
}

impl<W: Served> Instance<W> {
    pub fn planner(&mut self) -> &mut Recorder<W> {
        self.recorder.get_or_insert_with(|| {
            let standby = FallbackPlanner::new(self.revision.identity.clone(), "the instance is gone");
            Recorder::new(Box::new(standby), false)
        })
    }
}

impl<W: Served> Drop for Instance<W> {
    fn drop(&mut self) {
        if let Some(mut recorder) = self.recorder.take() {
            // The exchange belongs to a record, and this one is not written.
            drop(recorder.take());
            // An instance that has failed a few times in a row is no longer asked, and would never
            // be again.
            let is_failing = self.revision.performance().tally.in_a_row > 0;
            if self.is_sound && !is_failing {
                W::of_mut(&mut *self.revision.warm()).push(recorder);
            }
        }
    }
}
