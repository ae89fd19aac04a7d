//! One version of a policy in service, and its instances, which workers share.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard},
};

use tilewright_plan::{Planner, PolicyIdentity, Recorder, Stage};
use tilewright_policy::{FallbackPlanner, LoadedPolicy};

use crate::{
    comparison::Comparison,
    dump::Ring,
    rollout::lock,
    served::{Served, Warm},
    source::PreparedPolicy,
    state::SavedRevision,
    tally::{Tally, TallyFacts},
};

/// A module with its settings, numbered within its policy.
pub struct Revision {
    /// The policy that it is a revision of: a name in the configuration.
    pub policy: String,
    /// The identity in records.
    pub identity: PolicyIdentity,
    pub(crate) saved: SavedRevision,
    loaded: LoadedPolicy,
    warm: Mutex<Warm>,
    pub(crate) performance: Mutex<Performance>,
}

/// The performance of a revision.
#[derive(Debug, Default)]
pub(crate) struct Performance {
    pub tally: Tally,
    /// The comparison with the previous revision.
    pub against_previous: Comparison,
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
        let saved = SavedRevision { number, digest, origin, since, settings, grants };
        Self { policy: policy.to_owned(), identity, saved, loaded, warm, performance: Mutex::default() }
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
        self.performance().against_previous.words()
    }

    pub(crate) fn performance(&self) -> MutexGuard<'_, Performance> {
        lock(&self.performance)
    }

    fn warm(&self) -> MutexGuard<'_, Warm> {
        lock(&self.warm)
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

impl Deref for Revision {
    type Target = SavedRevision;

    fn deref(&self) -> &SavedRevision {
        &self.saved
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
