//! A policy in service and its revisions.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use serde::Serialize;

use crate::{
    revision::Revision,
    rollout::lock,
    source::{PolicySpec, describe_source},
    state::{SavedPolicy, SavedRevision},
};

/// Refusals that are kept.
const REFUSED: usize = 16;

/// A module that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedModule {
    /// The time, RFC 3339 in UTC.
    pub time: String,
    /// The module's origin, in words.
    pub origin: String,
    /// The reason, in a line.
    pub why: String,
}

/// The revision that decides, and the previous one.
#[derive(Clone, Debug)]
pub(crate) struct ActiveRevisions {
    pub in_force: Arc<Revision>,
    pub previous: Option<Arc<Revision>>,
}

/// A policy with its revisions.
#[derive(Debug)]
pub(crate) struct Slot {
    pub name: String,
    /// Read by every job; replaced as a whole.
    pub forces: ArcSwap<ActiveRevisions>,
    pub paused: AtomicBool,
    /// The watchdog paused it: the next revision ends the pause.
    pub paused_by_watchdog: AtomicBool,
    /// Held by a swap, which may take long: swaps run one after the other.
    pub swapping: Mutex<()>,
    /// Held briefly, by every change.
    changing: Mutex<Changing>,
    refused: Mutex<VecDeque<RefusedModule>>,
    draining: Mutex<Vec<Weak<Revision>>>,
}

/// State that only changes read.
#[derive(Debug)]
pub(crate) struct Changing {
    /// The number of the next revision.
    pub next: u64,
    pub wanted: PolicySpec,
    /// The digest of the configured source when it was last read: the same one is not put in force
    /// again.
    pub seen: Option<String>,
}

/// The pause of a policy, during which it is not asked, and its origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PauseState {
    pub is_paused: bool,
    pub by_watchdog: bool,
}

impl From<&SavedPolicy> for PauseState {
    fn from(saved: &SavedPolicy) -> Self {
        Self { is_paused: saved.paused, by_watchdog: saved.paused_by_watchdog }
    }
}

/// A policy in service, for people.
#[derive(Clone, Debug)]
pub struct SlotFacts {
    /// The policy's name in the configuration.
    pub name: String,
    /// The source of its modules, in words.
    pub source: String,
    /// True if it is not asked.
    pub paused: bool,
    /// The revision that decides.
    pub in_force: Arc<Revision>,
    /// The previous revision.
    pub previous: Option<Arc<Revision>>,
    /// Older revisions that jobs still hold.
    pub draining: Vec<Arc<Revision>>,
    /// Newest first.
    pub refused: Vec<RefusedModule>,
}

impl Slot {
    pub fn new(name: &str, forces: ActiveRevisions, changing: Changing, paused: PauseState) -> Self {
        Self {
            name: name.to_owned(),
            forces: ArcSwap::from_pointee(forces),
            paused: AtomicBool::new(paused.is_paused),
            paused_by_watchdog: AtomicBool::new(paused.by_watchdog),
            swapping: Mutex::default(),
            changing: Mutex::new(changing),
            refused: Mutex::default(),
            draining: Mutex::default(),
        }
    }

    pub fn changing(&self) -> MutexGuard<'_, Changing> {
        lock(&self.changing)
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Puts a revision in force; the one in force becomes the previous one, and that one drains.
    pub fn take_over(&self, revision: Arc<Revision>) {
        let before = self.forces.load_full();
        if let Some(old) = &before.previous {
            self.drain(old);
        }
        self.forces.store(Arc::new(ActiveRevisions { in_force: revision, previous: Some(before.in_force.clone()) }));
    }

    /// Puts the previous revision in force again, with none behind it; returns the one that goes.
    pub fn go_back(&self) -> Option<Arc<Revision>> {
        let before = self.forces.load_full();
        let previous = before.previous.clone()?;
        self.drain(&before.in_force);
        self.forces.store(Arc::new(ActiveRevisions { in_force: previous, previous: None }));
        Some(before.in_force.clone())
    }

    pub fn drain(&self, revision: &Arc<Revision>) {
        let mut draining = lock(&self.draining);
        draining.retain(|old| old.strong_count() > 0);
        draining.push(Arc::downgrade(revision));
    }

    /// The revision that decides exactly as a saved one and has the same number, if it is still
    /// loaded.
    pub fn at_hand(&self, saved: &SavedRevision) -> Option<Arc<Revision>> {
        let forces = self.forces.load_full();
        let draining = lock(&self.draining);
        let current = [Some(&forces.in_force), forces.previous.as_ref()].into_iter().flatten().cloned();
        let mut all = current.chain(draining.iter().filter_map(Weak::upgrade));
        all.find(|revision| revision.saved.is_same(saved))
    }

    /// Every revision that is loaded: in force, before it, and those that drain.
    pub fn revisions(&self) -> Vec<Arc<Revision>> {
        let facts = self.facts();
        [Some(facts.in_force), facts.previous].into_iter().flatten().chain(facts.draining).collect()
    }

    pub fn refuse(&self, refused: RefusedModule) {
        let mut all = lock(&self.refused);
        all.push_front(refused);
        all.truncate(REFUSED);
    }

    pub fn facts(&self) -> SlotFacts {
        let forces = self.forces.load_full();
        let source = describe_source(&self.changing().wanted.source);
        let current = |revision: &Arc<Revision>| {
            Arc::ptr_eq(revision, &forces.in_force)
                || forces.previous.as_ref().is_some_and(|old| Arc::ptr_eq(old, revision))
        };
        let draining = lock(&self.draining);
        let draining = draining.iter().filter_map(Weak::upgrade).filter(|revision| !current(revision)).collect();
        SlotFacts {
            name: self.name.clone(),
            source,
            paused: self.is_paused(),
            in_force: forces.in_force.clone(),
            previous: forces.previous.clone(),
            draining,
            refused: lock(&self.refused).iter().cloned().collect(),
        }
    }
}
