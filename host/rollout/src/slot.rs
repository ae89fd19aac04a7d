//! A policy in service: the place that revisions take turns in.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use serde::Serialize;

use crate::{
    revision::Revision,
    source::{Wanted, shown},
    state::{KeptPolicy, KeptRevision},
};

/// Refusals that are kept.
const REFUSED: usize = 16;

/// A module that was not let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// When, RFC 3339 in UTC.
    pub time: String,
    /// Where it came from, in words.
    pub origin: String,
    /// Why, in a line.
    pub why: String,
}

/// Who decides, and who did before.
#[derive(Clone, Debug)]
pub(crate) struct Forces {
    pub in_force: Arc<Revision>,
    pub previous: Option<Arc<Revision>>,
}

/// A policy with its revisions.
#[derive(Debug)]
pub(crate) struct Slot {
    pub name: String,
    /// Read by every job; written whole.
    pub forces: ArcSwap<Forces>,
    pub paused: AtomicBool,
    /// Nobody asked for the pause: the next revision ends it.
    pub paused_by_watchdog: AtomicBool,
    /// Held by whoever brings another revision, which may take long: one comes after the other.
    pub swapping: Mutex<()>,
    /// Held for moments, by whoever changes something.
    changing: Mutex<Changing>,
    refused: Mutex<VecDeque<Refused>>,
    draining: Mutex<Vec<Weak<Revision>>>,
}

/// What only changes look at.
#[derive(Debug)]
pub(crate) struct Changing {
    /// The number of the next revision.
    pub next: u64,
    pub wanted: Wanted,
    /// The digest that the configured source had when it was looked at last: the same one is not put in force again.
    pub seen: Option<String>,
}

/// The pause of a policy, during which it is not asked, and its origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paused {
    pub is_paused: bool,
    pub by_watchdog: bool,
}

impl From<&KeptPolicy> for Paused {
    fn from(kept: &KeptPolicy) -> Self {
        Self { is_paused: kept.paused, by_watchdog: kept.paused_by_watchdog }
    }
}

/// A policy in service, for people.
#[derive(Clone, Debug)]
pub struct SlotFacts {
    /// Its name in the configuration.
    pub name: String,
    /// Where its modules come from, in words.
    pub source: String,
    /// Not asked.
    pub paused: bool,
    /// Who decides.
    pub in_force: Arc<Revision>,
    /// Who did before.
    pub previous: Option<Arc<Revision>>,
    /// Older ones that jobs still hold.
    pub draining: Vec<Arc<Revision>>,
    /// Newest first.
    pub refused: Vec<Refused>,
}

impl Slot {
    pub fn new(name: &str, forces: Forces, changing: Changing, paused: Paused) -> Self {
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
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Puts a revision in force; what was in force stays at hand, and what was at hand drains.
    pub fn take_over(&self, revision: Arc<Revision>) {
        let before = self.forces.load_full();
        if let Some(old) = &before.previous {
            self.drain(old);
        }
        self.forces.store(Arc::new(Forces { in_force: revision, previous: Some(before.in_force.clone()) }));
    }

    /// Puts the previous revision in force again, with none behind it; gives the one that goes.
    pub fn go_back(&self) -> Option<Arc<Revision>> {
        let before = self.forces.load_full();
        let previous = before.previous.clone()?;
        self.drain(&before.in_force);
        self.forces.store(Arc::new(Forces { in_force: previous, previous: None }));
        Some(before.in_force.clone())
    }

    pub fn drain(&self, revision: &Arc<Revision>) {
        let mut draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        draining.retain(|old| old.strong_count() > 0);
        draining.push(Arc::downgrade(revision));
    }

    /// The revision that decides exactly as a kept one and has the same number, if it is still at hand.
    pub fn at_hand(&self, kept: &KeptRevision) -> Option<Arc<Revision>> {
        let forces = self.forces.load_full();
        let draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        let current = [Some(&forces.in_force), forces.previous.as_ref()].into_iter().flatten().cloned();
        let mut all = current.chain(draining.iter().filter_map(Weak::upgrade));
        all.find(|revision| KeptRevision::from(&**revision).is_same(kept))
    }

    pub fn refuse(&self, refused: Refused) {
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_front(refused);
        all.truncate(REFUSED);
    }

    pub fn facts(&self) -> SlotFacts {
        let forces = self.forces.load_full();
        let source = shown(&self.changing().wanted.source);
        let current = |revision: &Arc<Revision>| {
            Arc::ptr_eq(revision, &forces.in_force)
                || forces.previous.as_ref().is_some_and(|old| Arc::ptr_eq(old, revision))
        };
        let draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        let draining = draining.iter().filter_map(Weak::upgrade).filter(|revision| !current(revision)).collect();
        SlotFacts {
            name: self.name.clone(),
            source,
            paused: self.is_paused(),
            in_force: forces.in_force.clone(),
            previous: forces.previous.clone(),
            draining,
            refused: self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect(),
        }
    }
}
