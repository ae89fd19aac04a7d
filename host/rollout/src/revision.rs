//! One version of a policy in service, and the instances of it that workers take turns with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tilewright_plan::{Planner, PolicyIdentity, Recorder};
use tilewright_policy::{FallbackPlanner, LoadedPolicy};

use crate::{
    dump::Ring,
    source::{Grants, Prepared},
    tally::{Tally, TallyFacts},
    watchdog::Watch,
};

/// A module with its settings, numbered within its policy.
pub struct Revision {
    /// The policy that it is a revision of: a name in the configuration.
    pub policy: String,
    /// Counted from 1 over the policy's life, restarts included.
    pub number: u64,
    /// Where it came from, in words.
    pub origin: String,
    /// When it took over first, RFC 3339 in UTC.
    pub since: String,
    /// As records have it.
    pub identity: PolicyIdentity,
    pub(crate) digest: String,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) grants: Grants,
    loaded: LoadedPolicy,
    /// Warm ones that nobody works with.
    idle: Mutex<Vec<Recorder>>,
    pub(crate) judged: Mutex<Judged>,
}

/// What is known of how a revision does.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub tally: Tally,
    pub watch: Watch,
    pub ring: Ring,
    /// Taken back: nothing that still ends under it counts any more.
    pub is_out: bool,
}

impl Revision {
    pub(crate) fn new(policy: &str, number: u64, since: String, prepared: Prepared) -> Self {
        let Prepared { loaded, policy: warm, settings, grants, origin, digest, .. } = prepared;
        let identity = warm.identity().clone();
        let idle = Mutex::new(vec![Recorder::new(Box::new(warm), true)]);
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
            idle,
            judged: Mutex::default(),
        }
    }

    /// What is counted of it.
    pub fn tally(&self) -> TallyFacts {
        self.judged().tally.facts
    }

    /// How its jobs stand against those of the revision before it, in words.
    pub fn standing(&self) -> String {
        self.judged().watch.against_previous.words()
    }

    pub(crate) fn judged(&self) -> MutexGuard<'_, Judged> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Recorder>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A warm instance, made anew where all are at work.
    pub(crate) fn instance(self: &Arc<Self>) -> Instance {
        let warm = self.idle().pop();
        if let Some(recorder) = warm {
            return Instance { revision: self.clone(), recorder: Some(recorder), is_sound: true };
        }
        let (recorder, is_sound) = match self.loaded.configure(&self.settings) {
            Ok(policy) => (Recorder::new(Box::new(policy), true), true),
            // It has been configured before: the machine is short of something.
            Err(error) => {
                (Recorder::new(Box::new(FallbackPlanner::new(self.identity.clone(), error.to_string())), true), false)
            }
        };
        Instance { revision: self.clone(), recorder: Some(recorder), is_sound }
    }

    /// Forgets how it did, with the instances that did so.
    pub(crate) fn begin_anew(&self) {
        self.idle().clear();
        let mut judged = self.judged();
        let facts = judged.tally.facts;
        *judged = Judged::default();
        judged.tally.facts = facts;
    }
}

impl std::fmt::Debug for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} revision {} ({})", self.policy, self.number, self.digest)
    }
}

/// An instance at work; goes back when it is dropped.
pub(crate) struct Instance {
    pub revision: Arc<Revision>,
    recorder: Option<Recorder>,
    is_sound: bool,
}

impl Instance {
    pub fn planner(&mut self) -> &mut Recorder {
        self.recorder.get_or_insert_with(|| {
            let standby = FallbackPlanner::new(self.revision.identity.clone(), "the instance is gone");
            Recorder::new(Box::new(standby), false)
        })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(mut recorder) = self.recorder.take() {
            // What was said belongs to a record, and this one is not written.
            drop(recorder.take());
            // One that has failed a few times in a row is no longer asked, and never again would be.
            let is_failing = self.revision.judged().tally.in_a_row > 0;
            if self.is_sound && !is_failing {
                self.revision.idle().push(recorder);
            }
        }
    }
}
